"""The import of the libraries that an engine needs: most of what a learner's start costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from learner.settings import Device


def import_libraries(device: Device) -> None:
    """Import what an engine needs; some seconds the first time.

    Nothing else may import transformers meanwhile: it puts another module in its own place at the
    end of its import, so a second thread that waits for that import is handed the unfinished one,
    which lacks its names.
    """
    # DeepSpeed reads its accelerator from the environment when it is imported.
    os.environ["DS_ACCELERATOR"] = device.value
    import deepspeed
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    with compiler_off(), suppress(ImportError):
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401


@contextmanager
def compiler_off() -> Iterator[None]:
    """Let `torch.compile` do nothing meanwhile.

    DeepSpeed looks at every start whether the optimiser is Muon, and to import that is to compile
    three functions of it, which nobody calls: torch's compiler alone takes seconds to import.
    """
    name = "TORCHDYNAMO_DISABLE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

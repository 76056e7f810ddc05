"""Compile DeepSpeed's shared-memory operation once, so that no learner start waits for it.

The first `init_distributed` on a CPU compiles it in half a minute; no setting skips that.
"""

import os
import socket
import sys
from pathlib import Path

from infra.setup.places import Places
from infra.setup.steps import said, write_atomically
from schemas.errors import Boundary, TransientError

COMPILE_LIMIT_S = 600
_WARM_UP = """
import deepspeed
deepspeed.init_distributed(dist_backend="gloo")
import torch.distributed
torch.distributed.destroy_process_group()
"""


def extensions_stamp(places: Places) -> Path:
    """Says that the operation of this environment is compiled."""
    return places.torch_extensions / ".sluice-complete"


def learner_environ(places: Places) -> dict[str, str]:
    """What a DeepSpeed process on a CPU must find in its environment."""
    return {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(places.torch_extensions),
        # The compiler's helper, ninja, lies beside the interpreter.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def compile_extensions(places: Places) -> str:
    """Start one rank and end it; raises TransientError with the compiler's last words."""
    places.torch_extensions.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one_rank = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    code, told = said(
        [sys.executable, "-c", _WARM_UP],
        environ={**os.environ, **learner_environ(places), **one_rank},
        limit_s=COMPILE_LIMIT_S,
    )
    if code != 0:
        raise TransientError(
            f"DeepSpeed's operation did not compile: {told[-800:]}",
            boundary=Boundary.PLATFORM,
            hint="it needs g++ and ninja; `./sluice doctor` says which is missing",
        )
    write_atomically(extensions_stamp(places), "")
    return "shared-memory operation"

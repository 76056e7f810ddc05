"""The import of the learner's libraries: what it leaves out, and that it leaves nothing behind."""

from __future__ import annotations

import os
import sys

import pytest

from learner.libraries import compiler_off

NAME = "TORCHDYNAMO_DISABLE"


@pytest.mark.parametrize("before", [None, "0"])
def test_what_a_library_compiles_while_it_is_imported_stays_as_it_is(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if before is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, before)
    loaded = "torch._inductor.compile_fx" in sys.modules

    def double(x: int) -> int:
        return 2 * x

    with compiler_off():
        assert torch.compile(double) is double
    assert os.environ.get(NAME) == before
    assert ("torch._inductor.compile_fx" in sys.modules) == loaded, "the compiler was not needed"

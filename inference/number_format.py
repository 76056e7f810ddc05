"""Which number format the engine computes in.

A CPU without bf16 instructions emulates them at a tenth of the speed of float32, so `auto` looks at
the hardware; a version's files stay bf16 either way.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from inference.settings import InferenceSettings

AUTO = "auto"
GPU = "gpu"
_BF16 = frozenset({GPU, "avx512_bf16", "amx_bf16"})


def hardware() -> frozenset[str]:
    """Return the flags of the processor, and `gpu` where an NVIDIA device is there."""
    found = {GPU} if Path("/dev/nvidiactl").exists() else set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset(found)
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(found | set(flags.partition(":")[2].split()))


def resolve_dtype(asked: str, flags: Set[str]) -> str:
    """Return the format that `auto` stands for under these flags; anything else stays as asked."""
    if asked != AUTO:
        return asked
    return "bfloat16" if flags & _BF16 else "float32"


def with_dtype(settings: InferenceSettings) -> InferenceSettings:
    """Return the settings with the format that holds on this machine."""
    return settings.model_copy(update={"dtype": resolve_dtype(settings.dtype, hardware())})

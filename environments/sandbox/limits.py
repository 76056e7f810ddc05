"""What a run in the sandbox may use, and how a broken limit is told apart from an ordinary
failure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from schemas.enums import ToolExit

_BASE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run. Memory over all processes is at most processes_max x memory_mib +
    disk_mib.
    """

    wall_s: float = 10.0
    """Wall clock. Unit: s."""
    cpu_s: int = 5
    """Processor time of each process. Unit: s."""
    memory_mib: int = 256
    """Address space of each process. Unit: MiB."""
    disk_mib: int = 16
    """Writable /tmp, which lies in memory. Unit: MiB."""
    processes_max: int = 16
    """Processes and threads at once."""
    files_max: int = 64
    """Open files of each process."""
    output_bytes_max: int = 16_384
    """Output kept of each of stdout and stderr. Unit: bytes."""

    def prlimit(self) -> tuple[str, ...]:
        """Return the arguments of util-linux `prlimit` that set these limits."""
        return (
            # The soft limit is told by SIGXCPU, the hard one only kills.
            f"--cpu={self.cpu_s}:{self.cpu_s + 1}",
            f"--as={self.memory_mib * _BASE_BYTES}",
            f"--fsize={self.disk_mib * _BASE_BYTES}",
            f"--nproc={self.processes_max}",
            f"--nofile={self.files_max}",
            "--core=0",
        )


_SIGNS = (
    ("memory", "MemoryError"),
    ("memory", "Cannot allocate memory"),
    ("processes", "Resource temporarily unavailable"),
    ("processes", "can't start new thread"),
    ("disk", "No space left on device"),
    ("disk", "File too large"),
    ("files", "Too many open files"),
)
_SIGNALS = {
    signal.SIGXCPU: "cpu",
    signal.SIGXFSZ: "disk",
    signal.SIGKILL: "killed",
}


def classify(*, status: int, stderr: str) -> tuple[ToolExit, str]:
    """Return the exit class and the raw status of a run that ended by itself.

    `status` is the exit status as bubblewrap reports it: 128 + n for signal n. A program that
    writes a sign of a limit to stderr and fails is believed: the class of its own call is all it
    can change.
    """
    if status == 0:
        return ToolExit.OK, "exit 0"
    number = status - 128
    if status > 128 and number in _SIGNALS:
        return ToolExit.SANDBOX_LIMIT, f"signal {number} ({_SIGNALS[signal.Signals(number)]})"
    for limit, sign in _SIGNS:
        if sign in stderr:
            return ToolExit.SANDBOX_LIMIT, f"exit {status} ({limit})"
    return ToolExit.TOOL_ERROR, f"signal {number}" if status > 128 else f"exit {status}"


def shortened(raw: bytes, seen_bytes: int, limit: int) -> tuple[str, str]:
    """Return an output as text with the rule by which it was shortened; empty when it is whole.

    `raw` is at most the first `limit` bytes of `seen_bytes` in all.
    """
    text = raw.decode("utf-8", errors="replace")
    if seen_bytes <= limit:
        return text, ""
    return f"{text}\n[... {seen_bytes - len(raw)} bytes more ...]", f"head_{limit}_bytes"

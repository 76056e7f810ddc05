"""Start, know again and stop the processes of the platform.

Invariants: a signal goes only to a pid whose start time is the one recorded; every process leads a
session of its own, so that it outlives the command that started it; every wait has a deadline.
"""

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from infra.platform.state import ProcessRecord
from schemas.deadline import Deadline
from schemas.errors import Boundary, SettingsError

POLL_S = 0.05
LOG_BYTES_KEPT = 10_000_000
LINE_CHARS_SHOWN = 240
_FRAME = re.compile(r"\s+(at \S+\(.*\)|\.\.\. \d+ more)")
_ENTER_AND_RUN = 'cd "$1" && shift && exec "$@"'


def monotonic_ms() -> int:
    """The clock of all deadlines here."""
    return time.monotonic_ns() // 1_000_000


def spawn(
    name: str, command: Sequence[str], *, folder: Path, log: Path, out: Path, port: int
) -> ProcessRecord:
    """Start a process in a session of its own, in `folder`.

    log: the file it logs to. out: the file that its standard output is added to, perhaps the same.
    Raises SettingsError when the executable cannot be run.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and out.stat().st_size > LOG_BYTES_KEPT:
        out.replace(out.with_name(out.name + ".1"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(out), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        # A shell enters the folder and then becomes the program, so that the pid is the program's.
        pid = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", _ENTER_AND_RUN, name, str(folder), *command],
            dict(os.environ),
            file_actions=actions,
            setsid=True,
        )
    except OSError as error:
        raise SettingsError(
            f"{name} does not start: {error}", boundary=Boundary.PLATFORM, hint="run `make setup`"
        ) from error
    return ProcessRecord(
        name=name,
        pid=pid,
        start_ticks=_start_ticks(pid) or 0,
        boot_id=_boot_id(),
        port=port,
        since_ms=time.time_ns() // 1_000_000,
        log=str(log),
    )


def is_alive(record: ProcessRecord) -> bool:
    """Whether the very process of the record still runs; reaps it when it was our child."""
    with suppress(ChildProcessError):
        os.waitpid(record.pid, os.WNOHANG)
    ticks = _start_ticks(record.pid)
    return ticks is not None and ticks == record.start_ticks and record.boot_id == _boot_id()


def ask_to_stop(record: ProcessRecord) -> None:
    """Send SIGTERM if the process is still ours and alive."""
    _signal(record, signal.SIGTERM)


def wait_until_gone(records: Sequence[ProcessRecord], deadline: Deadline) -> list[ProcessRecord]:
    """Wait for the processes to end; those that outlast the deadline are killed and returned."""
    while left := [one for one in records if is_alive(one)]:
        if deadline.is_over(now_ms=monotonic_ms()):
            for record in left:
                _signal(record, signal.SIGKILL)
            _wait_for_killed(left)
            return left
        time.sleep(POLL_S)
    return []


def last_lines(log: Path, lines: int = 12, bytes_read: int = 65_536) -> str:
    """The end of a log, for an error message; empty when there is none.

    Frames of a stack are left out: they say nothing to whoever runs the platform, and a failure has
    so many of them that its cause would be cut off.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - bytes_read))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    told = [line for line in text.strip().splitlines() if not _FRAME.match(line)]
    return "\n".join(line[:LINE_CHARS_SHOWN] for line in told[-lines:])


def _wait_for_killed(records: Sequence[ProcessRecord]) -> None:
    # A killed process goes as soon as the kernel has taken down its memory.
    for _ in range(100):
        if not any(is_alive(one) for one in records):
            return
        time.sleep(POLL_S)


def _signal(record: ProcessRecord, number: signal.Signals) -> None:
    if is_alive(record):
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat (proc(5)), None when there is no such running process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the name in brackets and may hold blanks and brackets of its own.
    fields = stat.rpartition(")")[2].split()
    state, threads, ticks = fields[0], int(fields[17]), int(fields[19])
    # The first thread of a killed process is a zombie while the others still hold its sockets.
    has_ended = state == "X" or (state == "Z" and threads <= 1)
    return None if has_ended else ticks


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

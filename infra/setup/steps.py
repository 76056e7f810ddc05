"""How a step of the set-up runs: under a lock, once, with one line on stderr.

Invariants: only the standard library and `schemas.errors` are imported; a result that exists is
complete, because it is made beside its place and renamed; a wait for another set-up is bounded.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas.errors import Boundary, TransientError

_TIMED_OUT = 124
LOCK_WAIT_S = 900.0
"""An environment takes about a minute to install; a second set-up waits for it, not for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did."""

    name: str
    done: bool
    """False when there was nothing to do."""
    seconds: float
    bytes: int
    note: str = ""

    def line(self) -> str:
        """One line for a person: what, seconds, size."""
        what = "done" if self.done else "already there"
        size = f"{self.bytes / 1e6:,.0f} MB" if self.bytes else "-"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.name:<22} {what:<14} {self.seconds:7.1f} s  {size:>9}{note}"


def say(text: str) -> None:
    """Talk goes to stderr; stdout is for data."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run_step(
    name: str, ready: Callable[[], bool], work: Callable[[], str], where: Path, lock: Path
) -> StepResult:
    """Do `work` unless `ready` says that it was done, and print one line.

    name: what the step brings. where: what it leaves, to be sized. lock: the file that keeps two
    checkouts from doing it at once. Raises TransientError when the lock is not to be had in time.
    """
    started = time.monotonic()
    note, done = "", False
    if not ready():
        with locked(lock):
            if not ready():
                note, done = work(), True
    result = StepResult(
        name=name,
        done=done,
        seconds=time.monotonic() - started,
        bytes=folder_bytes(where) if done else 0,
        note=note,
    )
    say(result.line())
    return result


@contextmanager
def locked(path: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold an exclusive lock on a file; raises TransientError when it is not to be had in time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TransientError(
                        f"{path} has been held by another process for {wait_s:.0f} s",
                        boundary=Boundary.PLATFORM,
                        hint="let it end, then try again",
                    ) from None
                time.sleep(0.1)
        yield


@contextmanager
def made_beside(target: Path) -> Iterator[Path]:
    """Give a fresh folder to fill; once filled it takes the place of the target in one rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    """Write, sync and rename, so that a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_stamp(path: Path, result: StepResult) -> None:
    """Leave a stamp that says when a step is complete."""
    write_atomically(path, json.dumps(asdict(result)) + "\n")


def folder_bytes(path: Path) -> int:
    """Bytes of all regular files below a folder, or of one file; 0 when there is none."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            if not file.is_symlink():
                total += file.stat().st_size
    return total


def said(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, limit_s: float
) -> tuple[int, str]:
    """Run a command to its end; return its exit code and all that it said.

    One that does not end in time is killed, and answers 124 as timeout(1) does. Unit: s. Raises
    OSError when it does not start.
    """
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _TIMED_OUT, f"no end after {limit_s:g} s"
    return done.returncode, done.stdout.strip()

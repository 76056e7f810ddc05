"""The folder of one run: resolved settings, secret, logs, versions, summary and report.

Invariants: `start.json` is written before any process starts and never changes, so that a resumed
run begins at the same offsets; the secret is readable by its owner only and stands in no other
file; at most one process conducts a run at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from infra.run.naming import pick
from schemas.errors import Boundary, SettingsError, TransientError
from schemas.ids import RunId

_SECRET_BYTES = 32
_PID_BYTES = 32
_START = "start.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Paths of one run."""

    root: Path

    @property
    def settings(self) -> Path:
        """The resolved settings as JSON."""
        return self.root / "resolved.json"

    @property
    def environment(self) -> Path:
        """Versions, commit and machine with which the run began."""
        return self.root / "environment.json"

    @property
    def start(self) -> Path:
        """Run id, offsets at which the run begins, and addresses of the bus."""
        return self.root / _START

    @property
    def secret(self) -> Path:
        """The key of the bearer tokens."""
        return self.root / "secret"

    @property
    def schemas(self) -> Path:
        """Schema ids and texts as the registry gave them when the run began."""
        return self.root / "schemas.json"

    @property
    def lock(self) -> Path:
        """Held by the process that conducts the run; holds its process id."""
        return self.root / "conductor.lock"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def targets(self) -> Path:
        """One file per living process of any run beside this one, with the address of its
        `/metrics`: Prometheus reads the files of one folder only.
        """
        return self.root.parent / ".prometheus"

    @property
    def versions(self) -> Path:
        """Published policy versions."""
        return self.root / "versions"

    @property
    def checkpoints(self) -> Path:
        """The learner's checkpoints."""
        return self.root / "checkpoints"

    @property
    def tables(self) -> Path:
        """Folder of the embedded ClickHouse, owned by the sink."""
        return self.root / "clickhouse"

    @property
    def sink_address(self) -> Path:
        """Where the sink writes the address of its SQL endpoint."""
        return self.root / "sink.json"

    @property
    def summary(self) -> Path:
        """The accounts of the run."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The report of the run."""
        return self.root / "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What every process of a run must know before it opens a door."""

    run_id: RunId
    bootstrap: str
    registry: str
    prefix: str
    starts: Mapping[str, Mapping[int, int]]
    """Logical topic name to partition to the first offset of the run."""
    topic_ids: Mapping[str, str]
    """Logical topic name to the broker's id of it."""


def unwritable(path: Path, error: OSError) -> TransientError:
    """Return the error of a file of a run that cannot be written."""
    return TransientError(
        f"{path} cannot be written: {error.strerror or error}",
        boundary=Boundary.STORE,
        hint=f"make room on the disk of {path.parent} and check its rights, then go on with "
        "--resume; a new run may lie elsewhere with --runs",
    )


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old or the new bytes, also after a crash.

    Raises TransientError, and leaves the old file as it was, when the disk does not take it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise unwritable(path, error) from error


@contextmanager
def conducting(folder: RunFolder) -> Iterator[None]:
    """Hold the run for this process; the kernel lets go of it when the process ends.

    Raises SettingsError when another process conducts it, TransientError when the folder cannot be
    written.
    """
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(folder.lock, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, _PID_BYTES, 0).decode(errors="replace") or "unknown"
            raise SettingsError(
                f"the run {folder.root.name} goes on already: process {holder} conducts it",
                hint=f"stop it with Ctrl-C or `kill {holder}`, then --resume; "
                "a settings file without --resume begins another run",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            raise unwritable(folder.lock, error) from error
        yield
    finally:
        os.close(descriptor)


def is_conducted(folder: RunFolder) -> bool:
    """Whether a process of this machine other than this one and its parent conducts the run now:
    a conductor whose sink has ended sends a child to ask the tables.
    """
    try:
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who look at once do not take each other for a conductor.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _PID_BYTES, 0)
        return holder not in (str(os.getpid()).encode(), str(os.getppid()).encode())
    finally:
        os.close(descriptor)
    return False


def make(folder: RunFolder, start: RunStart, settings: Mapping[str, Any]) -> None:
    """Make the folder of a new run.

    Raises SettingsError when it holds a run already, TransientError when it cannot be written.
    """
    if folder.start.exists():
        raise SettingsError(
            f"{folder.root} holds a run already",
            hint="resume it with --resume, or let the new run have its own folder",
        )
    for path in (folder.root, folder.logs, folder.versions, folder.checkpoints):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
    write_atomically(folder.secret, secrets.token_bytes(_SECRET_BYTES), mode=0o600)
    write_atomically(folder.settings, orjson.dumps(settings, option=orjson.OPT_INDENT_2))
    body = {
        "run_id": start.run_id,
        "bootstrap": start.bootstrap,
        "registry": start.registry,
        "prefix": start.prefix,
        "starts": {name: dict(ends) for name, ends in start.starts.items()},
        "topic_ids": dict(start.topic_ids),
    }
    write_atomically(folder.start, json.dumps(body, indent=2).encode())


def run_id_of(folder: RunFolder) -> RunId:
    """Return the run of a folder, which may have been copied or renamed since."""
    return read_start(folder).run_id if folder.start.exists() else RunId(folder.root.name)


def read_start(folder: RunFolder) -> RunStart:
    """Return where a run began; raise SettingsError when the folder holds no run."""
    try:
        raw = json.loads(folder.start.read_bytes())
        return RunStart(
            run_id=RunId(raw["run_id"]),
            bootstrap=raw["bootstrap"],
            registry=raw["registry"],
            prefix=raw["prefix"],
            starts={n: {int(p): o for p, o in ends.items()} for n, ends in raw["starts"].items()},
            topic_ids=raw["topic_ids"],
        )
    except FileNotFoundError as error:
        raise SettingsError(
            f"{folder.root} holds no run: {folder.start.name} is missing",
            hint="name the folder that `sluice run` printed",
        ) from error
    except (KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"{folder.start} cannot be read: {error}",
            hint="it is written once by `sluice run`; restore it, or start a new run",
        ) from error


def is_run(path: Path) -> bool:
    """Whether a folder is the folder of a run."""
    return (path / _START).exists()


def find(name: str, directory: Path) -> RunFolder:
    """Return the folder of a run; `infra.run.naming` says what names one, and raises SettingsError
    when none or several fit.
    """
    if is_run(Path(name)):
        return RunFolder(root=Path(name))
    known = [one.parent.name for one in directory.glob(f"*/{_START}")]
    return RunFolder(root=directory / pick(name, known, where=f"under {directory}"))

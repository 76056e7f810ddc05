"""What the platform remembers between two commands: `platform.json` and the pid files.

Invariants: `platform.json` is replaced in one rename, so a reader sees a whole one; it is written
after each process that starts, so that an `up` killed half-way leaves nothing unknown behind.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra.setup.steps import write_atomically
from schemas.errors import Boundary, SettingsError

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process that we started, told apart from a later one that has its number by chance."""

    name: str
    pid: int
    start_ticks: int
    """Start time as /proc has it: clock ticks since the machine came up."""
    boot_id: str
    """Which run of the machine the ticks belong to."""
    port: int
    since_ms: int
    """Wall clock at the start. Unit: ms since 1970."""
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformState:
    """The platform of one data folder."""

    cluster_id: str
    brokers: int
    bootstrap: str
    registry_url: str
    is_formatted: bool = False
    """Whether every node's store was made; from then on a missing store is a loss."""
    processes: tuple[ProcessRecord, ...] = ()

    def process(self, name: str) -> ProcessRecord | None:
        """The record of a service, or None when it was not started or was stopped."""
        return next((one for one in self.processes if one.name == name), None)

    def with_process(self, record: ProcessRecord) -> "PlatformState":
        """The state with one service started."""
        return replace(self, processes=(*self.without_process(record.name).processes, record))

    def without_process(self, name: str) -> "PlatformState":
        """The state with one service stopped."""
        return replace(self, processes=tuple(one for one in self.processes if one.name != name))


def state_file(data: Path) -> Path:
    """Where a data folder keeps its state."""
    return data / "platform.json"


def read_state(data: Path) -> PlatformState | None:
    """Read the state, None when the folder has none; raises SettingsError when it is damaged."""
    path = state_file(data)
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    try:
        if raw.pop("version") != STATE_VERSION:
            raise ValueError("written by another version of sluice")
        processes = tuple(ProcessRecord(**one) for one in raw.pop("processes"))
        return PlatformState(processes=processes, **raw)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def write_state(data: Path, state: PlatformState) -> None:
    """Replace the state, and one pid file per service for those who look with `cat`."""
    run = data / "run"
    run.mkdir(parents=True, exist_ok=True)
    for old in run.glob("*.pid"):
        if state.process(old.stem) is None:
            old.unlink()
    for record in state.processes:
        write_atomically(run / f"{record.name}.pid", f"{record.pid}\n")
    body = json.dumps({"version": STATE_VERSION, **asdict(state)}, indent=1)
    write_atomically(state_file(data), body + "\n")


def _damaged(path: Path, why: str) -> SettingsError:
    return SettingsError(
        f"{path} cannot be read: {why}",
        boundary=Boundary.PLATFORM,
        hint="end the java processes whose pids stand in the run folder beside it, remove the "
        "file's folder (its topics go with it) or name another with SLUICE_DATA",
    )

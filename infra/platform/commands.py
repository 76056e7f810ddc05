"""`sluice up`, `sluice down` and `sluice status`, as functions that return values.

Invariants: one command at a time works on a data folder; brokers stop before their controller; a
healthy platform is left alone; an address given from outside is checked and never started.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.platform.process import ask_to_stop, is_alive, monotonic_ms, wait_until_gone
from infra.platform.registry import API, registry_answers
from infra.platform.settings import PlatformSettings
from infra.platform.start import PlatformStart
from infra.platform.state import PlatformState, ProcessRecord, read_state, write_state
from infra.platform.status import PlatformStatus, look
from infra.reach import patience_s
from infra.setup.places import Places
from infra.setup.steps import locked
from infra.topic_admin import count_brokers
from schemas.deadline import Deadline
from schemas.errors import Boundary, BusUnreachableError, TransientError

LOCK_WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpReport:
    """What `up` did, or with `dry_run` would do."""

    started: tuple[str, ...]
    seconds: float
    status: PlatformStatus

    @property
    def was_up(self) -> bool:
        """Whether there was nothing to start."""
        return not self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """What `down` did, or with `dry_run` would do."""

    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    """Those that did not end within the budget."""
    seconds: float


def up(settings: PlatformSettings, places: Places, *, dry_run: bool = False) -> UpReport:
    """Start what is not running, and wait until it answers.

    Raises SettingsError (a taken port, another number of brokers, no jars), BusUnreachableError (an
    external Kafka is silent), TransientError (a start failed: carries the last log lines).
    """
    began = time.monotonic()
    if dry_run:
        now = look(settings)
        missing = tuple(one.name for one in now.services if not one.state.is_well)
        return UpReport(started=missing, seconds=0.0, status=now)
    _check_external(settings)
    deadline = _budget(settings.start_ms, "the local platform to start")
    started: tuple[str, ...] = ()
    if _is_local(settings):
        with _alone(settings.data):
            started = PlatformStart(settings, places, deadline).run()
    return UpReport(
        started=started,
        seconds=time.monotonic() - began,
        status=look(settings),
    )


def down(settings: PlatformSettings, *, dry_run: bool = False) -> DownReport:
    """Stop registry and brokers, then the controller; what was committed stays on disk."""
    began = time.monotonic()
    stopped: list[str] = []
    killed: list[str] = []
    with _alone(settings.data):
        state = read_state(settings.data)
        for stage in _stop_order(state):
            alive = [one for one in stage if is_alive(one)]
            stopped += [one.name for one in alive]
            if dry_run:
                continue
            for record in alive:
                ask_to_stop(record)
            names = ", ".join(one.name for one in alive)
            late = wait_until_gone(alive, _budget(settings.stop_ms, f"{names} to stop"))
            killed += [one.name for one in late]
            for record in stage:
                assert state is not None
                state = state.without_process(record.name)
            if state is not None:
                write_state(settings.data, state)
    return DownReport(
        stopped=tuple(stopped), killed=tuple(killed), seconds=time.monotonic() - began
    )


def status(settings: PlatformSettings) -> PlatformStatus:
    """Look at every service; changes nothing and waits at most two seconds for each."""
    return look(settings)


def _stop_order(state: PlatformState | None) -> list[list[ProcessRecord]]:
    """Brokers and registry first: a broker without a controller hangs in its clean stop."""
    if state is None:
        return []
    controllers = [one for one in state.processes if one.name == "controller"]
    others = [one for one in state.processes if one.name != "controller"]
    return [stage for stage in (others, controllers) if stage]


def _check_external(settings: PlatformSettings) -> None:
    if settings.external_bootstrap:
        count_brokers(settings.external_bootstrap, limit_s=patience_s())
    if settings.external_registry and not registry_answers(settings.external_registry):
        raise BusUnreachableError(
            f"the schema registry at {settings.external_registry} does not answer",
            boundary=Boundary.REGISTRY,
            hint=f"is SLUICE_REGISTRY right? The URL often ends in {API}",
        )


def _is_local(settings: PlatformSettings) -> bool:
    return not (settings.external_bootstrap and settings.external_registry)


def _budget(budget_ms: int, waiting_for: str) -> Deadline:
    return Deadline.after(budget_ms, now_ms=monotonic_ms(), waiting_for=waiting_for)


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Keep other commands off the data folder; an unusable folder is an error that names it."""
    try:
        with locked(data / "run" / "lock", LOCK_WAIT_S):
            yield
    except OSError as error:
        raise TransientError(
            f"the data folder {data} cannot be used: {error}",
            boundary=Boundary.PLATFORM,
            hint="is the disk full, or the folder not ours? SLUICE_DATA names another",
        ) from error

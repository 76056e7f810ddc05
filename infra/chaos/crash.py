"""Arms the crash points of a worker: it ends, or stops, exactly at the edge that a file names.

Invariants: nothing is armed unless `SLUICE_CRASH_POINTS` names a folder; an order is carried out
once, since its file is renamed before the process goes; what an order says wrongly is a
SettingsError of the process that reads it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from infra.run.folder import write_atomically
from schemas.crash_points import CrashPoint, arm
from schemas.errors import SettingsError

VARIABLE = "SLUICE_CRASH_POINTS"
"""Names the folder of orders; unset in everything but tests and chaos runs."""
_FIRED = ".fired"


class CrashAct(StrEnum):
    """What happens at the edge."""

    KILL = "kill"
    """SIGKILL: nothing more is done, not even a flush."""
    STOP = "stop"
    """SIGSTOP: the process stands still until somebody continues it."""

    @property
    def signal(self) -> signal.Signals:
        """The signal that the process sends itself."""
        return signal.SIGKILL if self is CrashAct.KILL else signal.SIGSTOP


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOrder:
    """Go at the n-th reach of a point, counted from when the order is first seen."""

    point: CrashPoint
    nth: int = 1
    act: CrashAct = CrashAct.KILL

    def to_text(self) -> str:
        """Return the order as its file holds it."""
        return f"{self.point} {self.nth} {self.act}"

    @classmethod
    def of(cls, text: str) -> CrashOrder:
        """Read an order; raise SettingsError when it names no point, count or act."""
        try:
            point, nth, act = text.split()
            order = cls(point=CrashPoint(point), nth=int(nth), act=CrashAct(act))
        except ValueError as error:
            raise SettingsError(
                f"{text!r} is no crash order: {error}",
                hint=f"POINT NTH kill|stop, where POINT is one of {', '.join(CrashPoint)}",
            ) from error
        if order.nth < 1:
            raise SettingsError(f"{text!r}: the first reach is number 1", hint="raise it")
        return order


def give_order(folder: Path, worker: str, order: CrashOrder) -> None:
    """Leave an order for a worker, `role-index`; it replaces one that was not carried out."""
    write_atomically(folder / worker, order.to_text().encode())


def withdraw_order(folder: Path, worker: str) -> None:
    """Take back an order that was not carried out."""
    (folder / worker).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """An order that was carried out."""

    order: CrashOrder
    at_ms: int
    """Wall clock just before the process went: the renaming of its file. Unit: ms."""


def fired(folder: Path, worker: str) -> Fired | None:
    """Return the order that a worker has carried out since the last look, and forget it."""
    path = folder / (worker + _FIRED)
    try:
        order = CrashOrder.of(path.read_text())
    except FileNotFoundError:
        return None
    at_ms = path.stat().st_ctime_ns // 1_000_000
    path.unlink()
    return Fired(order=order, at_ms=at_ms)


class Watch:
    """Looks for this worker's order at every reach."""

    def __init__(
        self, folder: Path, worker: str, *, send: Callable[[signal.Signals], None]
    ) -> None:
        self._path = folder / worker
        self._fired = folder / (worker + _FIRED)
        self._send = send
        self._seen = -1
        self._order: CrashOrder | None = None
        self._count = 0

    def __call__(self, point: CrashPoint) -> None:
        """Take one reach; carry the order out when it is its turn."""
        try:
            self._look()
            if self._order is None or self._order.point is not point:
                return
            self._count += 1
            if self._count < self._order.nth:
                return
            act, self._order = self._order.act, None
            self._path.rename(self._fired)
        except FileNotFoundError:  # no order, or taken back just now
            self._order, self._seen = None, -1
            return
        self._send(act.signal)

    def _look(self) -> None:
        changed = self._path.stat().st_mtime_ns
        if changed != self._seen:
            self._seen, self._count = changed, 0
            self._order = CrashOrder.of(self._path.read_text())


def arm_from(environ: Mapping[str, str], worker: str) -> None:
    """Arm this process's crash points if the environment asks for it."""
    folder = environ.get(VARIABLE, "")
    if folder:
        arm(Watch(Path(folder), worker, send=lambda number: os.kill(os.getpid(), number)))

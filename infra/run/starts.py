"""The runs that a bus knows, by their Start records."""

from __future__ import annotations

from pathlib import Path

from infra.run.folder import find, is_run, read_start
from infra.run.naming import LAST, pick
from infra.standing import standing
from schemas.deadline import Deadline
from schemas.enums import ControlKind
from schemas.ids import RunId
from schemas.ports import Clock, Consumers, Delivered
from schemas.records.control_event import ControlEvent
from schemas.topics import CONTROL

_READ_MS = 60_000


def named(name: str, directory: Path) -> str:
    """Return the id of a run that is named by its folder or as `last`; any other name as it is.

    Raises SettingsError when `last` is asked for and there is no folder of a run.
    """
    if name == LAST or (name and is_run(Path(name))):
        return read_start(find(name, directory)).run_id
    return name


async def find_start(consumers: Consumers, clock: Clock, name: str) -> ControlEvent:
    """Return the Start record of the run with this id or start of an id.

    Raises SettingsError with the nearest names when none or several fit.
    """
    deadline = Deadline.after(
        _READ_MS, now_ms=clock.monotonic_ms(), waiting_for="the Start records"
    )
    messages = await standing(consumers, {CONTROL: None}, deadline=deadline)
    starts: dict[str, ControlEvent] = {
        m.record.run_id: m.record
        for m in messages
        if isinstance(m, Delivered) and m.record.kind is ControlKind.START
    }
    return starts[pick(name, list(starts), where="on this bus")]


def offsets_of(start: ControlEvent) -> dict[str, dict[int, int]]:
    """Return where a run begins: logical topic name to partition to its first offset."""
    found: dict[str, dict[int, int]] = {}
    for end in start.ends:
        found.setdefault(end.topic, {})[end.partition] = end.offset
    return found


async def run_begin(
    consumers: Consumers, clock: Clock, name: str
) -> tuple[RunId, dict[str, dict[int, int]]]:
    """Return id and start offsets of a run; see `find_start` for the errors."""
    start = await find_start(consumers, clock, name)
    return start.run_id, offsets_of(start)

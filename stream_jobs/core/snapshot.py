"""What a scheduler's snapshot says, so that a restart reads the log from floors and not from the
run's start (design sections 2 and 9).

It stands in `control` and holds only what is settled: counts of settled groups, which ordinals they
are, and from where to read on. Floors agree with one another: every record of a group that is not
settled lies at or above them. So it is right whoever wrote it and however late it is read; one that
is missing costs reading and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from schemas.enums import Purpose
from schemas.ids import WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.parts import LogEnd
from schemas.rules.episodes import SchedulerFences
from schemas.topics import EPISODES, GATE_DECISIONS, TASKS, TRAJECTORIES, Topic
from stream_jobs.core.frontier import Frontier
from stream_jobs.core.ledger import Counts, Ledger, Place

FLOORED = (TASKS, EPISODES, GATE_DECISIONS, TRAJECTORIES)
"""Topics that a restart reads from the snapshot's floors; the others are light and read whole."""
_VERSION = 1
Positions: TypeAlias = Mapping[tuple[str, int], int]
"""Next offset to take by logical topic name and partition. Unit: records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """See the module."""

    floors: Mapping[str, Mapping[int, int]]
    """Next offset to read by topic and partition. Unit: records."""
    fences: Mapping[int, tuple[int, WorkerId]]
    """The SchedulerFence that was current at the floor of each partition of `episodes`."""
    counts: Counts
    """Of settled groups only."""
    end: int
    """Every ordinal below it is settled but for `unsettled`. Unit: tasks."""
    unsettled: tuple[int, ...]

    def begins(self, topic: Topic[Any], starts: Mapping[int, int]) -> dict[int, int]:
        """Return from where to read a topic: its floors, never below the run's starts."""
        floors = self.floors[topic.name]
        return {p: max(start, floors.get(p, start)) for p, start in starts.items()}

    @property
    def ends(self) -> tuple[LogEnd, ...]:
        """The floors as a record lists them."""
        return tuple(
            LogEnd(topic=topic, partition=partition, offset=offset)
            for topic, floors in sorted(self.floors.items())
            for partition, offset in sorted(floors.items())
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The counts by name."""
        return {field.name: getattr(self.counts, field.name) for field in fields(Counts)}

    @property
    def text(self) -> str:
        """The rest, as JSON."""
        return json.dumps(
            {
                "version": _VERSION,
                "end": self.end,
                "unsettled": self.unsettled,
                "fences": [[p, *self.fences[p]] for p in sorted(self.fences)],
            },
            separators=(",", ":"),
        )


def snapshot_of(ledger: Ledger, positions: Positions) -> Snapshot:
    """Return what is settled in a ledger that has taken every record below these positions."""
    lowest: dict[tuple[str, int], int] = {
        place: offset
        for place, offset in positions.items()
        if place[0] in {topic.name for topic in FLOORED}
    }

    def keep(topic: str, at: Place) -> None:
        place = (topic, at[0])
        lowest[place] = min(lowest[place], at[1])

    fences = {
        partition: ledger.fence(partition).current
        for topic, partition in positions
        if topic == EPISODES.name
    }
    for group in sorted(ledger.groups.values(), key=lambda one: -one.issued_offset):
        keep(EPISODES.name, (group.partition, group.issued_offset))
        # The lowest of a partition comes last, and its fence with it.
        fences[group.partition] = group.fence
        for rollout in group.members.values():
            if rollout.evaluated_at is not None:
                keep(TRAJECTORIES.name, rollout.evaluated_at)
    for at in ledger.held_back(TASKS):
        keep(TASKS.name, at)
    for at in ledger.held_back(GATE_DECISIONS):
        keep(GATE_DECISIONS.name, at)
    for at in ledger.held_back(TRAJECTORIES):
        keep(TRAJECTORIES.name, at)
    floors: dict[str, dict[int, int]] = {topic.name: {} for topic in FLOORED}
    for (topic, partition), offset in lowest.items():
        floors[topic][partition] = offset
    end = ledger.closed.end
    return Snapshot(
        floors=floors,
        fences=fences,
        counts=_settled(ledger),
        end=end,
        unsettled=tuple(o for o in range(ledger.closed.lowest_open, end) if o not in ledger.closed),
    )


def _settled(ledger: Ledger) -> Counts:
    counts = ledger.counts
    groups = ledger.groups.values()
    trained = [group for group in groups if group.purpose is Purpose.TRAIN]
    return Counts(
        issued=counts.issued - sum(group.size for group in groups),
        admitted=counts.admitted,
        dropped=counts.dropped,
        abandoned=counts.abandoned - sum(group.abandoned for group in groups),
        evaluated=counts.evaluated
        - sum(rollout.is_evaluated for group in groups for rollout in group.members.values()),
        issued_train=counts.issued_train - sum(group.size for group in trained),
        released_train=counts.released_train - sum(group.abandoned for group in trained),
    )


def restore(ledger: Ledger, snapshot: Snapshot) -> None:
    """Put a snapshot into a ledger that has taken no record of the floored topics yet."""
    ledger.counts = replace(snapshot.counts)
    ledger.closed = Frontier.below(snapshot.end, but=snapshot.unsettled)
    for partition, fence in snapshot.fences.items():
        ledger.fences[partition] = SchedulerFences(fence)


def read_snapshot(event: ControlEvent, *, partitions: int) -> Snapshot | None:
    """Return the snapshot of a record, or None when it is not of this version or not whole.

    partitions: n, which every floored topic but `tasks` must have.
    """
    floors: dict[str, dict[int, int]] = {topic.name: {} for topic in FLOORED}
    for end in event.ends:
        if end.topic not in floors:
            return None
        floors[end.topic][end.partition] = end.offset
    try:
        rest = json.loads(event.snapshot)
        if rest["version"] != _VERSION:
            return None
        counts = Counts(**{field.name: event.counts[field.name] for field in fields(Counts)})
        snapshot = Snapshot(
            floors=floors,
            fences={int(p): (int(epoch), WorkerId(str(who))) for p, epoch, who in rest["fences"]},
            counts=counts,
            end=int(rest["end"]),
            unsettled=tuple(int(ordinal) for ordinal in rest["unsettled"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    grouped = [floors[topic.name].keys() for topic in FLOORED if topic.is_grouped]
    is_whole = all(found == set(range(partitions)) for found in (*grouped, snapshot.fences.keys()))
    return snapshot if is_whole and floors[TASKS.name] else None

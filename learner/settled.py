"""Reads what became of the run's tasks, as far as a checkpoint must say it.

Consumes: `episodes`, `gate-decisions`, `trajectories`, from where it stood at the checkpoint
before; after a restart from the run's beginning. Produces: nothing. Waits for: the broker, inside
the given deadline. Unblocked by: its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learner.core.settled import Settled
from schemas.deadline import Deadline
from schemas.errors import Boundary, TransientError
from schemas.ports import Context, Delivered, LogReader, Message
from schemas.topics import EPISODES, GATE_DECISIONS, TRAJECTORIES

_TOPICS = (EPISODES, GATE_DECISIONS, TRAJECTORIES)
_RECORDS_MAX = 5_000
_POLL_S = 0.25


class SettledLog:
    """The settled tasks of one run, followed from checkpoint to checkpoint."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.state = Settled()
        self._next = {topic.name: dict(context.starts[topic.name]) for topic in _TOPICS}

    async def catch_up(self, *, deadline: Deadline) -> Settled:
        """Read to the ends as they are now and return the state; raise TransientError on the
        deadline.
        """
        # Opened for each checkpoint: between two of them a reader would only fill its buffer.
        reader = self._context.consumers.reader(
            {topic: self._next[topic.name] for topic in _TOPICS}
        )
        try:
            ends: dict[tuple[str, int], int] = {}
            for topic in _TOPICS:
                known = self._next[topic.name]
                for partition, end in (await reader.ends(topic)).items():
                    if partition in known:
                        ends[topic.name, partition] = end
            await self._read(reader, ends, deadline)
        finally:
            for (name, partition), offset in reader.positions().items():
                self._next[name][partition] = offset
            await reader.close()
        return self.state

    async def _read(
        self, reader: LogReader, ends: Mapping[tuple[str, int], int], deadline: Deadline
    ) -> None:
        # In parts, so that a long run's beginning never stands in memory whole.
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            if deadline.is_over(now_ms=self._context.clock.monotonic_ms()):
                raise TransientError(
                    f"{deadline.waiting_for} did not come in time",
                    boundary=Boundary.BUS,
                    hint="is the broker in trouble? learner.start_s bounds the wait",
                )
            for message in await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S):
                self._take(message)

    def _take(self, message: Message) -> None:
        if not isinstance(message, Delivered):
            # Counts for nobody; who owns the topic buries it.
            return
        record: Any = message.record
        if record.run_id != self._context.run_id:
            return
        match message.topic:
            case EPISODES.name:
                place = (message.partition, message.offset, message.timestamp_ms)
                self.state.take_episode(*place, record)
            case GATE_DECISIONS.name:
                self.state.take_decision(record)
            case _:
                self.state.take_trajectory(record)

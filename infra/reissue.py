"""Whether an episode is settled, and its task offered anew as a new one.

A task that is reissued takes the next free ordinal of its run; of two records of an ordinal the
first counts, so that a task source that was faster leaves it to try the next one. Its writer names
the dead letter it comes from, by which a repeat finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from schemas.deadline import Deadline
from schemas.enums import ControlKind
from schemas.errors import SettingsError, TransientError
from schemas.ids import EpisodeId, RunId, WorkerId, group_id, task_id
from schemas.ports import Clock, Delivered, Message, Position, Producer
from schemas.records.task import Task
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.topics import CONTROL, EPISODES, TASKS, TOKENS, TOOL_EVENTS, TRAJECTORIES, Topic

_TRIES_MAX = 5
_SEND_MS = 30_000
_IN_LIFE = frozenset({EPISODES.name, TOKENS.name, TOOL_EVENTS.name})


class Desk(Protocol):
    """What is needed of `infra.dead_letters.Desk`."""

    @property
    def producer(self) -> Producer: ...

    @property
    def clock(self) -> Clock: ...

    def deadline(self, budget_ms: int, waiting_for: str) -> Deadline: ...

    async def read(
        self, topic: Topic[Any], starts: Mapping[int, int] | None = None
    ) -> list[Message]: ...


async def how_it_ended(desk: Desk, episode: EpisodeId, origin: Position) -> str:
    """Return in words why a record of this origin can change nothing for an episode, or "".

    A verdict still counts between the final Ended and the Trajectory; what makes up the episode
    itself does not.
    """
    at = {origin.partition: 0}
    for message in await desk.read(TRAJECTORIES, at):
        if isinstance(message, Delivered) and message.record.episode_id == episode:
            return "has its Trajectory"
    fences, life = SchedulerFences(), EpisodeLife()
    for message in await desk.read(EPISODES, at):
        if not isinstance(message, Delivered):
            continue
        event = message.record
        if event.run_id != episode.rsplit(".", 2)[0] or not fences.take(event):
            continue
        if event.episode_id == episode:
            life.take(message.offset, message.timestamp_ms, event)
    if life.abandoned is not None:
        return f"was abandoned ({life.abandoned.abandon_reason})"
    if life.final_ended is not None and origin.topic in _IN_LIFE:
        return f"ended ({life.final_ended.stop_cause})"
    return ""


def run_and_ordinal(key: bytes) -> tuple[RunId, int]:
    """Return which task a record's key is about: a task's, a group's or an episode's.

    Raises SettingsError when it is about none.
    """
    parts = key.decode(errors="replace").split(".")
    if len(parts) < 2 or not parts[1].isdigit():
        raise SettingsError(
            f"the key {key!r} names no task", hint="only what concerns an episode can be reissued"
        )
    return RunId(parts[0]), int(parts[1])


async def reissue(desk: Desk, key: bytes, *, origin: str) -> Position:
    """Offer the task of a record anew and return where the new Task stands.

    origin: names the dead letter; a task that was reissued for it before is found and returned.
    Raises SettingsError when there is no such task or its run takes no more.
    """
    run, ordinal = run_and_ordinal(key)
    await _refuse_ended(desk, run)
    writer = WorkerId(f"reissue:{origin}")
    for _ in range(_TRIES_MAX):
        firsts = await _first_tasks(desk, run)
        earlier = [one for one in firsts.values() if one.record.writer_id == writer]
        if earlier:
            return Position(TASKS.name, earlier[0].partition, earlier[0].offset)
        if ordinal not in firsts:
            raise SettingsError(
                f"the log holds no task {ordinal} of {run}", hint="was it offered to another bus?"
            )
        task: Task = firsts[ordinal].record
        new = max(firsts) + 1
        record = replace(
            task,
            task_id=task_id(run, new),
            group_id=group_id(run, new),
            ordinal=new,
            at_us=desk.clock.now_us(),
            writer_id=writer,
        )
        deadline = desk.deadline(_SEND_MS, f"the acknowledgement of task {new}")
        await desk.producer.send(TASKS, record, deadline=deadline)
    raise TransientError(
        f"a task source took each of {_TRIES_MAX} ordinals first", hint="try again"
    )


async def _first_tasks(desk: Desk, run: RunId) -> dict[int, Delivered[Task]]:
    firsts: dict[int, Delivered[Task]] = {}
    for message in await desk.read(TASKS):
        if isinstance(message, Delivered) and message.record.run_id == run:
            firsts.setdefault(message.record.ordinal, message)
    return firsts


async def _refuse_ended(desk: Desk, run: RunId) -> None:
    fences = SchedulerFences()
    for message in await desk.read(CONTROL):
        if not isinstance(message, Delivered) or message.record.run_id != run:
            continue
        event = message.record
        ends = event.kind in (ControlKind.DRAINING, ControlKind.END_OF_STREAM)
        if fences.take_control(event) and ends:
            raise SettingsError(
                f"run {run} has reached its budget and takes no more tasks",
                hint="start another run; its task source offers the same data",
            )

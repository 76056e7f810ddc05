"""Writers of one line each beside the real roles: a verifier, an environment without a gateway, and
tasks.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from producers.presence import Presence
from schemas import topics
from schemas.enums import (
    EpisodeEventKind,
    Purpose,
    Role,
    StopCause,
    VerdictCode,
    WorkerStatus,
)
from schemas.ids import EpisodeId, Version, WorkerId, group_id, task_id
from schemas.ports import Context, Delivered
from schemas.records.episode_event import EpisodeEvent
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.verifier_result import VerifierResult
from schemas.rules.episodes import SchedulerFences
from tests.simulation.learning import digest_of
from tests.simulation.world import RUN, World
from tests.support.fake_rollout import WalWriter, ended

DIGEST = "ab" * 32


def task(ordinal: int, chance: random.Random, *, size: int, purpose: Purpose) -> Task:
    """Return a task of the simulated package."""
    return Task(
        run_id=RUN,
        task_id=task_id(RUN, ordinal),
        group_id=group_id(RUN, ordinal),
        ordinal=ordinal,
        purpose=purpose,
        group_size=size,
        environment="sim",
        environment_digest=DIGEST,
        verifier_digest=DIGEST,
        temperature=0.7,
        top_p=1.0,
        seed=chance.randrange(2**31),
        at_us=1,
        writer_id=WorkerId("task-source-0"),
    )


def start_policy() -> PolicyVersion:
    """Return the registry record of the starting weights."""
    return PolicyVersion(
        run_id=RUN,
        epoch=0,
        number=0,
        ordinal=0,
        digest=digest_of(Version(0, 0)),
        location="nowhere",
        at_us=1,
        writer_id=WorkerId("learner-0"),
    )


def verdict(episode: EpisodeId, group: Any, attempt: int, chance: random.Random) -> VerifierResult:
    """Return a verdict, now and then without a reward."""
    code = chance.choice(
        (*(VerdictCode.CORRECT, VerdictCode.WRONG_ANSWER) * 4, VerdictCode.VERIFIER_ERROR)
    )
    reward = {VerdictCode.CORRECT: 1.0, VerdictCode.WRONG_ANSWER: 0.0}.get(code)
    return VerifierResult(
        run_id=RUN,
        episode_id=episode,
        group_id=group,
        attempt=attempt,
        verifier_digest=DIGEST,
        code=code,
        reward=reward,
        at_us=1,
        writer_id=WorkerId("verifier-0"),
    )


async def verify(context: Context, world: World) -> None:
    """Judge every request; after a restart all of them again."""
    starts = dict.fromkeys(range(world.bus.partitions), 0)
    reader = context.consumers.reader({topics.VERIFY_REQUESTS: starts})
    while not context.stop.is_set():
        for message in await reader.poll(records_max=100, timeout_s=1.0):
            if isinstance(message, Delivered):
                asked = message.record
                context.producer.offer(
                    topics.VERDICTS,
                    verdict(asked.episode_id, asked.group_id, asked.attempt, world.chance),
                )


async def roll_out(context: Context, world: World) -> None:
    """Run every lease at once: one Fence, a prompt, some actions, a verdict, an Ended."""
    starts = dict.fromkeys(range(world.bus.partitions), 0)
    # As in the real one: sampled before it is READY, since a lease may come right after that.
    live = await context.consumers.ends(topics.EPISODES)
    await Presence(context, Role.ENVIRONMENT, "", 64).announce(WorkerStatus.READY)
    reader = context.consumers.reader({topics.EPISODES: starts, topics.POLICIES: starts})
    fences = {p: SchedulerFences() for p in starts}
    newest = Version(0, 0)
    running: set[asyncio.Task[None]] = set()
    attempts: dict[EpisodeId, int] = {}
    while not context.stop.is_set():
        for message in await reader.poll(records_max=100, timeout_s=1.0):
            record = message.record if isinstance(message, Delivered) else None
            if isinstance(record, PolicyVersion):
                newest = max(newest, Version(record.epoch, record.number))
            elif (
                isinstance(record, EpisodeEvent)
                and fences[message.partition].take(record)
                and record.kind is EpisodeEventKind.LEASED
                and record.worker_id == context.worker_id
                and record.incarnation == context.incarnation
                and message.offset >= live[message.partition]
                and record.attempt > attempts.get(record.episode_id, 0)
            ):
                attempts[record.episode_id] = record.attempt
                work = asyncio.create_task(_episode(context, world, record, newest))
                running.add(work)
                work.add_done_callback(running.discard)


async def _episode(context: Context, world: World, leased: EpisodeEvent, version: Version) -> None:
    chance = world.chance
    await asyncio.sleep(chance.choice((0.01, 0.1, 1.0)))
    if chance.random() < 0.05:
        return
    if chance.random() < 0.1:
        cause = StopCause.ENVIRONMENT_ERROR
        context.producer.offer(topics.EPISODES, ended(leased, cause=cause))
        return
    writer = WalWriter(
        episode_id=leased.episode_id, group_id=leased.group_id, attempt=leased.attempt, run=RUN
    )
    commits: list[TokenCommit] = [writer.fence()]
    writer.length = _length(world, leased)
    if not writer.length:
        commits.append(writer.prompt(3))
    commits += [writer.action(2, version), writer.action(3, version)]
    position = -1
    for commit in commits:
        position = world.bus.append(topics.TOKENS, commit)
    if chance.random() < 0.9:
        judged = verdict(leased.episode_id, leased.group_id, leased.attempt, chance)
        context.producer.offer(topics.VERDICTS, judged)
    last = replace(ended(leased, wal_position=position), token_count=writer.length)
    context.producer.offer(topics.EPISODES, last)


def _length(world: World, leased: EpisodeEvent) -> int:
    line = world.watch.lines.get(leased.episode_id)
    return line.length if line else 0

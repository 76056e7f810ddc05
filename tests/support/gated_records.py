"""Gated trajectories with payloads for tests of the learner, and a bus that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.enums import (
    PayloadContent,
    RewardSource,
    StopCause,
    Termination,
    VerdictCode,
)
from schemas.ids import RunId, Version, WorkerId, episode_id, group_id, task_id
from schemas.packing import HeavyFields, crc32c, pack_heavy
from schemas.partition import partition_of
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import ChunkRef, PolicySpan
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.trajectory import Trajectory
from schemas.topics import ALL, GATED, PAYLOADS, TRAJECTORIES
from tests.support.memory_bus import MemoryBus

RUN = RunId("0198c0de-0000-7000-8000-000000000001")
START = Version(0, 0)
_DIGEST = "a" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout to be written: ids, log-probs of the actions, and the reward."""

    ordinal: int
    member: int
    prompt: Sequence[int]
    actions: Sequence[int]
    logprobs: Sequence[float]
    reward: float
    version: Version = START


def heavy_of(rollout: Rollout) -> HeavyFields:
    """Return the heavy fields of a rollout."""
    ids = np.array([*rollout.prompt, *rollout.actions], dtype="<i4")
    logprobs = np.zeros(ids.size, dtype="<f4")
    logprobs[len(rollout.prompt) :] = rollout.logprobs
    mask = np.zeros(ids.size, dtype=np.uint8)
    mask[len(rollout.prompt) :] = 1
    return HeavyFields(token_ids=ids.tobytes(), logprobs=logprobs.tobytes(), mask=mask.tobytes())


def trajectory_of(
    rollout: Rollout,
    *,
    group_size: int,
    chunks: Sequence[ChunkRef] = (),
    crc: int = 0,
    length: int = 0,
) -> Trajectory:
    """Return the light record of a rollout."""
    start, end = len(rollout.prompt), len(rollout.prompt) + len(rollout.actions)
    version = rollout.version
    return Trajectory(
        run_id=RUN,
        episode_id=episode_id(RUN, rollout.ordinal, rollout.member),
        group_id=group_id(RUN, rollout.ordinal),
        task_id=task_id(RUN, rollout.ordinal),
        ordinal=rollout.ordinal,
        member=rollout.member,
        group_size=group_size,
        environment="arithmetic",
        policy_digest=_DIGEST,
        tokenizer_digest=_DIGEST,
        template_digest=_DIGEST,
        tool_schema_digest=_DIGEST,
        environment_digest=_DIGEST,
        verifier_digest=_DIGEST,
        spans=(PolicySpan(start=start, end=end, epoch=version.epoch, number=version.number),),
        oldest_epoch=version.epoch,
        oldest_number=version.number,
        termination=Termination.SUCCESS if rollout.reward else Termination.TASK_FAILURE,
        stop_cause=StopCause.POLICY_STOP,
        verdict_code=VerdictCode.CORRECT if rollout.reward else VerdictCode.WRONG_ANSWER,
        reward=rollout.reward,
        reward_source=RewardSource.VERDICT,
        tokens=end,
        action_tokens=end - start,
        prompt_tokens=start,
        chunks=tuple(chunks),
        payload_length=length,
        payload_crc32c=crc,
        at_us=1,
        writer_id=WorkerId("assembler-0"),
    )


class GatedLog:
    """Writes groups into the bus as assembler and gate would."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.offsets: dict[int, int] = {}
        """Next trajectory offset by partition."""

    def payload(self, rollout: Rollout) -> tuple[ChunkRef, bytes]:
        """Write the payload of a rollout as one chunk."""
        blob = pack_heavy(heavy_of(rollout))
        position = self.bus.append(
            PAYLOADS,
            PayloadChunk(
                run_id=RUN,
                episode_id=episode_id(RUN, rollout.ordinal, rollout.member),
                group_id=group_id(RUN, rollout.ordinal),
                content=PayloadContent.TRAJECTORY_TOKENS,
                part=0,
                parts=1,
                body=blob,
                crc32c=crc32c(blob),
                at_us=1,
                writer_id=WorkerId("assembler-0"),
            ),
        )
        return ChunkRef(
            partition=position.partition,
            offset=position.offset,
            length=len(blob),
            crc32c=crc32c(blob),
        ), blob

    def admit(self, rollouts: Sequence[Rollout], *, input_offset: int = 0) -> list[GatedTrajectory]:
        """Write a group's payloads and `gated` records; return the records."""
        rewards = [rollout.reward for rollout in rollouts]
        written = []
        for rollout in rollouts:
            ref, blob = self.payload(rollout)
            trajectory = trajectory_of(
                rollout, group_size=len(rollouts), chunks=[ref], crc=crc32c(blob), length=len(blob)
            )
            gated = self.gated(trajectory, rewards, input_offset)
            self.bus.append(GATED, gated)
            written.append(gated)
        return written

    def gated(
        self, trajectory: Trajectory, rewards: Sequence[float], input_offset: int = 0
    ) -> GatedTrajectory:
        """Return the `gated` record of a trajectory, without writing it."""
        partition = partition_of(trajectory.group_id, self.bus.partitions)
        offset = self.offsets.get(partition, 0)
        self.offsets[partition] = offset + 1
        return GatedTrajectory(
            run_id=RUN,
            episode_id=trajectory.episode_id,
            group_id=trajectory.group_id,
            trajectory_frame=self.bus.codec.encode(TRAJECTORIES, trajectory),
            trajectory_offset=offset,
            trajectory_us=self.bus.clock.now_us(),
            decision_offset=0,
            input_offset=input_offset,
            group_mean=float(np.mean(rewards)),
            group_deviation=float(np.std(rewards)),
            group_count=len(rewards),
            at_us=1,
            writer_id=WorkerId("gate-0"),
        )


def starts_of(bus: MemoryBus) -> dict[str, dict[int, int]]:
    """Return the start of every partition of every topic."""
    return {topic.name: dict.fromkeys(range(bus.partitions), 0) for topic in ALL}


def random_group(
    ordinal: int,
    *,
    size: int = 4,
    seed: int = 0,
    version: Version = START,
    vocabulary: int = 256,
) -> list[Rollout]:
    """Return a group with a shared prompt and rewards of both kinds."""
    rng = np.random.default_rng(1000 * seed + ordinal)
    prompt = [int(t) for t in rng.integers(5, vocabulary, int(rng.integers(5, 12)))]
    rollouts = []
    for member in range(size):
        actions = [int(t) for t in rng.integers(5, vocabulary, int(rng.integers(2, 9)))]
        rollouts.append(
            Rollout(
                ordinal=ordinal,
                member=member,
                prompt=prompt,
                actions=actions,
                logprobs=[-float(rng.uniform(4.5, 7.5)) for _ in actions],
                reward=float(member % 2),
                version=version,
            )
        )
    return rollouts


def with_reward(rollouts: Sequence[Rollout], reward: float) -> list[Rollout]:
    """Return the group with one reward for all, which leaves no advantage."""
    return [replace(rollout, reward=reward) for rollout in rollouts]

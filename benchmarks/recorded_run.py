"""A long sound run, made up record by record: what a bus would hold after it, for readers to be
measured on.

Groups of eight rollouts go in waves, one wave an optimiser step; within a wave the commits of all
rollouts are interleaved, as a busy partition holds them. Offsets are counted here, so the topics
must be empty when the frames are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from schemas.codec import Codec
from schemas.enums import (
    ControlKind,
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    PayloadContent,
    Purpose,
    RewardSource,
    StopCause,
    Termination,
    TokenKind,
    ToolEventKind,
    ToolExit,
    VerdictCode,
)
from schemas.ids import (
    EpisodeId,
    GroupId,
    RunId,
    TaskId,
    Version,
    WorkerId,
    episode_id,
    group_id,
    group_of_episode,
)
from schemas.packing import (
    HeavyFields,
    Span,
    Timing,
    crc32c,
    pack_floats,
    pack_heavy,
    pack_ids,
    pack_logprobs,
    pack_spans,
    pack_timing,
)
from schemas.partition import partition_of
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, LogEnd, MemberDecision, TrainedMember
from schemas.records.payload_chunk import PayloadChunk
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.records.verify_request import VerifyRequest
from schemas.topics import (
    ALL,
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    PAYLOADS,
    POLICIES,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    VERIFY_REQUESTS,
    Topic,
)  # fmt: skip

RUN = RunId("0190a0b0-1234-7abc-8def-0123456789ab")
TOKENS_PER_COMMIT = 64
_GROUP = 8
_POOL = 512
_DIGEST = "ab" * 32
_DIGESTS = (
    "tokenizer_digest",
    "template_digest",
    "tool_schema_digest",
    "environment_digest",
    "verifier_digest",
)
_SCHEDULER, _WORKER = WorkerId("scheduler-0"), WorkerId("environment-0")
_SETTINGS = '{"gate": {"max_lag_steps": 4, "max_age_s": 600}}'
Frame = tuple[Topic[Any], int, str, bytes]
"""Topic, partition, key and framed bytes, in the order of writing."""


@dataclass(slots=True, kw_only=True)
class _Rollout:
    episode: EpisodeId
    group: GroupId
    partition: int
    seq: int = 0
    length: int = 0
    action: int = 0
    ids: list[bytes] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    mask: list[bytes] = field(default_factory=list)
    at: int = -1
    """WAL offset of its last record."""
    trajectory: int = -1
    gated: int = -1


class LongRun:
    """The frames of a run of a given size; `commits` is how many WAL records it will hold."""

    def __init__(
        self, *, steps: int, groups: int, commits_per_episode: int, partitions: int, seed: int = 0
    ) -> None:
        """commits_per_episode: at least 6 (Fence, Prompt, Actions, one Observation)."""
        self.commits = steps * groups * _GROUP * commits_per_episode
        self.episodes = steps * groups * _GROUP
        self._steps, self._groups, self._per = steps, groups, commits_per_episode
        self._partitions = partitions
        self._codec = Codec.local()
        self._next: dict[tuple[str, int], int] = defaultdict(int)
        self._last = 0
        random = Random(seed)
        self._pool = [
            (
                pack_ids(random.randrange(50_000) for _ in range(TOKENS_PER_COMMIT)),
                pack_logprobs(-random.expovariate(1.0) for _ in range(TOKENS_PER_COMMIT)),
            )
            for _ in range(_POOL)
        ]
        self._drawn = 0
        self._sampling = pack_floats((1.0, 1.0, 0.0, 512.0))
        self._now_us = 1_764_442_000_000_000

    def frames(self) -> Iterator[Frame]:
        """Yield every record once, in an order in which a run could have written it."""
        yield from self._begin()
        for step in range(self._steps):
            yield from self._wave(step)
        yield self._control(
            ControlKind.END_OF_STREAM,
            counts={"issued": self.episodes, "admitted": self.episodes},
        )
        yield self._learner(LearnerEventKind.CLOSED)

    def _put(self, topic: Topic[Any], record: Any, partition: int = 0) -> Frame:
        self._last = self._next[topic.name, partition]
        self._next[topic.name, partition] += 1
        return topic, partition, topic.key(record), self._codec.encode(topic, record)

    def _control(self, kind: ControlKind, **fields: Any) -> Frame:
        record = ControlEvent(run_id=RUN, kind=kind, at_us=1, writer_id=_WORKER, **fields)
        return self._put(CONTROL, record)

    def _begin(self) -> Iterator[Frame]:
        ends = tuple(
            LogEnd(topic=topic.name, partition=partition, offset=0)
            for topic in ALL
            for partition in range(self._partitions)
        )
        yield self._control(ControlKind.START, settings=_SETTINGS, ends=ends)
        fence = EpisodeEvent(
            run_id=RUN, episode_id=EpisodeId(""), group_id=GroupId(""),
            kind=EpisodeEventKind.SCHEDULER_FENCE, scheduler_epoch=1, scheduler_id=_SCHEDULER,
            at_us=1, writer_id=_SCHEDULER,
        )  # fmt: skip
        for partition in range(self._partitions):
            yield self._put(EPISODES, fence, partition)
        yield self._policy(0)
        yield self._learner(LearnerEventKind.EPOCH_STARTED)
        yield self._learner(LearnerEventKind.RESTORED)

    def _policy(self, number: int) -> Frame:
        record = PolicyVersion(
            run_id=RUN, epoch=int(number > 0), number=number, ordinal=number,
            parent_epoch=int(number > 1), parent_number=max(0, number - 1),
            digest=f"{number:064x}", location="x", at_us=1, writer_id=_WORKER,
        )  # fmt: skip
        return self._put(POLICIES, record, number % self._partitions)

    def _learner(self, kind: LearnerEventKind, **fields: Any) -> Frame:
        record = LearnerEvent(
            run_id=RUN, kind=kind, epoch=1, learner_id=WorkerId("learner-0"), at_us=1,
            writer_id=WorkerId("learner-0"), **fields,
        )  # fmt: skip
        return self._put(LEARNER_STEPS, record)

    def _wave(self, step: int) -> Iterator[Frame]:
        version = max(0, step - 1)
        rollouts: list[_Rollout] = []
        for ordinal in range(step * self._groups, (step + 1) * self._groups):
            yield from self._issue(ordinal, rollouts)
        half = self._per // 2
        for place in range(self._per):
            for one in rollouts:
                if place == half:
                    yield from self._tool(one)
                yield self._commit(one, place, half, version)
        for one in rollouts:
            yield from self._finish(one, version)
        for begin in range(0, len(rollouts), _GROUP):
            yield from self._decide(rollouts[begin : begin + _GROUP])
        members = tuple(
            TrainedMember(
                episode_id=one.episode, group_id=one.group, partition=one.partition,
                offset=one.gated, trajectory_offset=one.trajectory, lag_steps=step - version,
                age_ms=50, action_tokens=one.action, kept_tokens=one.action, reward=1.0,
                environment="bench",
            )
            for one in rollouts
        )  # fmt: skip
        number = step + 1
        digest, at = f"{number:064x}", {"number": number, "ordinal": number}
        yield self._learner(LearnerEventKind.STEP, policy_digest=digest, trained=members, **at)
        yield self._policy(number)
        yield self._learner(LearnerEventKind.CHECKPOINTED, **at)

    def _issue(self, ordinal: int, rollouts: list[_Rollout]) -> Iterator[Frame]:
        group = group_id(RUN, ordinal)
        partition = partition_of(group, self._partitions)
        task = Task(
            run_id=RUN, task_id=TaskId(f"{RUN}.{ordinal}"), group_id=group, ordinal=ordinal,
            purpose=Purpose.TRAIN, environment="bench", group_size=_GROUP, at_us=1,
            writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(TASKS, task, partition)
        for member in range(_GROUP):
            one = _Rollout(
                episode=episode_id(RUN, ordinal, member), group=group, partition=partition
            )
            rollouts.append(one)
            yield self._event(
                one, EpisodeEventKind.ISSUED, _SCHEDULER, purpose=Purpose.TRAIN, member=member,
                group_size=_GROUP,
            )  # fmt: skip
            yield self._event(
                one, EpisodeEventKind.LEASED, _SCHEDULER, attempt=1, worker_id=_WORKER,
                lease_ms=60_000,
            )  # fmt: skip
            yield self._tool_event(one, ToolEventKind.FENCE)

    def _event(
        self, one: _Rollout, kind: EpisodeEventKind, writer: WorkerId, **fields: Any
    ) -> Frame:
        record = EpisodeEvent(
            run_id=RUN, episode_id=one.episode, group_id=one.group, kind=kind, scheduler_epoch=1,
            scheduler_id=_SCHEDULER, at_us=1, writer_id=writer, **fields,
        )  # fmt: skip
        return self._put(EPISODES, record, one.partition)

    def _tool_event(self, one: _Rollout, kind: ToolEventKind, **fields: Any) -> Frame:
        record = ToolEvent(
            run_id=RUN, episode_id=one.episode, group_id=one.group, kind=kind, attempt=1,
            writer_id=_WORKER, incarnation="e", at_us=1, **fields,
        )  # fmt: skip
        return self._put(TOOL_EVENTS, record, one.partition)

    def _tool(self, one: _Rollout) -> Iterator[Frame]:
        call = {"call_key": f"{one.episode}/0/0/0", "tool": "add"}
        yield self._tool_event(
            one, ToolEventKind.INTENT, wal_position=one.at, deadline_us=1, **call
        )
        yield self._tool_event(
            one, ToolEventKind.RESULT, intent_offset=self._last, exit_class=ToolExit.OK, **call
        )

    def _commit(self, one: _Rollout, place: int, half: int, version: int) -> Frame:
        kind = TokenKind.ACTION
        fields: dict[str, Any] = {}
        if place == 0:
            kind = TokenKind.FENCE
        elif place == 1:
            kind = TokenKind.PROMPT
        elif place == half:
            # The Result that was written just before is the one that it shows.
            kind, fields = TokenKind.OBSERVATION, {"rests_on": one.at, "result_offset": self._last}
        ids, logprobs, spans, count = b"", b"", b"", 0
        if kind is not TokenKind.FENCE:
            count = TOKENS_PER_COMMIT
            self._drawn = (self._drawn + 1) % _POOL
            ids, logprobs = self._pool[self._drawn]
        is_action = kind is TokenKind.ACTION
        if is_action:
            end = one.length + count
            spans = pack_spans([Span(one.length, end, Version(int(version > 0), version))])
        logprobs = logprobs if is_action else b""
        timing = self._timing() if is_action else b""
        frame = self._put(
            TOKENS,
            TokenCommit(
                run_id=RUN, episode_id=one.episode, group_id=one.group, attempt=1, fence_number=1,
                writer_id=WorkerId("inference-0"), incarnation="i", producer_number=1, kind=kind,
                seq=place - 1, start=one.length, count=count, token_ids=ids, logprobs=logprobs,
                spans=spans, sampling=self._sampling if is_action else b"", timing=timing,
                crc32c=crc32c(ids, logprobs, spans), at_us=self._now_us, **fields,
            ),
            one.partition,
        )  # fmt: skip
        one.ids.append(ids)
        one.logprobs.append(logprobs or bytes(4 * count))
        one.mask.append(bytes((is_action,)) * count)
        one.length += count
        one.action += count if is_action else 0
        one.at = self._last
        return frame

    def _timing(self) -> bytes:
        self._now_us += 97
        return pack_timing(
            Timing(
                requested_us=self._now_us - 90_000,
                first_token_us=self._now_us - 60_000,
                last_token_us=self._now_us,
                prefilled_tokens=180,
                reused_tokens=0,
            )
        )

    def _finish(self, one: _Rollout, version: int) -> Iterator[Frame]:
        common: dict[str, Any] = {
            "run_id": RUN,
            "episode_id": one.episode,
            "group_id": one.group,
            "at_us": 1,
        }
        request = VerifyRequest(
            **common, task_id=TaskId("t"), attempt=1, environment="bench", wal_position=one.at,
            writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(VERIFY_REQUESTS, request, one.partition)
        requested = self._last
        yield self._event(
            one, EpisodeEventKind.ENDED, _WORKER, attempt=1, stop_cause=StopCause.POLICY_STOP,
            wal_position=one.at, token_count=one.length,
        )  # fmt: skip
        ended = self._last
        verdict = VerifierResult(
            **common, attempt=1, verifier_digest=_DIGEST, code=VerdictCode.CORRECT, reward=1.0,
            request_offset=requested, writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(VERDICTS, verdict, one.partition)
        judged = self._last
        digests: dict[str, Any] = dict.fromkeys(_DIGESTS, _DIGEST)
        heavy = HeavyFields(
            token_ids=b"".join(one.ids), logprobs=b"".join(one.logprobs), mask=b"".join(one.mask)
        )
        body = pack_heavy(heavy)
        crc = crc32c(body)
        chunk = PayloadChunk(
            **common, content=PayloadContent.TRAJECTORY_TOKENS, part=0, parts=1, body=body,
            crc32c=crc, writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(PAYLOADS, chunk, one.partition)
        ref = ChunkRef(partition=one.partition, offset=self._last, length=len(body), crc32c=crc)
        sealed = Trajectory(
            **common, **digests, task_id=TaskId("t"), attempt=1, policy_digest=f"{version:064x}",
            oldest_epoch=int(version > 0), oldest_number=version, termination=Termination.SUCCESS,
            stop_cause=StopCause.POLICY_STOP, verdict_code=VerdictCode.CORRECT, reward=1.0,
            reward_source=RewardSource.VERDICT, tokens=one.length, action_tokens=one.action,
            chunks=(ref,), ended_offset=ended, verdict_offset=judged, writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(TRAJECTORIES, sealed, one.partition)
        one.trajectory = self._last

    def _decide(self, rollouts: list[_Rollout]) -> Iterator[Frame]:
        first = rollouts[0]
        admit = GateOutcome.ADMIT
        members = tuple(
            MemberDecision(episode_id=r.episode, trajectory_offset=r.trajectory, outcome=admit)
            for r in rollouts
        )
        decision = GateDecision(
            run_id=RUN, group_id=group_of_episode(first.episode), members=members, at_us=1,
            writer_id=_WORKER,
        )  # fmt: skip
        yield self._put(GATE_DECISIONS, decision, first.partition)
        decided = self._last
        for one in rollouts:
            gated = GatedTrajectory(
                run_id=RUN, episode_id=one.episode, group_id=one.group, trajectory_frame=b"",
                trajectory_offset=one.trajectory, trajectory_us=1, decision_offset=decided,
                input_offset=one.trajectory, at_us=1, writer_id=_WORKER,
            )  # fmt: skip
            yield self._put(GATED, gated, one.partition)
            one.gated = self._last

"""A small sound run, written record by record onto the memory bus, for tests that break it on
purpose.

Five rollouts: two trained together (one of them resumed by a second attempt, with a fork and a tool
call each), one dropped by the gate, one abandoned, one evaluated. `change` sees each record before
it is written and returns what is written in its place: the record, another, several, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from schemas.enums import (
    AbandonReason,
    ControlKind,
    CutReason,
    DropReason,
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
    StopCause,
    TokenKind,
    ToolEventKind,
    ToolExit,
)
from schemas.ids import (
    EpisodeId,
    GroupId,
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
    crc32c,
    pack_heavy,
    pack_ids,
    pack_logprobs,
    pack_spans,
)
from schemas.partition import partition_of
from schemas.records.control_event import ControlEvent
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, MemberDecision
from schemas.records.policy_version import PolicyVersion
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.topics import (
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
)
from tests.support.memory_bus import MemoryBus
from tests.support.run_records import (
    RUN,
    WRITER,
    chunk_of,
    decision,
    gated,
    member,
    trajectory,
    verdict_on,
    verify_request,
)

TRAINED, RESUMED = episode_id(RUN, 0, 0), episode_id(RUN, 0, 1)
DROPPED, ABANDONED, EVALUATED = (episode_id(RUN, ordinal, 0) for ordinal in (1, 2, 3))
HEAVY = HeavyFields(
    token_ids=pack_ids([*range(4), *range(4), *range(2), *range(3)]),
    logprobs=pack_logprobs([0.0] * 4 + [-0.5] * 4 + [0.0] * 2 + [-0.5] * 3),
    mask=bytes([0] * 4 + [1] * 4 + [0] * 2 + [1] * 3),
)
"""Prompt, what the fork left of the first turn, the tool's answer, the second turn."""
SETTINGS = '{"training": {"max_lag_steps": 4, "max_age_s": 600.0}}'
Change = Callable[[Topic[Any], Any], Any]
_SCHEDULER = WorkerId("scheduler-0")


class RecordedRun:
    """Writes the run onto `bus`; `write` may be called once."""

    def __init__(
        self,
        change: Change | None = None,
        *,
        closed: bool = True,
        partitions: int = 1,
        at: Callable[[str, int], int] = partition_of,
    ) -> None:
        """Let `change` spoil records on their way; `at` says where a group's records stand."""
        self.bus = MemoryBus(partitions=partitions)
        self._partitions, self._at = partitions, at
        self._change = change or (lambda _, record: record)
        self._closed = closed
        self._digests = {(0, 0): "sha-0", (1, 1): "sha-1"}

    def put(self, topic: Topic[Any], record: Any) -> int:
        """Write a record and return the offset of the last one written for it."""
        written = self._change(topic, record)
        records: Sequence[Any] = written if isinstance(written, list) else [written]
        partition = self.partition(getattr(record, "group_id", ""))
        for one in records:
            if isinstance(one, bytes):
                self.bus.append_raw(topic, partition=partition, raw=one)
            elif one is not None:
                self.bus.append(topic, one, partition=partition)
        return self.bus.end(topic.name, partition) - 1

    def partition(self, group: str) -> int:
        """Return where the records of a group stand; 0 for those of no group."""
        return self._at(group, self._partitions) if group else 0

    def write(self) -> MemoryBus:
        """Write everything and return the bus."""
        self._begin()
        groups = ((0, 2, Purpose.TRAIN), (1, 1, Purpose.TRAIN), (2, 1, Purpose.TRAIN))
        for ordinal, size, purpose in (*groups, (3, 1, Purpose.EVALUATE)):
            self._issue(ordinal, size, purpose)
        first, second = self._episode(TRAINED), self._episode(RESUMED, attempts=2)
        third, last = self._episode(DROPPED), self._episode(EVALUATED)
        self._event(
            ABANDONED, EpisodeEventKind.ABANDONED, abandon_reason=AbandonReason.GROUP_DEADLINE
        )
        self._decide(0, {TRAINED: first, RESUMED: second}, DropReason.NONE)
        self._decide(1, {DROPPED: third}, DropReason.LAG)
        self.put(GATE_DECISIONS, decision(2, (), abandoned=(ABANDONED,)))
        del last
        self._learn({TRAINED: first, RESUMED: second})
        return self.bus

    def _begin(self) -> None:
        self.put(
            CONTROL,
            ControlEvent(
                run_id=RUN, kind=ControlKind.START, settings=SETTINGS, at_us=0, writer_id=WRITER
            ),
        )
        fence = EpisodeEvent(
            run_id=RUN, episode_id=EpisodeId(""), group_id=GroupId(""),
            kind=EpisodeEventKind.SCHEDULER_FENCE, scheduler_epoch=1, scheduler_id=_SCHEDULER,
            at_us=0, writer_id=_SCHEDULER,
        )  # fmt: skip
        for partition in range(self._partitions):
            self.bus.append(EPISODES, fence, partition=partition)
        self._publish(Version(0, 0), 0)

    def _publish(self, version: Version, ordinal: int) -> None:
        self.put(
            POLICIES,
            PolicyVersion(
                run_id=RUN,
                epoch=version.epoch,
                number=version.number,
                ordinal=ordinal,
                digest=self._digests[version.epoch, version.number],
                location="x",
                at_us=0,
                writer_id=WRITER,
            ),
        )

    def _issue(self, ordinal: int, size: int, purpose: Purpose) -> None:
        self.put(
            TASKS,
            Task(
                run_id=RUN,
                task_id=TaskId(f"{RUN}.{ordinal}"),
                group_id=group_id(RUN, ordinal),
                ordinal=ordinal,
                purpose=purpose,
                environment="counter",
                group_size=size,
                at_us=0,
                writer_id=WRITER,
            ),
        )
        for place in range(size):
            self._event(
                episode_id(RUN, ordinal, place),
                EpisodeEventKind.ISSUED,
                purpose=purpose,
                group_size=size,
            )

    def _event(self, episode: EpisodeId, kind: EpisodeEventKind, **fields: Any) -> int:
        return self.put(
            EPISODES,
            EpisodeEvent(
                run_id=RUN,
                episode_id=episode,
                group_id=group_of_episode(episode),
                kind=kind,
                scheduler_epoch=1,
                scheduler_id=_SCHEDULER,
                at_us=0,
                writer_id=fields.pop("writer_id", _SCHEDULER),
                **fields,
            ),
        )

    def _commit(self, episode: EpisodeId, kind: TokenKind, attempt: int, **fields: Any) -> int:
        count, start = fields.pop("count", 0), fields.get("start", 0)
        ids = pack_ids(range(count))
        is_action = kind is TokenKind.ACTION
        logprobs = pack_logprobs([-0.5] * count) if is_action else b""
        spans = pack_spans([Span(start, start + count, Version(0, 0))]) if is_action else b""
        return self.put(
            TOKENS,
            TokenCommit(
                run_id=RUN,
                episode_id=episode,
                group_id=group_of_episode(episode),
                attempt=attempt,
                fence_number=1,
                writer_id=WorkerId("inference-0"),
                incarnation="i",
                producer_number=1,
                kind=kind,
                count=count,
                token_ids=ids,
                logprobs=logprobs,
                spans=spans,
                crc32c=crc32c(ids, logprobs, spans),
                at_us=0,
                **fields,
            ),
        )

    def _tool(self, episode: EpisodeId, kind: ToolEventKind, attempt: int, **fields: Any) -> int:
        return self.put(
            TOOL_EVENTS,
            ToolEvent(
                run_id=RUN,
                episode_id=episode,
                group_id=group_of_episode(episode),
                kind=kind,
                attempt=attempt,
                writer_id=WorkerId("environment-0"),
                incarnation="i",
                at_us=0,
                **fields,
            ),
        )

    def _episode(self, episode: EpisodeId, *, attempts: int = 1) -> int:
        """Run one rollout to its Trajectory; return the Trajectory's offset."""
        worker = WorkerId("environment-0")
        seq = 0
        for attempt in range(1, attempts + 1):
            self._event(
                episode,
                EpisodeEventKind.LEASED,
                attempt=attempt,
                worker_id=worker,
                incarnation="i",
                lease_ms=60_000,
            )
            tools = self._tool(episode, ToolEventKind.FENCE, attempt)
            self._commit(episode, TokenKind.FENCE, attempt)
            if attempt == 1:
                tools = self._first_turn(episode)
                seq = 4
            else:
                seq = 0
        start = 10
        end = self._commit(
            episode, TokenKind.ACTION, attempts, seq=seq, start=start, count=3, turn=1
        )
        request = self.put(VERIFY_REQUESTS, verify_request(episode, attempts, end, worker))
        ended = self._event(
            episode,
            EpisodeEventKind.ENDED,
            attempt=attempts,
            stop_cause=StopCause.POLICY_STOP,
            wal_position=end,
            tool_position=tools,
            token_count=13,
            writer_id=worker,
        )
        verdict = self.put(VERDICTS, verdict_on(episode, attempts, request))
        return self._seal(episode, attempts, end, ended, verdict)

    def _first_turn(self, episode: EpisodeId) -> int:
        """Write the first turn and its tool call; return the offset of the call's Result."""
        self._commit(episode, TokenKind.PROMPT, 1, seq=0, start=0, count=4)
        self._commit(episode, TokenKind.ACTION, 1, seq=1, start=4, count=6)
        # The fork takes back two action tokens, so the sibling segment holds two.
        cut = self._commit(episode, TokenKind.CUT, 1, seq=2, start=8, cut_reason=CutReason.FORK)
        call = {"call_key": f"{episode}/0/0/0", "tool": "add"}
        intent = self._tool(
            episode, ToolEventKind.INTENT, 1, wal_position=cut, deadline_us=1, **call
        )
        result = self._tool(
            episode,
            ToolEventKind.RESULT,
            1,
            intent_offset=intent,
            exit_class=ToolExit.OK,
            **call,
        )
        self._commit(
            episode,
            TokenKind.OBSERVATION,
            1,
            seq=3,
            start=8,
            count=2,
            rests_on=cut,
            result_offset=result,
        )
        return result

    def _seal(
        self, episode: EpisodeId, attempt: int, tokens_end: int, ended: int, verdict: int
    ) -> int:
        body = pack_heavy(HEAVY)
        chunk = self.put(PAYLOADS, chunk_of(episode, body))
        ref = ChunkRef(
            partition=self.partition(group_of_episode(episode)),
            offset=chunk,
            length=len(body),
            crc32c=crc32c(body),
        )
        sealed = trajectory(episode, attempt, ended, verdict, ref)
        return self.put(TRAJECTORIES, replace(sealed, tokens_end=tokens_end))

    def _decide(self, ordinal: int, members: dict[EpisodeId, int], reason: DropReason) -> None:
        outcome = GateOutcome.ADMIT if reason is DropReason.NONE else GateOutcome.DROP
        decided = [
            MemberDecision(
                episode_id=episode, trajectory_offset=offset, outcome=outcome, reason=reason
            )
            for episode, offset in members.items()
        ]
        offset = self.put(GATE_DECISIONS, decision(ordinal, decided))
        for episode, at in members.items() if outcome is GateOutcome.ADMIT else ():
            self.put(GATED, gated(episode, at, offset))

    def _learner(self, kind: LearnerEventKind, **fields: Any) -> int:
        return self.put(
            LEARNER_STEPS,
            LearnerEvent(
                run_id=RUN,
                kind=kind,
                epoch=1,
                learner_id=WorkerId("learner-0"),
                at_us=0,
                writer_id=WorkerId("learner-0"),
                **fields,
            ),
        )

    def _learn(self, members: dict[EpisodeId, int]) -> None:
        self._learner(LearnerEventKind.EPOCH_STARTED)
        self._learner(LearnerEventKind.RESTORED)
        trained = tuple(
            replace(
                member(episode, offset, at), partition=self.partition(group_of_episode(episode))
            )
            for offset, (episode, at) in enumerate(members.items())
        )
        self._learner(
            LearnerEventKind.STEP, number=1, ordinal=1, policy_digest="sha-1", trained=trained
        )
        self._publish(Version(1, 1), 1)
        self._learner(LearnerEventKind.CHECKPOINTED, number=1, ordinal=1)
        if self._closed:
            self.put(
                CONTROL,
                ControlEvent(
                    run_id=RUN,
                    kind=ControlKind.END_OF_STREAM,
                    counts={"issued": 5, "admitted": 2, "abandoned": 1, "evaluated": 1},
                    at_us=0,
                    writer_id=WRITER,
                ),
            )
            self._learner(LearnerEventKind.CLOSED)

"""`sluice replay`: the whole story of one episode, told from the topics by the rules that every
reader shares.

Reads only the partition of the episode's group, and the learner's log. The shape of `to_json` is an
interface (docs/audit.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.audit.reading import between
from infra.story import Commit, Moment, moment_of
from infra.story_tokens import Standing, standings, timing_of
from schemas.codec import Codec
from schemas.enums import GateOutcome, TokenKind
from schemas.errors import PoisonRecordError, SettingsError
from schemas.ids import EpisodeId, GroupId, group_of_episode
from schemas.packing import unpack_ids, unpack_logprobs, unpack_spans
from schemas.partition import partition_of
from schemas.ports import Consumers, Delivered, Starts
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import StepRef, TrainedMember
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.rules.decisions import Decisions
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.rules.lineage import LearnerLog
from schemas.rules.tools import ToolLog
from schemas.rules.wal import EpisodeWal, Verdict
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    VERIFY_REQUESTS,
    Topic,
)

_GROUPED: tuple[Topic[Any], ...] = (
    EPISODES,
    TOOL_EVENTS,
    TOKENS,
    VERIFY_REQUESTS,
    VERDICTS,
    TRAJECTORIES,
    GATE_DECISIONS,
    GATED,
)


@dataclass(slots=True)
class Story:
    """All that the topics say of one episode."""

    run_id: str
    episode_id: EpisodeId
    group_id: GroupId
    partition: int
    life: EpisodeLife = field(default_factory=EpisodeLife)
    wal: EpisodeWal = field(default_factory=EpisodeWal)
    tools: ToolLog = field(default_factory=ToolLog)
    task: Task | None = None
    moments: list[Moment] = field(default_factory=list)
    """Every record in the order of broker time, whether it counts or not."""
    commits: list[Commit] = field(default_factory=list)
    """Every WAL record in log order."""
    verdict: VerifierResult | None = None
    """The first of the final attempt."""
    trajectory: Trajectory | None = None
    """The first."""
    decision: GateDecision | None = None
    """The first of the group."""
    trained: TrainedMember | None = None
    step: StepRef | None = None
    """The step of the present lineage that trained it."""
    survives: bool = False
    rolled_back: list[StepRef] = field(default_factory=list)
    """Steps that trained it and were lost to a restore, in log order."""
    skipped: str = ""
    """Why the learner discarded it; empty when it did not."""


async def replay(
    consumers: Consumers,
    run_id: str,
    episode_id: EpisodeId,
    starts: Starts | None = None,
    *,
    codec: Codec | None = None,
) -> Story:
    """Read the story of an episode. `codec` decodes the framed Task; without it the task stays
    unknown.

    Raises SettingsError when no record names the episode, BusUnreachableError when no broker
    answers.
    """
    group = group_of_episode(episode_id)
    partition = partition_of(group, await consumers.partitions(EPISODES))
    story = Story(run_id, episode_id, group, partition)
    teller = _Teller(story, codec)
    for topic in _GROUPED:
        begin = {partition: (starts or {}).get(topic.name, {}).get(partition, 0)}
        end = {partition: dict(await consumers.ends(topic))[partition]}
        async for messages in between(consumers, topic, begin, end):
            for message in messages:
                if isinstance(message, Delivered) and message.record.run_id == run_id:
                    teller.take(topic, message)
    await _learner(consumers, run_id, starts, teller)
    teller.finish()
    if not story.moments:
        raise SettingsError(
            f"no record of {episode_id} in partition {partition}",
            hint="`sluice tail episodes --from-start` shows episode ids",
        )
    return story


async def _learner(
    consumers: Consumers, run_id: str, starts: Starts | None, teller: _Teller
) -> None:
    ends = dict(await consumers.ends(LEARNER_STEPS))
    known = (starts or {}).get(LEARNER_STEPS.name, {})
    begin = {p: known.get(p, 0) for p in ends}
    async for messages in between(consumers, LEARNER_STEPS, begin, ends):
        for message in messages:
            if isinstance(message, Delivered) and message.record.run_id == run_id:
                teller.take_learner(message)


class _Teller:
    """Puts the records of the topics in their places in the story."""

    def __init__(self, story: Story, codec: Codec | None) -> None:
        self._story = story
        self._codec = codec
        self._fences = SchedulerFences()
        self._decisions = Decisions()
        self._learner = LearnerLog()
        self._members: dict[tuple[int, int], TrainedMember] = {}
        """By (epoch, number) of the step."""
        self._trained_by: list[tuple[StepRef, Moment]] = []
        """Steps that counted when they were written, and their moments."""
        self._verdicts: list[tuple[VerifierResult, Moment]] = []

    def take(self, topic: Topic[Any], message: Delivered[Any]) -> None:
        """Take the next record of the group's partition."""
        record, story = message.record, self._story
        match record:
            case EpisodeEvent():
                # Fences of schedulers concern all episodes of the partition.
                fenced = self._fences.take(record)
                if record.episode_id == story.episode_id:
                    counts = fenced and story.life.take(
                        message.offset, message.timestamp_ms, record
                    )
                    self._tell(topic, message, counts)
                    self._find_task(record)
            case GateDecision():
                if record.group_id == story.group_id:
                    counts = self._decisions.take(message.offset, record)
                    self._tell(topic, message, counts)
                    story.decision = record if counts else story.decision
            case _ if record.episode_id != story.episode_id:
                return
            case TokenCommit():
                self._commit(topic, message)
            case ToolEvent():
                self._tell(topic, message, story.tools.take(message.offset, record))
            case VerifierResult():
                moment = self._tell(topic, message, True)
                self._verdicts.append((record, moment))
            case Trajectory():
                self._tell(topic, message, story.trajectory is None)
                story.trajectory = story.trajectory or record
            case _:
                self._tell(topic, message, True)

    def take_learner(self, message: Delivered[LearnerEvent]) -> None:
        """Take the next record of the learner."""
        event = message.record
        counts = self._learner.take(message.offset, message.timestamp_ms, event)
        named = {member.episode_id for member in event.trained}
        named |= {member.episode_id for member in event.skipped}
        if self._story.episode_id not in named:
            return
        moment = self._tell(LEARNER_STEPS, message, counts)
        for member in event.trained:
            if member.episode_id == self._story.episode_id:
                self._members[event.epoch, event.number] = member
                ref = StepRef(
                    epoch=event.epoch, number=event.number, ordinal=event.ordinal,
                    offset=message.offset,
                )  # fmt: skip
                self._trained_by += [(ref, moment)] if counts else []

    def finish(self) -> None:
        """Judge what needs the end of the story to be known."""
        story = self._story
        final = story.life.final_ended
        for result, moment in self._verdicts:
            fits = final is None or result.attempt == final.attempt
            if fits and story.verdict is None:
                story.verdict = result
            else:
                moment.counts = False
        if final is not None:
            story.wal = story.wal.ended_at(final.wal_position)
            for commit in story.commits:
                if commit.offset > final.wal_position and commit.verdict is Verdict.ACCEPTED:
                    commit.verdict = Verdict.SUPERSEDED
        story.step = self._learner.trained.get(story.episode_id)
        if story.step is not None:
            story.survives = self._learner.survives(story.step)
            story.trained = self._members.get((story.step.epoch, story.step.number))
        kept = (story.step.epoch, story.step.number) if story.step else None
        for ref, moment in self._trained_by:
            if (ref.epoch, ref.number) != kept:
                story.rolled_back.append(ref)
                moment.counts, moment.what = False, f"{moment.what.strip()}, rolled back"
        skipped = self._learner.skipped.get(story.episode_id)
        story.skipped = skipped.reason.value if skipped else ""
        story.moments.sort(key=lambda moment: moment.timestamp_ms)

    def _tell(self, topic: Topic[Any], message: Delivered[Any], counts: bool) -> Moment:
        moment = moment_of(topic.name, message, counts)
        self._story.moments.append(moment)
        return moment

    def _find_task(self, event: EpisodeEvent) -> None:
        if self._codec is None or self._story.task is not None or not event.task_frame:
            return
        try:
            self._story.task = self._codec.decode(TASKS, event.task_frame)
        except PoisonRecordError:
            return

    def _commit(self, topic: Topic[Any], message: Delivered[TokenCommit]) -> None:
        record, story = message.record, self._story
        verdict = story.wal.take(message.offset, record)
        counts = verdict in (Verdict.ACCEPTED, Verdict.CURRENT)
        self._tell(topic, message, counts)
        if counts and record.kind is TokenKind.OBSERVATION and record.result_offset >= 0:
            story.tools.accept_result(record.result_offset)
        sound = verdict is not Verdict.UNDECODABLE
        story.commits.append(
            Commit(
                offset=message.offset,
                timestamp_ms=message.timestamp_ms,
                record=record,
                verdict=verdict,
                token_ids=tuple(unpack_ids(record.token_ids)) if sound else (),
                logprobs=tuple(unpack_logprobs(record.logprobs)) if sound else (),
                spans=unpack_spans(record.spans) if sound else (),
            )
        )


def to_json(story: Story, *, texts: Mapping[int, tuple[str, ...]] | None = None) -> dict[str, Any]:
    """Return the story as plain data. texts: per WAL offset the text of each token, when known."""
    life, wal = story.life, story.wal
    stands = standings(story.commits)
    return {
        "run_id": story.run_id,
        "episode_id": story.episode_id,
        "group_id": story.group_id,
        "partition": story.partition,
        "attempts": life.attempt,
        "failures": dict(life.failures),
        "task": _plain(story.task),
        "stop_cause": life.final_ended.stop_cause.value if life.final_ended else None,
        "abandoned": life.abandoned.abandon_reason.value if life.abandoned else None,
        "evidence": life.abandoned.detail if life.abandoned else None,
        "tokens": {
            "accepted": wal.accepted_tokens,
            "sibling": wal.sibling_tokens,
            "superseded": wal.superseded_tokens,
            "undecodable": wal.undecodable_tokens,
            "accepted_action": wal.accepted_action_tokens,
        },
        "commits": [_commit(commit, stands, texts or {}) for commit in story.commits],
        "main_line": [
            {"offset": piece.offset, "start": piece.start, "count": piece.count}
            for piece in wal.pieces
        ],
        "tool_calls": [
            {
                "call_key": key,
                "intent_offset": call.intent_offset,
                "result_offset": call.result_offset,
                "tool": call.intent.tool if call.intent else None,
                "arguments": call.intent.arguments if call.intent else None,
                "output": call.result.output if call.result else None,
                "exit_class": call.result.exit_class.value if call.result else None,
                "unknown": call.unknown is not None,
                "duration_us": call.result.duration_us if call.result else None,
            }
            for key, call in story.tools.calls.items()
        ],
        "verdict": _plain(story.verdict),
        "trajectory": _plain(story.trajectory),
        "decision": _decision(story),
        "trained": _plain(story.trained),
        "step": None
        if story.step is None
        else {
            "version": f"{story.step.epoch}/{story.step.number}",
            "ordinal": story.step.ordinal,
            "survives": story.survives,
        },
        "rolled_back": [
            {"version": f"{ref.epoch}/{ref.number}", "ordinal": ref.ordinal, "offset": ref.offset}
            for ref in story.rolled_back
        ],
        "skipped": story.skipped or None,
        "timeline": [moment.to_json() for moment in story.moments],
    }


def _commit(
    commit: Commit,
    stands: Mapping[int, Sequence[Standing]],
    texts: Mapping[int, tuple[str, ...]],
) -> dict[str, Any]:
    tree = commit.to_json(texts.get(commit.offset))
    tree["stands"] = [one.value for one in stands[commit.offset]]
    tree["timing"] = timing_of(commit)
    return tree


def _decision(story: Story) -> dict[str, Any] | None:
    if story.decision is None:
        return None
    member = next((m for m in story.decision.members if m.episode_id == story.episode_id), None)
    if member is None:
        return {"outcome": None, "reason": None}
    return {
        "outcome": member.outcome.value,
        "reason": None if member.outcome is GateOutcome.ADMIT else member.reason.value,
        "lag_steps": member.lag_steps,
        "age_ms": member.age_ms,
        "weight": member.weight,
        "group_mean": story.decision.group_mean,
        "group_deviation": story.decision.group_deviation,
    }


def _plain(record: Any) -> dict[str, Any] | None:
    if record is None:
        return None
    data: dict[str, Any] = record.to_avro()
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in data.items()}


def model_of(settings: str) -> Path | None:
    """Return the model folder that a run's settings name, when it lies on this machine with a
    tokenizer.
    """
    try:
        folder = Path(json.loads(settings)["inference"]["model_path"])
    except (ValueError, KeyError, TypeError):
        return None
    return folder if (folder / "tokenizer_config.json").is_file() else None


def has_bytes(settings: str) -> bool:
    """Whether the settings of a run say that its tokens are bytes."""
    try:
        inference = json.loads(settings)["inference"]
        return bool(inference["engine"] == "scripted" and inference["scripted"]["byte_tokenizer"])
    except (ValueError, KeyError, TypeError):
        return False


def show(
    story: Story, *, texts: Mapping[int, tuple[str, ...]] | None = None, each_token: bool = False
) -> None:
    """Print the story for people; with `each_token` a row for every token."""
    from infra.story_view import print_story

    print_story(story, texts or {}, each_token=each_token)

"""One partition of the assembler: which episodes are unsealed, what was read of them, which can be
sealed (design section 8).

Invariants. The first Trajectory of an episode in the log counts, whoever wrote it; an episode is
closed when that one, or an Abandoned that counts, was read. Floors are the lowest first record of
an unsealed episode per topic, and for `trajectories` the lowest Trajectory of an episode that a
reader from these floors would meet again.

Tokens, tool events and verdicts are read beside `episodes`, so that an episode's tokens may come
before its Issued: it is a stranger until then. A stranger whose Issued does not come before an end
of `episodes` sampled later belongs to an episode that was closed below the floor, and is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.enums import EpisodeEventKind, TokenKind
from schemas.ids import EpisodeId, WorkerId
from schemas.records.episode_event import EpisodeEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.tool_event import ToolEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.rules.episodes import NO_SCHEDULER, EpisodeLife, SchedulerFences
from schemas.rules.tools import ToolLog
from schemas.rules.wal import EpisodeWal, Verdict
from schemas.topics import EPISODES, TOKENS, TOOL_EVENTS, TRAJECTORIES, VERDICTS
from stream_jobs.core.floors import Floors
from stream_jobs.core.outcome import waits_for_verdict

BESIDE = (TOKENS, TOOL_EVENTS, VERDICTS, TRAJECTORIES)
"""What is read beside `episodes`, partition by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict with its place."""

    offset: int
    timestamp_ms: int
    result: VerifierResult


@dataclass(slots=True, kw_only=True, eq=False)
class Assembly:
    """What was read of one episode that is not sealed."""

    episode_id: EpisodeId
    life: EpisodeLife = field(default_factory=EpisodeLife)
    wal: EpisodeWal = field(default_factory=EpisodeWal)
    tools: ToolLog = field(default_factory=ToolLog)
    verdicts: dict[int, Judged] = field(default_factory=dict)
    """The first by attempt."""
    first_verdict: int = -1
    digests: str = ""
    """Tokenizer, template and tool schema: the newest accepted Prompt's, else the first Fence's."""
    task_frame: bytes = b""
    fence: tuple[int, WorkerId] = NO_SCHEDULER
    """The SchedulerFence that was current at its Issued."""
    verdicts_end: int | None = None
    """End of `verdicts` sampled after its verdict deadline. Unit: records."""
    episodes_end: int | None = None
    """A stranger: end of `episodes` sampled after its first record. Unit: records."""
    is_sealing: bool = False

    @property
    def issued_offset(self) -> int:
        """Offset of its Issued. Unit: records."""
        assert self.life.issued_mark is not None
        return self.life.issued_mark.offset

    @property
    def verdict(self) -> Judged | None:
        """The verdict that counts: the first that names the final Ended's attempt."""
        final = self.life.final_ended
        return self.verdicts.get(final.attempt) if final else None


class AssemblerPartition:
    """See the module."""

    def __init__(self, floors: Floors, *, verdict_deadline_ms: int) -> None:
        """Start at committed floors, or at the run's starts. Unit of the deadline: ms."""
        self.next = {EPISODES.name: floors.offset, **floors.others}
        """Next offset to take by topic. Unit: records."""
        self.next_tokens = floors.others[TOKENS.name]
        self.late = 0
        """Records of episodes that are closed. Unit: records."""
        self._deadline_ms = verdict_deadline_ms
        self._fences = SchedulerFences(floors.fence)
        self._open: dict[EpisodeId, Assembly] = {}
        self._strangers: dict[EpisodeId, Assembly] = {}
        self._ended: dict[EpisodeId, Assembly] = {}
        self._closed: dict[EpisodeId, tuple[int, int | None]] = {}
        self._sealed_ahead: dict[EpisodeId, tuple[int, int]] = {}

    @property
    def unsealed(self) -> int:
        """Episodes issued and not closed."""
        return len(self._open)

    def take_episode(self, offset: int, timestamp_ms: int, event: EpisodeEvent) -> None:
        """Take the next record of `episodes`."""
        self.next[EPISODES.name] = offset + 1
        if not self._fences.take(event) or event.kind is EpisodeEventKind.SCHEDULER_FENCE:
            return
        if event.kind is EpisodeEventKind.ISSUED:
            self._issue(offset, timestamp_ms, event)
            return
        assembly = self._open.get(event.episode_id)
        if assembly is None or not assembly.life.take(offset, timestamp_ms, event):
            return
        match event.kind:
            case EpisodeEventKind.LEASED if not assembly.task_frame:
                assembly.task_frame = event.task_frame
            case EpisodeEventKind.ABANDONED:
                self._close(assembly, None)
            case EpisodeEventKind.ENDED if assembly.life.final_ended is not None:
                self._ended[assembly.episode_id] = assembly
            case _:
                pass

    def take_commit(self, offset: int, commit: TokenCommit) -> None:
        """Take the next record of `tokens`."""
        self.next_tokens = offset + 1
        assembly = self._open.get(commit.episode_id) or self._stranger(commit.episode_id)
        if assembly is None:
            return
        verdict = assembly.wal.take(offset, commit)
        counts = verdict in (Verdict.CURRENT, Verdict.ACCEPTED)
        # A Prompt knows the tools of its request; a Fence is written before there is one.
        is_better = commit.kind is TokenKind.PROMPT or not assembly.digests
        if commit.digests and counts and is_better:
            assembly.digests = commit.digests
        if commit.kind is TokenKind.OBSERVATION and verdict is Verdict.ACCEPTED:
            assembly.tools.accept_result(commit.result_offset)

    def take_bad_commit(self, offset: int, episode: EpisodeId) -> None:
        """Take a record of `tokens` that could not be decoded; its key names the episode."""
        self.next_tokens = offset + 1
        assembly = self._open.get(episode) or self._stranger(episode)
        if assembly is not None:
            assembly.wal.take_bad(offset=offset)

    def take_tool(self, offset: int, event: ToolEvent) -> None:
        """Take the next record of `tool-events`."""
        self.next[TOOL_EVENTS.name] = offset + 1
        assembly = self._open.get(event.episode_id) or self._stranger(event.episode_id)
        if assembly is not None:
            assembly.tools.take(offset, event)

    def take_verdict(self, offset: int, timestamp_ms: int, result: VerifierResult) -> None:
        """Take the next record of `verdicts`; the first of an attempt counts."""
        self.next[VERDICTS.name] = offset + 1
        assembly = self._open.get(result.episode_id) or self._stranger(result.episode_id)
        if assembly is None:
            return
        if assembly.first_verdict < 0:
            assembly.first_verdict = offset
        judged = Judged(offset=offset, timestamp_ms=timestamp_ms, result=result)
        assembly.verdicts.setdefault(result.attempt, judged)

    def take_trajectory(self, offset: int, trajectory: Trajectory) -> None:
        """Take the next record of `trajectories`: the first of an episode closes it."""
        self.next[TRAJECTORIES.name] = offset + 1
        episode = trajectory.episode_id
        assembly = self._open.get(episode)
        if assembly is not None:
            self._close(assembly, offset)
        elif episode not in self._closed and trajectory.ended_offset >= self.next[EPISODES.name]:
            self._sealed_ahead.setdefault(episode, (offset, trajectory.ended_offset))

    def skip(self, topic: str, offset: int) -> None:
        """Pass over a record of a topic that counts for nobody."""
        if topic == TOKENS.name:
            self.next_tokens = offset + 1
        else:
            self.next[topic] = offset + 1

    def overdue(self, *, wall_ms: int) -> bool:
        """Whether the ends of `verdicts` are to be sampled: a verdict's deadline has passed."""
        return any(
            self._is_overdue(assembly, wall_ms) and assembly.verdicts_end is None
            for assembly in self._ended.values()
        )

    def take_verdicts_end(self, end: int, *, sampled_ms: int) -> None:
        """Take an end of `verdicts` sampled at wall clock `sampled_ms`. Unit: ms."""
        for assembly in self._ended.values():
            if assembly.verdicts_end is None and self._is_overdue(assembly, sampled_ms):
                assembly.verdicts_end = end

    @property
    def has_strangers(self) -> bool:
        """Whether the end of `episodes` is to be sampled, to tell who the strangers are."""
        return bool(self._strangers)

    def take_episodes_end(self, end: int) -> None:
        """Take an end of `episodes` sampled now; forget the strangers that an earlier one has shown
        to be closed.
        """
        reached = self.next[EPISODES.name]
        for episode, assembly in list(self._strangers.items()):
            if assembly.episodes_end is None:
                assembly.episodes_end = end
            if reached >= assembly.episodes_end:
                del self._strangers[episode]
                self.late += 1
        self._sealed_ahead = {
            episode: places
            for episode, places in self._sealed_ahead.items()
            if places[1] >= reached
        }

    def ready(self) -> Iterator[Assembly]:
        """Return the episodes that can be sealed now; the caller marks what it takes up."""
        for assembly in self._ended.values():
            final = assembly.life.final_ended
            assert final is not None
            if assembly.is_sealing or self.next_tokens <= final.wal_position:
                continue
            if self.next[TOOL_EVENTS.name] <= final.tool_position:
                continue
            end = assembly.verdicts_end
            is_late = end is not None and self.next[VERDICTS.name] >= end
            if assembly.verdict or is_late or not waits_for_verdict(final.stop_cause):
                yield assembly

    def floors(self) -> Floors:
        """Return what to commit now."""
        oldest = min(self._open.values(), key=lambda one: one.issued_offset, default=None)
        episodes = oldest.issued_offset if oldest else self.next[EPISODES.name]
        self._closed = {
            episode: places for episode, places in self._closed.items() if places[0] >= episodes
        }
        held = [*self._open.values(), *self._strangers.values()]
        tokens = [one.wal.first_offset for one in held if one.wal.first_offset >= 0]
        tools = [one.tools.first_offset for one in held if one.tools.first_offset >= 0]
        verdicts = [one.first_verdict for one in held if one.first_verdict >= 0]
        sealed = [offset for _, offset in self._closed.values() if offset is not None]
        sealed += [offset for offset, _ in self._sealed_ahead.values()]
        return Floors(
            offset=episodes,
            others={
                TOKENS.name: min(tokens, default=self.next_tokens),
                TOOL_EVENTS.name: min(tools, default=self.next[TOOL_EVENTS.name]),
                VERDICTS.name: min(verdicts, default=self.next[VERDICTS.name]),
                TRAJECTORIES.name: min(sealed, default=self.next[TRAJECTORIES.name]),
            },
            fence=oldest.fence if oldest else self._fences.current,
        )

    def _issue(self, offset: int, timestamp_ms: int, event: EpisodeEvent) -> None:
        episode = event.episode_id
        if episode in self._open or episode in self._closed:
            return
        ahead = self._sealed_ahead.pop(episode, None)
        if ahead is not None:
            self._strangers.pop(episode, None)
            self._closed[episode] = (offset, ahead[0])
            return
        assembly = self._strangers.pop(episode, None) or Assembly(episode_id=episode)
        assembly.fence = self._fences.current
        assembly.life.take(offset, timestamp_ms, event)
        self._open[episode] = assembly

    def _stranger(self, episode: EpisodeId) -> Assembly | None:
        stranger = self._strangers.get(episode)
        if stranger is None:
            if episode in self._closed or episode in self._sealed_ahead:
                self.late += 1
                return None
            stranger = self._strangers[episode] = Assembly(episode_id=episode)
        return stranger

    def _close(self, assembly: Assembly, trajectory_offset: int | None) -> None:
        episode = assembly.episode_id
        self._closed[episode] = (assembly.issued_offset, trajectory_offset)
        self._open.pop(episode, None)
        self._ended.pop(episode, None)

    def _is_overdue(self, assembly: Assembly, wall_ms: int) -> bool:
        final = assembly.life.final_mark
        assert final is not None
        return assembly.verdict is None and wall_ms - final.timestamp_ms >= self._deadline_ms

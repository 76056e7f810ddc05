"""Watches a simulated history from outside: what lands in the log, what is shown, what is decoded,
what runs.

It reads the log by rules of its own (`tests/simulation/reference.py`) and names what it finds as
Jepsen does: `lost-write` (an accepted thing is gone), `duplicate` (counted or done twice),
`aborted-read` (something was shown that the log does not hold), `dirty-write` (an effect that no
record allows), `stale-read` (a bound on versions is broken), `no-progress` (it never settles),
`crash` (a process no longer believes its state).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from inference.api import Caller
from schemas.enums import (
    EpisodeEventKind,
    GateOutcome,
    LearnerEventKind,
    Purpose,
    RefreshEventKind,
    ToolEventKind,
)
from schemas.ids import Version
from schemas.ports import Delivered, Message
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.token_commit import TokenCommit
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.rules.wal import EpisodeWal
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    POLICIES,
    REFRESHES,
    TOKENS,
    TOOL_EVENTS,
)
from tests.simulation.loop import CURRENT, Process
from tests.simulation.reference import Line, Lineage, Lives
from tests.simulation.world import World


class Watch:
    """See the module."""

    def __init__(self, world: World, *, batch: int, eta: int) -> None:
        """Watch a world whose scheduler has this bound."""
        self._world = world
        self._batch, self._eta = batch, eta
        self.lines: dict[str, Line] = {}
        self.lives = Lives()
        self.announced: set[Version] = set()
        self.is_closed = False
        self.issued_top = -1
        self._intents: set[str] = set()
        self._open = 0
        self._held: set[str] = set()
        self._released: set[str] = set()
        self._skipped: set[str] = set()
        self._decided: set[str] = set()
        self._issued_groups: set[str] = set()
        self._learner = (0, "")
        self._ordinal_max = 0
        world.bus.landed.append(self.take)
        world.bus.offered = self.offers

    @property
    def open_episodes(self) -> int:
        """Episodes issued without a final Ended or an Abandoned."""
        return self._open

    def take(self, message: Message) -> None:
        """Take a record as it lands."""
        assert isinstance(message, Delivered)
        if self._world.is_told:
            self._world.tell(f"  {_line(message)}")
        match message.topic:
            case TOKENS.name:
                self._take_commit(message)
            case EPISODES.name:
                self._take_episode(message)
            case TOOL_EVENTS.name:
                if message.record.kind is ToolEventKind.INTENT:
                    self._intents.add(message.record.call_key)
            case LEARNER_STEPS.name:
                self._take_learner(message)
            case GATE_DECISIONS.name:
                self._take_decision(message.record)
            case POLICIES.name:
                self.announced.add(Version(message.record.epoch, message.record.number))
            case _:
                pass

    def _take_commit(self, message: Delivered[TokenCommit]) -> None:
        line = self.lines.get(message.record.episode_id)
        if line is None:
            line = self.lines[message.record.episode_id] = Line(message.partition)
        line.take(message.record)

    def _take_episode(self, message: Delivered[EpisodeEvent]) -> None:
        event = message.record
        episode = str(event.episode_id)
        if event.kind is EpisodeEventKind.ISSUED:
            self._issued_groups.add(event.group_id)
        if ", traceback " in event.detail and not event.detail.startswith("TimeoutError"):
            # Neither the task nor the network raises anything else; an attempt that ends by our own
            # mistake breaks no other rule, and a history of such attempts would show nothing.
            self._world.broken("crash", f"an attempt of {episode} ended by {event.detail}")
        life = self.lives.by_id.get(episode)
        was_closed = life is not None and life.is_closed
        self.lives.take(message.partition, event)
        if life is None and (life := self.lives.by_id.get(episode)) is not None:
            self._open += 1
            self.issued_top = max(self.issued_top, event.ordinal)
            if event.purpose is Purpose.TRAIN:
                self._admit(episode, event)
        if life is not None and life.is_closed and not was_closed:
            self._open -= 1
            if event.kind is EpisodeEventKind.ABANDONED and life.event.purpose is Purpose.TRAIN:
                self._released.add(episode)

    def _admit(self, episode: str, event: EpisodeEvent) -> None:
        self._held.add(episode)
        held = len(self._held - self._released - self._skipped)
        bound = (self._eta + self._ordinal_max + 1) * self._batch
        # A group counts whole at its first Issued; its other members follow.
        if held > bound:
            self._world.broken(
                "stale-read",
                f"admission: {held} held after Issued {episode}, the bound is {bound} "
                f"(scheduler {event.scheduler_id})",
            )

    def _take_learner(self, message: Delivered[Any]) -> None:
        event = message.record
        who = (event.epoch, str(event.learner_id))
        if event.kind is LearnerEventKind.EPOCH_STARTED and who[0] > self._learner[0]:
            self._learner = who
        if who != self._learner:
            return
        self._ordinal_max = max(self._ordinal_max, event.ordinal)
        if event.kind is LearnerEventKind.SKIPPED:
            self._skipped |= {str(member.episode_id) for member in event.skipped}
        self.is_closed = self.is_closed or event.kind is LearnerEventKind.CLOSED

    def _take_decision(self, decision: GateDecision) -> None:
        if decision.group_id in self._decided:
            return
        self._decided.add(decision.group_id)
        self._released |= {
            str(m.episode_id) for m in decision.members if m.outcome is not GateOutcome.ADMIT
        }
        self._released |= {str(episode) for episode in decision.abandoned}

    def decodes(self, request_id: str, base: int) -> None:
        """An engine begins to sample at index `base` of an episode."""
        episode = request_id.partition("#")[0]
        process, line = CURRENT.get(), self.lines.get(episode)
        if process is None or line is None or line.fence[3] != process.incarnation:
            # A writer that is fenced out may go on for a while; what it samples never counts.
            return
        end = min(line.at_fence[line.fence[:2]][1], line.action_end)
        if base < end:
            self._world.broken(
                "duplicate",
                f"{process.incarnation} decodes {episode} from token {base}; up to {end} was "
                "committed when it was fenced",
            )

    def described(self, caller: Caller, given: Mapping[str, Any]) -> None:
        """A gateway returns the accepted prefix under a fence."""
        line = self.lines.get(caller.episode_id)
        name = (given["attempt"], given["fence_number"])
        known = line.at_fence.get(name) if line else None
        if known is not None and given["length"] < known[0]:
            self._world.broken(
                "lost-write",
                f"the session {name} of {caller.episode_id} was given {given['length']} of "
                f"{known[0]} accepted tokens",
            )

    def answered(self, caller: Caller, place: Mapping[str, Any]) -> None:
        """A gateway shows a turn: every token of it must be in the log by now."""
        episode, position = caller.episode_id, place["position"]
        line = self.lines.get(episode)
        log = self._world.bus.log(TOKENS, line.partition) if line else []
        found = log[position] if 0 <= position < len(log) else None
        commit = found.record if isinstance(found, Delivered) else None
        if (
            commit is None
            or commit.episode_id != episode
            or commit.start + commit.count != place["length"]
        ):
            self._world.broken(
                "aborted-read",
                f"a turn of {episode} up to token {place['length']} was shown, and the log does "
                f"not hold it at offset {position}",
            )

    def runs(self, key: str, attempt: int) -> None:
        """A tool outside is reached: an Intent of this attempt must stand in the log, and its lease
        must name the process that runs it.
        """
        process, life = CURRENT.get(), self.lives.by_id.get(key.partition(":")[0])
        if process is not None and life is not None and life.attempt == attempt:
            holder = life.process
            if holder != process.incarnation:
                self._world.broken(
                    "duplicate",
                    f"{process.incarnation} runs {key} (attempt {attempt}), which is leased to "
                    f"{holder}",
                )
        if key not in self._intents:
            self._world.broken("dirty-write", f"{key} runs (attempt {attempt}) without an Intent")

    def offers(self, process: Process, topic: str, record: Any) -> None:
        """A process hands a record over; what it may ask for follows from what it has read."""
        if topic == REFRESHES.name and record.kind is RefreshEventKind.PREPARE:
            self._prepares(process, record)
        elif topic == EPISODES.name and record.kind is EpisodeEventKind.ISSUED:
            self._issues(process, record)

    def _prepares(self, process: Process, record: Any) -> None:
        version = Version(record.epoch, record.number)
        if version not in (Version(0, 0), *self._read_by(process).versions):
            self._world.broken(
                "aborted-read",
                f"{process.incarnation} asks for version {version}, which no Step that counts "
                "leads to in the log it has read",
            )

    def _issues(self, process: Process, event: EpisodeEvent) -> None:
        # A group of which a member stands in the log was issued before; only the rest is missing.
        if event.purpose is not Purpose.TRAIN or event.group_id in self._issued_groups:
            return
        if not self._read_by(process).is_decided:
            self._world.broken(
                "stale-read",
                f"{process.incarnation} issues {event.episode_id} while a learner restores: from "
                "which version it goes on is not decided in the log that it has read",
            )

    def _read_by(self, process: Process) -> Lineage:
        """The learner's log as far as a process has read it."""
        lineage, bus = Lineage(), self._world.bus
        for partition in range(bus.partitions):
            upto = process.has_read.get((LEARNER_STEPS.name, partition), 0)
            for message in bus.log(LEARNER_STEPS, partition)[:upto]:
                assert isinstance(message, Delivered)
                lineage.take(message.record)
        return lineage

    def loaded(self, version: Version) -> None:
        """An engine holds a version from here on."""
        if version not in self.announced:
            self._world.broken("aborted-read", f"version {version} is served and not announced")

    def compare_readers(self) -> None:
        """Read the log once more by the rules of the roles, at the end: both must agree."""
        wals: dict[str, EpisodeWal] = defaultdict(EpisodeWal)
        for message in self._world.bus.records(TOKENS):
            assert isinstance(message, Delivered)
            wals[message.record.episode_id].take(message.offset, message.record)
        for episode, line in self.lines.items():
            wal = wals[episode]
            if (wal.fence, wal.length) != (line.fence[:2], line.length):
                self._world.broken(
                    "inconsistent-offsets",
                    f"one reader of {episode} has {wal.length} tokens under {wal.fence}, another "
                    f"{line.length} under {line.fence[:2]}",
                )
        fences: dict[int, SchedulerFences] = defaultdict(SchedulerFences)
        lives: dict[str, EpisodeLife] = defaultdict(EpisodeLife)
        for message in self._world.bus.records(EPISODES):
            assert isinstance(message, Delivered)
            if fences[message.partition].take(message.record):
                life = lives[message.record.episode_id]
                life.take(message.offset, message.timestamp_ms, message.record)
        for episode, told in self.lives.by_id.items():
            read = lives[episode]
            found = (read.attempt, read.final_mark is not None, read.abandoned is not None)
            if found != (told.attempt, told.is_ended, told.is_abandoned):
                self._world.broken(
                    "inconsistent-offsets",
                    f"one reader has attempt, ended, abandoned of {episode} as {found}, another as "
                    f"{(told.attempt, told.is_ended, told.is_abandoned)}",
                )

    def look_outside(self) -> None:
        """Check what the outside counted, at the end."""
        for key in self._world.outside.twice:
            self._world.broken("duplicate", f"the tool of {key} ran twice")


def _line(message: Delivered[Any]) -> str:
    """Return a record as a line of the story."""
    record, place = message.record, f"{message.topic}/{message.partition}@{message.offset}"
    who = getattr(record, "episode_id", "") or getattr(record, "group_id", "")
    kind = getattr(record, "kind", "")
    return f"{place} {kind} {who} by {record.writer_id} {_details(message.topic, record)}".rstrip()


def _details(topic: str, record: Any) -> str:
    if isinstance(record, TokenCommit):
        fence = f"({record.attempt},{record.fence_number}) {record.incarnation}"
        place = f"seq {record.seq} start {record.start} +{record.count}"
        return f"{fence} producer {record.producer_number} {place}"
    if isinstance(record, EpisodeEvent):
        lease = f"attempt {record.attempt} epoch {record.scheduler_epoch} {record.worker_id}"
        return f"{lease} {record.stop_cause} {record.abandon_reason}"
    if isinstance(record, GateDecision):
        return ", ".join(
            f"{m.episode_id}@{m.trajectory_offset} {m.outcome} {m.reason}" for m in record.members
        )
    if topic == TOOL_EVENTS.name:
        return f"attempt {record.attempt} {record.call_key} rests on {record.wal_position}"
    if topic == LEARNER_STEPS.name:
        trained = ",".join(m.episode_id for m in record.trained)
        parent = f"{record.parent_epoch}/{record.parent_number}"
        return f"epoch {record.epoch} number {record.number} parent {parent} {trained}"
    if topic == GATED.name:
        found = f"trajectory {record.trajectory_offset} decision {record.decision_offset}"
        return f"{found} W {record.input_offset}"
    return ""

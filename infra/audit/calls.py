"""The audit's own reading of `tool-events` (design section 6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra.audit.report import Findings, at
from schemas.enums import ToolEventKind
from schemas.ports import Delivered
from schemas.records.tool_event import ToolEvent
from schemas.topics import TOOL_EVENTS


@dataclass(slots=True, kw_only=True)
class Try:
    """One Intent that counts where it stands."""

    offset: int
    wal_position: int
    key: str


@dataclass(slots=True, kw_only=True)
class EpisodeCalls:
    """The tool log of one episode."""

    partition: int
    first: int = -1
    """Offset of its first record."""
    fence: int = 0
    tries: list[Try] = field(default_factory=list)
    intents: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Offset of every Intent to its key and whether the tool is idempotent."""
    results: dict[str, int] = field(default_factory=dict)
    """Key to the offset of the first Result of an execution; an answer by key is none."""
    result_offsets: set[int] = field(default_factory=set)
    writers: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)
    """By attempt: worker and incarnation of whoever wrote under it, to the offset of the first."""
    acts: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)
    """The same, Fences left out."""
    void: int = 0


class Calls:
    """All tool calls of a run."""

    def __init__(self, findings: Findings) -> None:
        """Report to `findings`."""
        self.by_episode: dict[str, EpisodeCalls] = {}
        self.void = 0
        self.calls = 0
        self._findings = findings

    def take(self, message: Delivered[ToolEvent]) -> None:
        """Take the next record of its partition."""
        event = message.record
        log = self.by_episode.get(event.episode_id)
        if log is None:
            log = self.by_episode[event.episode_id] = EpisodeCalls(
                partition=message.partition, first=message.offset
            )
        writer = (str(event.writer_id), event.incarnation)
        log.writers.setdefault(event.attempt, {}).setdefault(writer, message.offset)
        if event.kind is not ToolEventKind.FENCE:
            log.acts.setdefault(event.attempt, {}).setdefault(writer, message.offset)
        is_late = event.attempt < log.fence
        if event.kind is ToolEventKind.FENCE:
            is_late = event.attempt <= log.fence
            log.fence = max(log.fence, event.attempt)
        elif event.kind is ToolEventKind.INTENT:
            self._findings.check(
                11,
                event.deadline_us > 0,
                f"the Intent of {event.call_key} has no deadline",
                ids=(event.episode_id,),
                at=(at(TOOL_EVENTS.name, message.partition, message.offset),),
            )
            log.intents[message.offset] = (event.call_key, event.idempotent)
            if not is_late:
                self.calls += 1
                log.tries.append(
                    Try(offset=message.offset, wal_position=event.wal_position, key=event.call_key)
                )
        elif event.kind is ToolEventKind.RESULT:
            self._result(message, log)
        self.void += is_late

    def _result(self, message: Delivered[ToolEvent], log: EpisodeCalls) -> None:
        event, place = message.record, at(TOOL_EVENTS.name, message.partition, message.offset)
        intent = log.intents.get(event.intent_offset)
        self._findings.check(
            3,
            intent is not None and intent[0] == event.call_key,
            f"the Result of {event.call_key} has no Intent before it at {event.intent_offset}",
            ids=(event.episode_id,),
            at=(place,),
        )
        log.result_offsets.add(message.offset)
        idempotent = intent is not None and intent[1]
        if event.replayed and not idempotent:
            # The tool said by key what an earlier execution gave, whose own Result may land late.
            return
        first = log.results.setdefault(event.call_key, message.offset)
        self._findings.check(
            3,
            first == message.offset or idempotent,
            f"{event.call_key} was executed twice and is not idempotent",
            ids=(event.episode_id,),
            at=(at(TOOL_EVENTS.name, message.partition, first), place),
        )

"""The token history of one episode at the gateway: append-only, aligned with the request (C17).

Sampled ids are never rendered or encoded again. A request is compared with the history: *clean*
when it repeats it exactly, *realigned* when it differs in spacing only or when its text would
encode to other ids (ours are kept), a *fork* when it says something else. A fork happens only on
request and is a Cut in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from inference.core.messages import Message, plain, read_reply, says_exactly, says_the_same
from schemas.enums import CutReason, Drift, FinishReason, TokenKind
from schemas.packing import unpack_ids
from schemas.rules.wal import Piece

Tools = Sequence[Mapping[str, Any]] | None


class Render(Protocol):
    """What alignment asks of the tokenizer and the chat template."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    def first(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Return the ids of the first prompt."""
        ...

    def after_turn(self, messages: Sequence[Message], *, last_id: int | None) -> list[int]:
        """Return the ids that follow a sampled turn."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        ...

    def decode(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the text of ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The input or the sampled tokens of one turn, as the main line holds them."""

    is_action: bool
    turn: int
    branch: int
    start: int
    """Index of its first token in the episode. Unit: tokens."""
    ids: tuple[int, ...]
    finish_reason: FinishReason = FinishReason.NONE
    """Action: why the turn ended; none while it is open."""
    offset: int = -1
    """Offset of its last commit in tokens.v1; -1 until acknowledged. Unit: records."""
    result_offsets: tuple[int, ...] = ()
    """Input: offsets in tool-events.v1 of the Results it shows. Unit: records."""
    messages: tuple[Message, ...] | None = None
    """The messages it stands for, once a request has made them known; one for a sampled turn."""
    kind: TokenKind = TokenKind.ACTION

    @property
    def end(self) -> int:
        """Index after its last token. Unit: tokens."""
        return self.start + len(self.ids)

    @property
    def is_finished(self) -> bool:
        """Whether it is a sampled turn that ended."""
        return self.is_action and self.finish_reason is not FinishReason.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The main line of an episode, in order; input and sampled segments alternate."""

    segments: tuple[Segment, ...] = ()
    branch: int = 0

    @property
    def length(self) -> int:
        """Tokens on the main line. Unit: tokens."""
        return self.segments[-1].end if self.segments else 0

    @property
    def turn(self) -> int:
        """The turn that is open, or comes next."""
        return sum(1 for segment in self.segments if segment.is_finished)

    def ids(self) -> list[int]:
        """Return all token ids. [length]"""
        return [i for segment in self.segments for i in segment.ids]

    def finished(self, turn: int, branch: int) -> Segment | None:
        """Return the sampled tokens of a turn that ended on a branch, or None."""
        for segment in self.segments:
            if segment.is_finished and segment.turn == turn and segment.branch == branch:
                return segment
        return None

    def cut(self, start: int, *, fork: bool) -> History:
        """Return the history taken back to `start`, which is the start of a segment."""
        kept = tuple(segment for segment in self.segments if segment.end <= start)
        return History(segments=kept, branch=self.branch + fork)

    def extended(self, segment: Segment) -> History:
        """Return the history with a segment appended, or with the last one continued when it is the
        same.
        """
        if self.segments and _continues(self.segments[-1], segment):
            last = self.segments[-1]
            joined = replace(
                segment,
                start=last.start,
                ids=last.ids + segment.ids,
                result_offsets=last.result_offsets + segment.result_offsets,
                messages=segment.messages or last.messages,
                kind=last.kind,
            )
            return replace(self, segments=(*self.segments[:-1], joined))
        return replace(self, segments=(*self.segments, segment))


def _continues(last: Segment, segment: Segment) -> bool:
    return (
        last.is_action == segment.is_action
        and last.turn == segment.turn
        and not last.is_finished
        and last.end == segment.start
    )


def rebuild(pieces: Iterable[Piece], branch: int) -> History:
    """Return the history that the accepted prefix of the log holds."""
    history = History(branch=branch)
    for piece in pieces:
        commit = piece.commit
        first = piece.start - commit.start
        whole = first == 0 and piece.count == commit.count
        ids = tuple(unpack_ids(commit.token_ids)[first : first + piece.count])
        shown = (commit.result_offset,) if commit.result_offset >= 0 else ()
        history = history.extended(
            Segment(
                is_action=piece.kind is TokenKind.ACTION,
                turn=piece.turn,
                branch=piece.branch,
                start=piece.start,
                ids=ids,
                finish_reason=commit.finish_reason if whole else FinishReason.NONE,
                offset=piece.offset,
                result_offsets=shown,
                kind=piece.kind,
            )
        )
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a request adds to the history before the turn is sampled."""

    drift: Drift
    kind: TokenKind
    """Prompt for the first turn of an episode, else Observation."""
    ids: tuple[int, ...]
    """Input ids to append; empty when the log holds them already."""
    messages: tuple[Message, ...] | None = None
    """The messages that this turn's input renders."""
    cut_start: int = -1
    """Where a Cut takes the sequence back to before anything is appended; -1 for no Cut. Unit:
    tokens.
    """
    cut_reason: CutReason = CutReason.NONE
    adopted: tuple[tuple[int, tuple[Message, ...]], ...] = ()
    """Segments read from the log whose messages the request has made known: (index, messages)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request does not extend the history."""

    message: str


def align_ids(history: History, ids: Sequence[int], *, may_fork: bool = False) -> Plan | Refusal:
    """Plan a turn whose input is given as ids."""
    open_at = _open_at(history)
    return _plan_tail(history, open_at, tuple(ids), None, Drift.CLEAN, may_fork, ())


def align_chat(
    history: History,
    messages: Sequence[Message],
    *,
    tools: Tools,
    render: Render,
    may_fork: bool = False,
) -> Plan | Refusal:
    """Plan a turn whose whole conversation is given as messages."""
    at = 0
    drift = Drift.CLEAN
    adopted: list[tuple[int, tuple[Message, ...]]] = []
    open_at = _open_at(history)
    for index in range(0, open_at, 2):
        given, answer = history.segments[index], history.segments[index + 1]
        count = _match_input(history, index, messages[at:], tools, render)
        verdict = Drift.FORK
        if count and at + count < len(messages):
            said = messages[at + count]
            if answer.messages != (said,):
                verdict = _match_answer(answer, said, bool(tools), render)
                adopted.append((index + 1, (said,)))
            else:
                # Its drift was recorded when the client first sent it back.
                verdict = Drift.CLEAN
        if verdict is Drift.FORK or not count:
            if not may_fork:
                return Refusal(
                    message=f"the messages differ from turn {given.turn} as it was sampled"
                )
            ids = _render_input(history, index, messages[at:], tools, render)
            return _fork(history, index, ids, tuple(messages[at:]))
        if verdict is Drift.REALIGN:
            drift = Drift.REALIGN
        if given.messages is None:
            adopted.append((index, tuple(messages[at : at + count])))
        at += count + 1
    rest = tuple(messages[at:])
    if not rest:
        return Refusal(message="the messages end with a turn that was sampled already")
    ids = _render_input(history, open_at, rest, tools, render)
    return _plan_tail(history, open_at, tuple(ids), rest, drift, may_fork, tuple(adopted))


def _open_at(history: History) -> int:
    """Return the index of the first segment that belongs to no finished turn."""
    finished = [i for i, segment in enumerate(history.segments) if segment.is_finished]
    return finished[-1] + 1 if finished else 0


def _plan_tail(
    history: History,
    open_at: int,
    ids: tuple[int, ...],
    messages: tuple[Message, ...] | None,
    drift: Drift,
    may_fork: bool,
    adopted: tuple[tuple[int, tuple[Message, ...]], ...],
) -> Plan | Refusal:
    kind = TokenKind.OBSERVATION if open_at else TokenKind.PROMPT
    tail = history.segments[open_at:]
    plan = Plan(drift=drift, kind=kind, ids=ids, messages=messages, adopted=adopted)
    if not tail or tail[0].ids == ids:
        return replace(plan, ids=() if tail else ids)
    has_sampled = any(segment.is_action for segment in tail)
    if not has_sampled and ids[: len(tail[0].ids)] == tail[0].ids:
        # A crash between the commits of one input: the rest of it follows.
        return replace(plan, ids=ids[len(tail[0].ids) :])
    if not has_sampled:
        return replace(plan, cut_start=tail[0].start, cut_reason=CutReason.RESTART)
    if not may_fork:
        return Refusal(
            message=f"the input of turn {tail[0].turn} differs and part of it is sampled"
        )
    return _fork(history, open_at, ids, messages)


def _fork(
    history: History, index: int, ids: Sequence[int], messages: tuple[Message, ...] | None
) -> Plan:
    return Plan(
        drift=Drift.FORK,
        kind=TokenKind.OBSERVATION if index else TokenKind.PROMPT,
        ids=tuple(ids),
        messages=messages,
        cut_start=history.segments[index].start,
        cut_reason=CutReason.FORK,
    )


def _render_input(
    history: History, index: int, messages: Sequence[Message], tools: Tools, render: Render
) -> list[int]:
    if index == 0:
        return render.first(messages, tools)
    answered = history.segments[index - 1].ids
    return render.after_turn(messages, last_id=answered[-1] if answered else None)


def _match_input(
    history: History, index: int, messages: Sequence[Message], tools: Tools, render: Render
) -> int:
    """Return how many messages the input segment at `index` stands for; 0 when it stands for none
    of them.
    """
    given = history.segments[index]
    if given.messages is not None:
        count = len(given.messages)
        same = [plain(m) for m in messages[:count]] == [plain(m) for m in given.messages]
        return count if same else 0
    for count, message in enumerate(messages):
        if count and message.get("role") == "assistant":
            ids = _render_input(history, index, messages[:count], tools, render)
            if tuple(ids) == given.ids:
                return count
    return 0


def _match_answer(answer: Segment, message: Message, with_tools: bool, render: Render) -> Drift:
    if message.get("role") != "assistant":
        return Drift.FORK
    ids = answer.ids
    if ids and ids[-1] in render.stop_ids:
        ids = ids[:-1]
    text = render.decode(ids)
    reply = read_reply(text, with_tools=with_tools)
    if says_exactly(message, reply) or plain(message)["content"] == text:
        # The same text may encode to other ids than were sampled; ours stay, and the drift is on
        # record.
        return Drift.CLEAN if tuple(render.encode(text)) == ids else Drift.REALIGN
    return Drift.REALIGN if says_the_same(message, reply, text) else Drift.FORK

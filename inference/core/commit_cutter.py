"""Cuts the sampled tokens of a turn into commits: by count, time, version and end of turn.

A commit never holds tokens of two versions, so its span is one line and a swap cannot relabel what
came before it. The cutter drops nothing: every token given comes out in exactly one cut, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.enums import FinishReason
from schemas.errors import InvariantError
from schemas.ids import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class CutterLimits:
    """When a commit is due."""

    commit_tokens: int
    """Tokens of a full commit. Unit: tokens."""
    commit_interval_us: int
    """Age of the oldest uncommitted token at which it is committed. Unit: us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The tokens of one Action commit."""

    token_ids: tuple[int, ...]
    """[n]"""
    logprobs: tuple[float, ...]
    """float [n]. Unit: nats."""
    version: Version
    last_token_us: int
    """When its last token arrived. Unit: us, monotonic."""
    finish_reason: FinishReason = FinishReason.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CutterState:
    """Tokens sampled and not yet committed, all of one version."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: Version | None = None
    since_us: int = 0
    """When the oldest of them arrived. Unit: us, monotonic."""
    last_us: int = 0
    """When the newest of them arrived. Unit: us, monotonic."""

    def due_us(self, limits: CutterLimits) -> int | None:
        """Return when the time for a commit runs out, or None when nothing waits. Unit: us,
        monotonic.
        """
        return self.since_us + limits.commit_interval_us if self.token_ids else None


_EMPTY = CutterState()


def add(
    state: CutterState,
    *,
    limits: CutterLimits,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    version: Version,
    now_us: int,
    is_last: bool = False,
) -> tuple[CutterState, tuple[Cut, ...]]:
    """Take new tokens of one version; return what is due at once.

    token_ids and logprobs: [n], equal in length (the caller has checked them), else InvariantError.
    now_us: monotonic; a wall clock that is set back by an hour would keep tokens from the log for
    an hour. With `is_last` the rest waits for `finish`, so that the reason the turn ended stands on
    a commit with tokens.
    """
    if len(token_ids) != len(logprobs):
        raise InvariantError(
            f"{len(token_ids)} tokens with {len(logprobs)} log-probs reach the cutter"
        )
    cuts: list[Cut] = []
    if state.token_ids and state.version != version:
        cuts.append(_cut(state))
        state = _EMPTY
    ids, values = (*state.token_ids, *token_ids), (*state.logprobs, *logprobs)
    since_us = state.since_us if state.token_ids else now_us
    while len(ids) >= limits.commit_tokens + is_last:
        n = limits.commit_tokens
        cuts.append(
            Cut(token_ids=ids[:n], logprobs=values[:n], version=version, last_token_us=now_us)
        )
        ids, values, since_us = ids[n:], values[n:], now_us
    if not ids:
        return _EMPTY, tuple(cuts)
    waiting = CutterState(
        token_ids=ids, logprobs=values, version=version, since_us=since_us, last_us=now_us
    )
    if now_us - since_us >= limits.commit_interval_us and not is_last:
        return _EMPTY, (*cuts, _cut(waiting))
    return waiting, tuple(cuts)


def flush(state: CutterState) -> tuple[CutterState, tuple[Cut, ...]]:
    """Commit what waits: the interval is over, the engine is drained, or the request leaves it."""
    return _EMPTY, ((_cut(state),) if state.token_ids else ())


def finish(
    state: CutterState, *, reason: FinishReason, version: Version, now_us: int
) -> tuple[CutterState, tuple[Cut, ...]]:
    """End the turn: one last commit names the reason, even when no token waits for it."""
    if state.token_ids:
        last = _cut(state)
        return _EMPTY, (
            Cut(
                token_ids=last.token_ids,
                logprobs=last.logprobs,
                version=last.version,
                last_token_us=last.last_token_us,
                finish_reason=reason,
            ),
        )
    return _EMPTY, (
        Cut(token_ids=(), logprobs=(), version=version, last_token_us=now_us, finish_reason=reason),
    )


def _cut(state: CutterState) -> Cut:
    if state.version is None:
        raise InvariantError("tokens without a version reach a commit")
    return Cut(
        token_ids=state.token_ids,
        logprobs=state.logprobs,
        version=state.version,
        last_token_us=state.last_us,
    )

"""The life of a generation request, as a table of edges. Source: requirements 3.5.

RUNNING means handed to an engine. A request that must leave its engine (death, drain) goes through
DRAINING, in which what was sampled is committed, and waits SUSPENDED until an engine takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from schemas.errors import InvariantError
from schemas.ids import Version


class Phase(StrEnum):
    """Where a request stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DRAINING = "draining"
    SUSPENDED = "suspended"
    RESUMING_KV = "resuming_kv"
    RESUMING_PREFILL = "resuming_prefill"
    FINISHED = "finished"
    DISCARDED = "discarded"

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self in (Phase.FINISHED, Phase.DISCARDED)


EDGES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.QUEUED, Phase.RUNNING),
        (Phase.RUNNING, Phase.DRAINING),
        (Phase.DRAINING, Phase.SUSPENDED),
        (Phase.SUSPENDED, Phase.RESUMING_KV),
        (Phase.SUSPENDED, Phase.RESUMING_PREFILL),
        (Phase.RESUMING_KV, Phase.RUNNING),
        (Phase.RESUMING_PREFILL, Phase.RUNNING),
        (Phase.RUNNING, Phase.FINISHED),
        (Phase.RUNNING, Phase.DISCARDED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """What a suspended request is resumed from."""

    wal_position: int
    """Offset of the last durable commit; -1 when there is none. Unit: records."""
    kv_id: str | None
    """Saved KV, or None when only prefill remains."""
    version: Version
    """Policy version the KV and the last token belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request's phase, with what belongs to it."""

    phase: Phase = Phase.QUEUED
    suspension: Suspension | None = None
    """Set from SUSPENDED until it runs again."""
    reason: str = ""
    """Why it was discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An engine takes the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The request must leave its engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """What was sampled is committed; the request waits."""

    suspension: Suspension


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An engine is ready again, serving `version`."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The turn ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """The request ends without a turn, for a named reason."""

    reason: str


Event: TypeAlias = Run | Drain | Suspend | Resume | Finish | Discard


def step(request: Request, event: Event) -> Request:
    """Return the request after an event; raise InvariantError for an illegal one and leave it as it
    was.
    """
    match event:
        case Run():
            return Request(phase=_move(request, Phase.RUNNING))
        case Drain():
            return Request(phase=_move(request, Phase.DRAINING))
        case Suspend(suspension=suspension):
            return Request(phase=_move(request, Phase.SUSPENDED), suspension=suspension)
        case Resume(version=version):
            # KV belongs to a policy version: under another one only prefill is right (requirements,
            # trap 2).
            saved = request.suspension
            usable = saved is not None and saved.kv_id is not None and saved.version == version
            after = _move(request, Phase.RESUMING_KV if usable else Phase.RESUMING_PREFILL)
            return Request(phase=after, suspension=saved)
        case Finish():
            return Request(phase=_move(request, Phase.FINISHED))
        case Discard(reason=reason):
            return Request(phase=_move(request, Phase.DISCARDED), reason=reason)


def _move(request: Request, after: Phase) -> Phase:
    if (request.phase, after) not in EDGES:
        raise InvariantError(f"a request cannot go from {request.phase} to {after}")
    return after

"""What a sandbox backend that keeps a running guest offers (requirement R44).

bubblewrap keeps none: each of its runs is fresh, so its tools declare themselves idempotent and an
episode is rebuilt by replay. A backend with snapshots (microVMs) implements `Guest`, and then
`Paused` names the snapshot from which the next attempt goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from schemas.deadline import Deadline

SnapshotId = NewType("SnapshotId", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What a snapshot holds (requirement R48); whatever is False is rebuilt or reset on resume."""

    disk: bool
    memory: bool
    clock: bool
    """The guest's clock is frozen; otherwise it steps to the present."""
    random_source: bool
    network: bool


class Guest(Protocol):
    """A running guest. Every call raises TransientError when the deadline passes first."""

    @property
    def holds(self) -> SnapshotFacts:
        """What its snapshots hold."""
        ...

    async def pause(self, *, deadline: Deadline) -> None:
        """Stop its processors; memory stays."""
        ...

    async def resume(self, *, deadline: Deadline) -> None:
        """Let it run on."""
        ...

    async def snapshot(self, *, deadline: Deadline) -> SnapshotId:
        """Make its state durable, the marker last, and return its name."""
        ...

    async def fork(self, *, deadline: Deadline) -> Guest:
        """Return a second guest with the same state; writes of either stay its own."""
        ...

    async def kill(self) -> None:
        """End it at once; killing twice changes nothing."""
        ...

"""The audit's own reading of `learner-steps`: the lineage, and what each surviving step trained
(design section 10).
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.enums import DropReason, LearnerEventKind
from schemas.ports import Delivered
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import ChunkRef, StepRef, TrainedMember

_ROOT = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A Step on the lineage."""

    version: tuple[int, int]
    ordinal: int
    offset: int
    partition: int
    digest: str
    members: tuple[TrainedMember, ...]
    lists: tuple[ChunkRef, ...] = ()
    """Chunks of payloads with the list of its rejected tokens."""
    rejected: tuple[int, int] = (0, 0)
    """Tokens that it says lay below and above the band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skip:
    offset: int
    depth: int
    """Steps on the lineage when it was written."""
    episode_id: str
    reason: DropReason
    action_tokens: int


class Steps:
    """The learner of a run, as its log tells."""

    def __init__(self) -> None:
        """Start at the starting weights."""
        self.lineage: list[Step] = []
        self.covered = 0
        """Steps of the lineage that a checkpoint covers: those survive."""
        self.ordinals: dict[tuple[int, int], int] = {_ROOT: 0}
        """Every version by a Step that counted at its time, lost ones included."""
        self.digests: dict[tuple[int, int], str] = {}
        self.closed = False
        self.closed_counts: dict[str, int] = {}
        self.void = 0
        self.lost = 0
        self._skips: list[_Skip] = []
        self._marks: dict[int, int] = {}
        """Steps covered by a Checkpointed to its offset."""
        self._kept: dict[int, tuple[int, dict[int, int]]] = {}
        """Steps covered by a Checkpointed to its offset and next offset per gated partition."""
        self._fence: tuple[int, str] = (0, "")
        self._restored = 0
        self._behind: dict[int, LearnerEvent] = {}
        """Steps and Checkpointed records that stand behind a fence, by offset."""

    @property
    def skips(self) -> dict[str, tuple[DropReason, int]]:
        """Episode to reason and action tokens of what was discarded, as far as its branch
        stands.
        """
        return {skip.episode_id: (skip.reason, skip.action_tokens) for skip in self._skips}

    def on_lineage(self) -> dict[tuple[int, int], int]:
        """Return the ordinal of every version on the lineage; those below a step's are its
        ancestors.
        """
        return {_ROOT: 0, **{step.version: step.ordinal for step in self.lineage}}

    def survives(self, index: int) -> bool:
        """Whether the step at an index of the lineage is covered by a checkpoint."""
        return index < self.covered

    def restart(self) -> tuple[int, int, dict[int, int]]:
        """Return where a learner that starts now would go on: steps covered, offset of the
        Checkpointed, next offset per gated partition.
        """
        depth = max((d for d in self._kept if d <= self.covered), default=0)
        return (depth, *self._kept.get(depth, (-1, {})))

    def take(self, message: Delivered[LearnerEvent]) -> None:
        """Take the next record of the run."""
        event = message.record
        if not self._counts(message):
            self.void += 1
            if event.kind in (LearnerEventKind.STEP, LearnerEventKind.CHECKPOINTED):
                self._behind[message.offset] = event

    def _counts(self, message: Delivered[LearnerEvent]) -> bool:
        event = message.record
        if event.kind is LearnerEventKind.EPOCH_STARTED:
            if event.epoch <= self._fence[0]:
                return False
            self._fence = (event.epoch, event.learner_id)
            return True
        if self._fence != (event.epoch, event.learner_id) or self.closed:
            return False
        if event.kind is LearnerEventKind.RESTORED:
            return self._restore(message)
        if self._restored != event.epoch:
            return False
        return self._after_restored(message)

    def _after_restored(self, message: Delivered[LearnerEvent]) -> bool:
        event = message.record
        if event.kind is LearnerEventKind.STEP:
            parent = self._head()
            if (event.number, event.ordinal) != (parent[1] + 1, len(self.lineage) + 1):
                return False
            self._push(message.partition, message.offset, event.epoch, event.number, event)
        elif event.kind is LearnerEventKind.SKIPPED:
            self._skips += [
                _Skip(
                    offset=message.offset,
                    depth=len(self.lineage),
                    episode_id=member.episode_id,
                    reason=member.reason,
                    action_tokens=member.action_tokens,
                )
                for member in event.skipped
            ]
        elif event.kind is LearnerEventKind.CHECKPOINTED:
            if not self._mark(event.number, message.offset):
                return False
            self._kept[self._depth_of(event.number) or 0] = (
                message.offset,
                {end.partition: end.offset for end in event.positions},
            )
        elif event.kind is LearnerEventKind.CLOSED:
            self.closed, self.closed_counts = True, dict(event.counts)
        return True

    def _head(self) -> tuple[int, int]:
        return self.lineage[-1].version if self.lineage else _ROOT

    def _push(
        self, partition: int, offset: int, epoch: int, number: int, event: LearnerEvent
    ) -> None:
        step = Step(
            version=(epoch, number),
            ordinal=len(self.lineage) + 1,
            offset=offset,
            partition=partition,
            digest=event.policy_digest,
            members=event.trained,
            lists=event.id_lists,
            rejected=(event.rejected_low, event.rejected_high),
        )
        self.lineage.append(step)
        self.ordinals[step.version] = step.ordinal
        self.digests[step.version] = step.digest

    def _depth_of(self, number: int) -> int | None:
        """Steps of the lineage up to the one of this number; None when it is not on it."""
        if number == 0:
            return 0
        for depth, step in enumerate(self.lineage, start=1):
            if step.version[1] == number:
                return depth
        return None

    def _mark(self, number: int, offset: int) -> bool:
        depth = self._depth_of(number)
        if depth is None:
            return False
        self._marks[depth] = offset
        self.covered = max(self.covered, depth)
        return True

    def _restore(self, message: Delivered[LearnerEvent]) -> bool:
        event = message.record
        if self._restored == event.epoch:
            return False
        parent = (event.parent_epoch, event.parent_number)
        if not self._is_reached(parent, {(ref.epoch, ref.number) for ref in event.adopted}):
            return False
        stands = parent == _ROOT or any(step.version == parent for step in self.lineage)
        for ref in sorted(event.adopted, key=lambda r: (r.number, r.offset < 0, r.offset)):
            self._adopt(message.partition, ref, event, steps=not stands)
        depth = self._depth_of(parent[1])
        if depth is None:
            return False
        self._cut(depth, event)
        self._restored = event.epoch
        return True

    def _is_reached(self, parent: tuple[int, int], named: set[tuple[int, int]]) -> bool:
        """Whether the parent is on the lineage, or adopted steps lead to it from there."""
        known = {_ROOT, *(step.version for step in self.lineage)}
        if parent in known:
            return True
        numbers = {number for _, number in named - known if number <= parent[1]}
        lowest = parent[1]
        while lowest in numbers:
            lowest -= 1
        on_lineage = self._depth_of(lowest) is not None
        return parent in named and on_lineage and not any(n <= lowest for n in numbers)

    def _adopt(self, partition: int, ref: StepRef, event: LearnerEvent, *, steps: bool) -> None:
        held = self._behind.get(ref.offset)
        if held is not None and held.kind is LearnerEventKind.CHECKPOINTED:
            self._mark(ref.number, ref.offset)
            return
        if any(step.version == (ref.epoch, ref.number) for step in self.lineage):
            return
        if not steps or ref.number > event.parent_number:
            return
        depth = self._depth_of(ref.number - 1)
        if depth is not None:
            self._truncate(depth, 1 << 62)
            self._push(partition, ref.offset, ref.epoch, ref.number, held or event)

    def _cut(self, depth: int, event: LearnerEvent) -> None:
        offsets = [ref.offset for ref in event.restored if ref.offset >= 0]
        if depth in self._marks:
            offsets.append(self._marks[depth])
        # A checkpoint whose record is missing covers what was skipped until its next step.
        unknown = -1 if depth == 0 else 1 << 62
        taken_at = max(offsets, default=unknown)
        self._truncate(depth, taken_at)
        self.covered = depth

    def _truncate(self, depth: int, taken_at: int) -> None:
        """Cut the lineage to `depth` steps; what was skipped above it, or after `taken_at`, is
        void.
        """
        self.lost += len(self.lineage) - depth
        del self.lineage[depth:]
        self._skips = [s for s in self._skips if s.depth <= depth and s.offset < taken_at]
        self._marks = {d: offset for d, offset in self._marks.items() if d <= depth}
        self._kept = {d: kept for d, kept in self._kept.items() if d <= depth}
        self.covered = min(self.covered, depth)

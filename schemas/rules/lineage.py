"""The reading rule of `learner-steps`: which steps count, which survive, what they trained (design
section 10).

EpochStarted only fences: records of a lower epoch after it are void, of two equals the first wins.
Restored chooses the parent, adopts what its checkpoint holds beyond the log's fence, and thereby
cuts the rest of the old branch off. The lineage is the chain of the last Restored. A step survives
once a checkpoint on the lineage is it or descends from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.enums import LearnerEventKind
from schemas.ids import EpisodeId, Version, WorkerId
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import SkippedMember, StepRef

START = Version(0, 0)
"""The starting weights: ordinal 0, the root of every lineage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    ref: StepRef
    episodes: tuple[EpisodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skip:
    member: SkippedMember
    offset: int
    after: int
    """Number of the version it was skipped after. Unit: versions."""


class LearnerLog:
    """The learner's log of one run after the records taken so far, in log order."""

    __slots__ = (
        "_held",
        "_ordinals",
        "_restored_epoch",
        "_skips",
        "_steps",
        "_void",
        "checkpoints",
        "closed",
        "epoch",
        "learner_id",
        "lost",
        "skipped",
        "surviving_number",
        "trained",
        "void",
    )

    def __init__(self) -> None:
        """Start before the first record: the starting weights, nothing trained."""
        self.epoch = 0
        """Epoch of the current fence; 0 before the first EpochStarted. Unit: epochs."""
        self.learner_id = WorkerId("")
        self.trained: dict[EpisodeId, StepRef] = {}
        """Every episode trained on the lineage, provisional steps included, with its step."""
        self.skipped: dict[EpisodeId, SkippedMember] = {}
        """What the learner discarded, as far as its branch stands."""
        self.checkpoints: list[StepRef] = []
        """Checkpoints on the lineage, oldest first; `offset` is the Checkpointed record's, -1 when
        it is missing.
        """
        self.surviving_number = 0
        """Number of the newest version that a checkpoint covers: steps up to it survive. Unit:
        versions.
        """
        self.closed: LearnerEvent | None = None
        self.lost = 0
        """Steps that counted once and were cut off by a Restored. Unit: steps."""
        self.void = 0
        """Records that did not count. Unit: records."""
        self._steps: list[_Step] = []
        self._skips: list[_Skip] = []
        self._held: dict[int, LearnerEvent] = {}
        self._ordinals: dict[Version, tuple[int, int]] = {START: (0, 0)}
        self._restored_epoch = 0

    @property
    def head(self) -> tuple[Version, int]:
        """The newest version on the lineage and its ordinal."""
        if not self._steps:
            return START, 0
        ref = self._steps[-1].ref
        return Version(ref.epoch, ref.number), ref.ordinal

    @property
    def is_restored(self) -> bool:
        """Whether the newest learner has said from which version it goes on; also before the first
        learner. Until then, which of the provisional steps stay is not decided.
        """
        return self._restored_epoch == self.epoch

    @property
    def newest_ordinal(self) -> int:
        """Ordinal of the head. Unit: updates."""
        return self.head[1]

    @property
    def surviving_ordinal(self) -> int:
        """Ordinal of the newest step that survives. Unit: updates."""
        return next(
            (
                step.ref.ordinal
                for step in reversed(self._steps)
                if step.ref.number <= self.surviving_number
            ),
            0,
        )

    @property
    def steps(self) -> tuple[StepRef, ...]:
        """The steps of the lineage, oldest first; `offset` is that of the Step record."""
        return tuple(step.ref for step in self._steps)

    @property
    def trained_surviving(self) -> dict[EpisodeId, StepRef]:
        """The part of `trained` whose step survives."""
        return {
            episode: ref
            for episode, ref in self.trained.items()
            if ref.number <= self.surviving_number
        }

    def survives(self, step: StepRef) -> bool:
        """Whether a step of the lineage is covered by a checkpoint."""
        return step.number <= self.surviving_number

    def ordinal_of(self, version: Version) -> int | None:
        """Return the ordinal of a version that a Step made, orphaned ones included; None when it is
        not known.
        """
        known = self._ordinals.get(version)
        return known[0] if known else None

    def stepped_ms(self, version: Version) -> int | None:
        """Return the broker time of the Step that made a version, 0 for the starting weights. Unit:
        ms.
        """
        known = self._ordinals.get(version)
        return known[1] if known else None

    def steps_since(self, timestamp_ms: int, *, most: int) -> int:
        """Return how many steps of the lineage were recorded after a broker time, counted up to
        `most`.
        """
        count = 0
        for step in reversed(self._steps):
            known = self._ordinals.get(Version(step.ref.epoch, step.ref.number))
            if count >= most or known is None or known[1] <= timestamp_ms:
                break
            count += 1
        return count

    def is_ancestor(self, version: Version) -> bool:
        """Whether a version is on the lineage: the head, one of its ancestors, or the starting
        weights.
        """
        if version == START:
            return True
        at = version.number - self._steps[0].ref.number if self._steps else -1
        if not 0 <= at < len(self._steps):
            return False
        return self._steps[at].ref.epoch == version.epoch

    def take(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> bool:
        """Take the next record of the run in log order; return whether it counts.

        `trained` of a Step must be whole: a shell that reads a Step with `id_lists` puts the lists
        in first.
        """
        counts = self._take(offset, timestamp_ms, event)
        if not counts:
            self.void += 1
            if event.kind in (LearnerEventKind.STEP, LearnerEventKind.CHECKPOINTED):
                # A fenced learner's last records may stand behind the fence; a Restored can adopt
                # them.
                self._held[offset] = event
        return counts

    def _take(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> bool:
        if event.kind is LearnerEventKind.EPOCH_STARTED:
            if event.epoch <= self.epoch:
                return False
            self.epoch, self.learner_id = event.epoch, event.learner_id
            return True
        if (event.epoch, event.learner_id) != (self.epoch, self.learner_id) or self.closed:
            return False
        if event.kind is LearnerEventKind.RESTORED:
            return self._restore(timestamp_ms, event)
        return self._restored_epoch == self.epoch and self._take_restored(
            offset, timestamp_ms, event
        )

    def _take_restored(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> bool:
        match event.kind:
            case LearnerEventKind.STEP:
                return self._step(offset, timestamp_ms, event)
            case LearnerEventKind.SKIPPED:
                after = self.head[0].number
                for member in event.skipped:
                    self._skips.append(_Skip(member=member, offset=offset, after=after))
                    self.skipped[member.episode_id] = member
                return True
            case LearnerEventKind.CHECKPOINTED:
                return self._checkpoint(
                    StepRef(
                        epoch=event.epoch, number=event.number, ordinal=event.ordinal, offset=offset
                    )
                )
            case LearnerEventKind.CLOSED:
                self.closed = event
                return True
            case _:
                return False

    def _step(self, offset: int, timestamp_ms: int, event: LearnerEvent) -> bool:
        head, ordinal = self.head
        if event.number != head.number + 1 or event.ordinal != ordinal + 1:
            return False
        ref = StepRef(epoch=event.epoch, number=event.number, ordinal=event.ordinal, offset=offset)
        self._append(ref, timestamp_ms, tuple(member.episode_id for member in event.trained))
        return True

    def _append(self, ref: StepRef, timestamp_ms: int, episodes: tuple[EpisodeId, ...]) -> None:
        self._steps.append(_Step(ref=ref, episodes=episodes))
        self._ordinals[Version(ref.epoch, ref.number)] = (ref.ordinal, timestamp_ms)
        for episode in episodes:
            self.trained.setdefault(episode, ref)

    def _checkpoint(self, ref: StepRef) -> bool:
        if not self._is_on_lineage(ref):
            return False
        self.checkpoints.append(ref)
        self.surviving_number = max(self.surviving_number, ref.number)
        return True

    def _is_on_lineage(self, ref: StepRef) -> bool:
        # A checkpoint names its version by number; its own epoch may be newer than the step's
        # (taken right at a restart).
        at = ref.number - self._steps[0].ref.number if self._steps else -1
        return ref.number == 0 or 0 <= at < len(self._steps)

    def _restore(self, timestamp_ms: int, event: LearnerEvent) -> bool:
        if self._restored_epoch == self.epoch:
            return False
        parent = Version(event.parent_epoch, event.parent_number)
        if not (self.is_ancestor(parent) or self._can_adopt(parent, event)):
            return False
        self._restored_epoch = self.epoch
        self._adopt(timestamp_ms, event, steps=not self.is_ancestor(parent))
        self._cut_after(parent.number, self._checkpoint_offset(event))
        self.surviving_number = parent.number
        if parent != START and not any(ref.number == parent.number for ref in self.checkpoints):
            self.checkpoints.append(
                StepRef(
                    epoch=parent.epoch, number=parent.number, ordinal=self.newest_ordinal, offset=-1
                )
            )
        return True

    def _can_adopt(self, parent: Version, event: LearnerEvent) -> bool:
        new = {
            ref.number: ref.epoch
            for ref in event.adopted
            if ref.number <= parent.number and not self.is_ancestor(Version(ref.epoch, ref.number))
        }
        if new.get(parent.number) != parent.epoch:
            return False
        first = min(new)
        # The adopted steps must stand on the lineage without a hole between them.
        is_whole = len(new) == parent.number - first + 1
        return is_whole and first - 1 <= self.head[0].number

    def _adopt(self, timestamp_ms: int, event: LearnerEvent, *, steps: bool) -> None:
        for ref in sorted(event.adopted, key=_steps_first):
            held = self._held.get(ref.offset)
            if held is not None and held.kind is LearnerEventKind.CHECKPOINTED:
                self._checkpoint(ref)
                continue
            version = Version(ref.epoch, ref.number)
            if self.is_ancestor(version):
                if ref.offset < 0:
                    self._checkpoint(ref)
                continue
            if not steps or ref.number > event.parent_number:
                # Only steps that lead to the parent are adopted; when it counts already, none do.
                continue
            head, ordinal = self.head
            if ref.number <= head.number:
                # The adopted step stands on an older version than the head: what was above is
                # another branch.
                self._cut_after(ref.number - 1, None)
                head, ordinal = self.head
            if ref.number != head.number + 1:
                continue
            # A Step that never reached the log is told by the Restored itself, which names what it
            # trained.
            members = (held or event).trained
            self._append(
                StepRef(epoch=ref.epoch, number=ref.number, ordinal=ordinal + 1, offset=ref.offset),
                timestamp_ms,
                tuple(member.episode_id for member in members),
            )

    def _checkpoint_offset(self, event: LearnerEvent) -> int | None:
        if event.parent_number == 0 and not self.checkpoints:
            return -1
        offsets = [ref.offset for ref in event.restored if ref.offset >= 0]
        offsets += [
            ref.offset
            for ref in self.checkpoints
            if ref.number == event.parent_number and ref.offset >= 0
        ]
        return max(offsets, default=None)

    def _cut_after(self, number: int, checkpoint_offset: int | None) -> None:
        while self._steps and self._steps[-1].ref.number > number:
            step = self._steps.pop()
            self.lost += 1
            for episode in step.episodes:
                if self.trained.get(episode) == step.ref:
                    del self.trained[episode]
        self.checkpoints = [ref for ref in self.checkpoints if ref.number <= number]
        # What was skipped after the checkpoint was taken is void with its branch: the learner reads
        # it again.
        kept = [
            skip
            for skip in self._skips
            if skip.after <= number
            and (checkpoint_offset is None or skip.offset < checkpoint_offset)
        ]
        self._skips = kept
        self.skipped = {skip.member.episode_id: skip.member for skip in kept}


def _steps_first(ref: StepRef) -> tuple[int, bool, int]:
    # Without an offset it is the checkpoint itself, or a Step that never reached the log: after
    # those that did.
    return ref.number, ref.offset < 0, ref.offset

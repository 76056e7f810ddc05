"""The version in memory: what it is, and when it and its ancestors were published."""

from __future__ import annotations

from collections.abc import Sequence

from learner.core.staleness import Lineage
from schemas.ids import Version
from schemas.records.parts import StepRef
from schemas.rules.lineage import START


class Head:
    """Where the learner stands on its lineage; only a step moves it on."""

    def __init__(self, version: Version = START, ordinal: int = 0, digest: str = "") -> None:
        self.version, self.ordinal = version, ordinal
        self.digest = digest
        """Of the published version; empty when this one was not written."""
        self._ordinals: dict[Version, int] = {START: 0}
        self._published_us: dict[Version, int] = {}

    def publish(self, version: Version, published_us: int) -> None:
        """Note the broker time at which a version of the lineage was published. Unit: us."""
        self._published_us[version] = published_us

    def descend(self, steps: Sequence[StepRef]) -> None:
        """Take over the steps that lead here."""
        for ref in steps:
            self._ordinals[Version(ref.epoch, ref.number)] = ref.ordinal

    def advance(self, version: Version, ordinal: int, digest: str, published_us: int) -> None:
        """Move on to the version that a step has made."""
        self.version, self.ordinal, self.digest = version, ordinal, digest
        self._ordinals[version] = ordinal
        self._published_us[version] = published_us

    def lineage(self) -> Lineage:
        """Return what the version in memory descends from."""
        return Lineage(
            ordinal=self.ordinal,
            ordinals=self._ordinals,
            published_us=self._published_us,
            now_published_us=self._published_us.get(self.version, 0),
        )

"""Floors of several topics in the metadata of one offset commit, as JSON text of at most 4,000
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import InvariantError
from schemas.ids import WorkerId
from schemas.ports import Floor
from schemas.rules.episodes import NO_SCHEDULER

_BYTES_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Where to start reading one partition of several topics, so that nothing unsettled is
    missed.
    """

    offset: int
    """Floor of the joined topic. Unit: records."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Floor by logical topic name. Unit: records."""
    fence: tuple[int, WorkerId] = NO_SCHEDULER
    """The SchedulerFence that was current at the floor of `episodes`."""

    def to_floor(self) -> Floor:
        """Return the offset commit."""
        text = json.dumps(
            {"floors": dict(self.others), "fence": list(self.fence)}, separators=(",", ":")
        )
        if len(text.encode()) > _BYTES_MAX:
            raise InvariantError(f"floors of {len(text)} bytes do not fit an offset commit")
        return Floor(offset=self.offset, metadata=text)

    @classmethod
    def read(cls, floor: Floor | None, *, starts: Mapping[str, int], joined: str) -> Floors:
        """Return the floors of a commit, or the run's starts where there is none.

        starts: where the run begins by logical topic name, the joined one included. Raises
        InvariantError for metadata that is not ours: another program committed under our group.
        """
        others = {name: start for name, start in starts.items() if name != joined}
        if floor is None:
            return cls(offset=starts[joined], others=others)
        try:
            raw = json.loads(floor.metadata)
            epoch, scheduler = raw["fence"]
            found = {name: int(raw["floors"][name]) for name in others}
        except (ValueError, KeyError, TypeError) as error:
            raise InvariantError(
                f"the committed floor of {joined} holds {floor.metadata[:80]!r}: {error}",
                hint="another program commits under this group; give the run another prefix",
            ) from error
        return cls(offset=floor.offset, others=found, fence=(int(epoch), WorkerId(str(scheduler))))

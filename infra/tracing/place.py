"""Where the tracer goes on after a restart: a small file beside the run.

It is no truth: without it, or with a spoilt one, the run is read from its start and told again
under the same ids.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.run.folder import write_atomically
from infra.tracing.core.fold import Fence, Place

_LOG = logging.getLogger("sluice.tracer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Floors by (topic, partition) and the schedulers' fences at those of `episodes`."""

    floors: Mapping[Place, int] = field(default_factory=dict)
    fences: Mapping[int, Fence] = field(default_factory=dict)


def read_place(path: Path) -> Kept:
    """Return what was kept; nothing when there is no file or it is spoilt."""
    try:
        raw = json.loads(path.read_bytes())
        return Kept(
            floors={(str(topic), int(p)): int(offset) for topic, p, offset in raw["floors"]},
            fences={int(p): (int(epoch), str(who)) for p, epoch, who in raw["fences"]},
        )
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("%s is spoilt, so the run is told from its start: %s", path, error)
        return Kept()


def write_place(path: Path, kept: Kept) -> None:
    """Replace the file; raise TransientError when the disk does not take it."""
    body = {
        "floors": [[topic, p, offset] for (topic, p), offset in kept.floors.items()],
        "fences": [[p, epoch, who] for p, (epoch, who) in kept.fences.items()],
    }
    write_atomically(path, json.dumps(body).encode())

"""What fixes the tasks that a run holds out."""

from __future__ import annotations

import hashlib

from environments import ports
from stream_jobs.settings import StreamSettings, TaskSourceSettings


def held_out_digest(
    source: TaskSourceSettings, stream: StreamSettings, package: ports.TaskPackage
) -> str:
    """Return what fixes the held-out tasks of a component: its package, seed and range."""
    told = {
        "environment": package.digest(stream.config),
        "seed": source.seed,
        "first": source.held_out_first,
        "count": source.held_out_count,
    }
    return hashlib.sha256(ports.canonical(told).encode()).hexdigest()

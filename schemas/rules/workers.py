"""The reading rule of `workers`: which of two processes under one worker id is the one that counts.

Both may live: one that was stopped, taken for dead, replaced, and resumed goes on announcing
itself. Were the last record the one that counts, each heartbeat of the old process would take the
name back from the new one, and with it all that the new one runs.
"""

from __future__ import annotations

from schemas.records.worker_state import WorkerState


def is_successor(state: WorkerState, of: WorkerState) -> bool:
    """Whether a state is of a process that was started after `of` under its worker id.

    The start is told by the process's own clock. Two machines' clocks may disagree, so that a
    reader passes an older process over only while the younger one is heard of. Of two that started
    at once, the incarnation decides, for every reader alike.
    """
    return (state.started_us, state.incarnation) > (of.started_us, of.incarnation)

"""How long the collectives of DeepSpeed took, by its own timers."""

from __future__ import annotations


class Collectives:
    """The timers of this process; one engine at a time uses them."""

    def __init__(self, *, are_timed: bool) -> None:
        """Time each collective from now on, or none; it is waited for then, as without overlap."""
        import deepspeed

        deepspeed.comm.configure(enabled=are_timed, prof_all=True, verbose=False)
        self._timers = deepspeed.comm.comm.timers
        self._told = deepspeed.comm.comm.comms_logger.comms_dict
        self.take_s()

    def take_s(self) -> float:
        """Return how long they took since the last call. Unit: s."""
        spent_ms = sum(timer.elapsed() for timer in self._timers.get_timers().values())
        # It keeps every call for a summary of its own.
        self._told.clear()
        return float(spent_ms) / 1000

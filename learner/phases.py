"""Where the time between two Steps went: every microsecond belongs to exactly one phase, so phases
sum to the step.
"""

from __future__ import annotations

from collections.abc import Mapping


class Phases:
    """A stopwatch with names. The caller hands in the time."""

    def __init__(self, name: str, *, now_us: int) -> None:
        self._name, self._since_us = name, now_us
        self._spent: dict[str, int] = {}

    def enter(self, name: str, *, now_us: int) -> None:
        """Book the time since the last change on the phase that ends, and begin another."""
        spent = max(0, now_us - self._since_us)
        self._spent[self._name] = self._spent.get(self._name, 0) + spent
        self._name, self._since_us = name, max(now_us, self._since_us)

    def split(self, name: str, parts: Mapping[str, int]) -> None:
        """Give parts of a booked phase their own names; what they leave stays. Unit: us."""
        left = self._spent.get(name, 0)
        for part, spent in parts.items():
            given = max(0, min(spent, left))
            self._spent[part] = self._spent.get(part, 0) + given
            left -= given
        self._spent[name] = left

    def take(self, *, now_us: int) -> dict[str, int]:
        """Return the phases since the last call and begin anew in the current one. Unit: us."""
        self.enter(self._name, now_us=now_us)
        taken, self._spent = self._spent, {}
        return taken

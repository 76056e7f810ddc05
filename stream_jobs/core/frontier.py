"""A set of ordinals kept as its contiguous beginning and the few above it, so that memory follows
the disorder only.
"""

from __future__ import annotations

from collections.abc import Collection


class Frontier:
    """Ordinals 0, 1, 2, ... that are done; `lowest_open` is the first that is not."""

    __slots__ = ("_above", "lowest_open")

    def __init__(self) -> None:
        """Start empty."""
        self.lowest_open = 0
        """The lowest ordinal that is not in the set; the highest contiguous one is one less. Unit:
        tasks.
        """
        self._above: set[int] = set()

    @classmethod
    def below(cls, end: int, *, but: Collection[int] = ()) -> Frontier:
        """Return the set of all ordinals below `end` but for some. Unit: tasks."""
        made = cls()
        made.lowest_open = min(but, default=end)
        made._above = set(range(made.lowest_open, end)).difference(but)
        return made

    @property
    def end(self) -> int:
        """One above the highest ordinal that is in. Unit: tasks."""
        return max(self._above, default=self.lowest_open - 1) + 1

    def add(self, ordinal: int) -> None:
        """Put an ordinal in; one that is in already changes nothing."""
        if ordinal < self.lowest_open:
            return
        self._above.add(ordinal)
        while self.lowest_open in self._above:
            self._above.remove(self.lowest_open)
            self.lowest_open += 1

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.lowest_open or ordinal in self._above

    def __len__(self) -> int:
        return self.lowest_open + len(self._above)

"""The world outside: tools whose effects no log can take back, and who counts them.

`serve` is the outside's own work: once a call has reached it, it happens although the caller is
dead. Like every non-idempotent tool of the design it serves no attempt lower than one it has seen.
"""

from __future__ import annotations

from collections import Counter

from schemas.errors import FencedError


class Outside:
    """Executions by call key."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.executed: Counter[str] = Counter()
        self.idempotent: set[str] = set()
        """Keys whose tool may run twice without harm."""
        self._lowest: dict[str, int] = {}

    def serve(self, key: str, attempt: int, *, is_idempotent: bool) -> str:
        """Execute a call and return its output; raise FencedError for a lower attempt."""
        if is_idempotent:
            self.idempotent.add(key)
        else:
            self._must_serve(key, attempt)
        self.executed[key] += 1
        return f"{key} done"

    def ask(self, key: str, attempt: int) -> str | None:
        """Say by key what became of a call; no lower attempt is served from then on."""
        self._must_serve(key, attempt)
        return f"{key} done" if self.executed[key] else None

    def _must_serve(self, key: str, attempt: int) -> None:
        if attempt < self._lowest.get(key, 0):
            raise FencedError(f"attempt {attempt} of {key} is over")
        self._lowest[key] = max(attempt, self._lowest.get(key, 0))

    @property
    def twice(self) -> list[str]:
        """Keys of calls that ran twice and must not have."""
        return [k for k, n in self.executed.items() if n > 1 and k not in self.idempotent]

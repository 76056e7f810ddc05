"""The lease as the hands of an attempt need it."""

from __future__ import annotations

from typing import Protocol


class Covering(Protocol):
    """Says whether the lease covers an act, and makes it cover a long one."""

    def must_cover(self, *, call_ms: int = 0) -> None:
        """Raise FencedError unless the lease covers now, and a call of `call_ms`."""
        ...

    async def cover(self, call_ms: int) -> None:
        """Announce a call that the lease does not cover and await the acknowledgement.

        Raises FencedError when the lease is lost, TransientError when nothing was acknowledged.
        """
        ...

"""A topic created anew under an old name is another log: stored positions mean nothing in it."""

from __future__ import annotations

from schemas.errors import Boundary, InvariantError

GONE = "gone"


def remember_id(known: dict[str, str], topic: str, found: str) -> None:
    """Keep the first id seen of a topic; raise InvariantError when another one is found later.

    found: the id on the broker, or GONE when the topic is missing.
    """
    first = known.setdefault(topic, found)
    if first != found:
        raise InvariantError(
            f"topic {topic} has the id {found}, not {first}",
            boundary=Boundary.BUS,
            hint="it was created anew, so stored positions mean nothing; start a new run",
        )

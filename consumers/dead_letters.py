"""Keeps what no consumer could take: raw bytes, schema id, error and place, in parts when large.

Invariant: whoever skips a poison record has an acknowledged dead letter for it first.
"""

from __future__ import annotations

from collections.abc import Iterator

from schemas.deadline import Deadline
from schemas.enums import Role
from schemas.ports import Context, Poisoned
from schemas.records.dead_letter import DeadLetter
from schemas.topics import DEAD_LETTER_PART_BYTES, DEAD_LETTERS

BURY_MS = 15_000


async def bury(
    context: Context, poisoned: Poisoned, *, role: Role, budget_ms: int = BURY_MS
) -> None:
    """Write the dead letter and wait for it, at most `budget_ms`.

    Burying the same record twice is harmless: its place names it. Raises RejectedError or
    UnknownOutcomeError when the bus does not take it; then the record must not be skipped.
    """
    now_ms = context.clock.monotonic_ms()
    deadline = Deadline.after(
        budget_ms,
        now_ms=now_ms,
        waiting_for=f"the dead letter of {poisoned.topic}/{poisoned.partition}@{poisoned.offset}",
    )
    for letter in letters(context, poisoned, role=role):
        await context.producer.send(DEAD_LETTERS, letter, deadline=deadline)


def letters(context: Context, poisoned: Poisoned, *, role: Role) -> Iterator[DeadLetter]:
    """Yield the parts of the dead letter of a record, at least one."""
    size = DEAD_LETTER_PART_BYTES
    parts = max(1, -(-len(poisoned.raw) // size))
    for part in range(parts):
        yield DeadLetter(
            run_id=context.run_id,
            origin_topic=poisoned.topic,
            origin_partition=poisoned.partition,
            origin_offset=poisoned.offset,
            origin_key=poisoned.key or b"",
            part=part,
            parts=parts,
            raw=poisoned.raw[part * size : (part + 1) * size],
            schema_id=-1 if poisoned.schema_id is None else poisoned.schema_id,
            error_class=poisoned.error_class,
            error=poisoned.error,
            consumer=role.value,
            at_us=context.clock.now_us(),
            writer_id=context.worker_id,
        )


def whole(parts: list[DeadLetter]) -> bytes:
    """Return the raw bytes of one dead letter's parts; raise ValueError when a part is missing."""
    found = {one.part: one.raw for one in parts}
    if not parts or set(found) != set(range(parts[0].parts)):
        raise ValueError(f"parts {sorted(found)} are not all of them")
    return b"".join(found[part] for part in sorted(found))

"""What a fake engine needs to answer the sink that looks which rows of a range are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_ASKED = re.compile(
    r"SELECT DISTINCT src_offset FROM (\w+) WHERE .* AND src_partition = (\d+) "
    r"AND src_offset BETWEEN (\d+) AND (\d+)"
)


def answer_offsets(statement: str, rows: Callable[[str, int], Iterable[int]]) -> bytes | None:
    """Return the answer to that question, None to any other.

    rows: the offsets that stand in a table, of a partition.
    """
    asked = _ASKED.fullmatch(statement)
    if asked is None:
        return None
    partition, first, last = map(int, asked.groups()[1:])
    there = {one for one in rows(asked[1], partition) if first <= one <= last}
    return "".join(f"{one}\n" for one in sorted(there)).encode()

"""What the calculator's memory holds: a digit per cell, which follows from the task's number alone.

The policy sees neither the number nor this function; only a tool call reveals a cell.
"""

from __future__ import annotations

import hashlib


def cell(number: int, key: int) -> int:
    """Return the digit, 1 to 9, in memory cell `key` of the task with this number."""
    digest = hashlib.sha256(f"calculator\0{number}\0{key}".encode()).digest()
    return 1 + digest[0] % 9

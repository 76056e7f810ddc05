"""How a number is shown where people read it; JSON and CSV hold it exactly and never ask here."""

from __future__ import annotations

import math

_DIGITS = 4
_SMALLEST = 1e-4
_LARGEST = 1e15


def readable(value: float) -> str:
    """Return four digits that count, the whole part always in full: 1.73, 0.0667, 12846.

    Below 0.0001 and from 1e15 on it is written with an exponent.
    """
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if not _SMALLEST <= size < _LARGEST:
        return f"{value:.{_DIGITS}g}"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""A measurement that prints, as libraries do."""

from __future__ import annotations

import sys
from typing import Any


def run() -> list[dict[str, Any]]:
    """Return one row."""
    sys.stdout.write("noise\n")
    return [{"name": "loud", "value": 1}]

"""Seeds of random histories: the first few at every change, all of them in `make test`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def seeds(count: int, *, quick: int) -> Sequence[Any]:
    """Return the parameters 0 to count - 1, of which all after the first `quick` are slow."""
    return [
        seed if seed < quick else pytest.param(seed, marks=pytest.mark.slow)
        for seed in range(count)
    ]

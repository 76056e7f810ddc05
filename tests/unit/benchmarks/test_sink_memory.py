"""The slope of the sink's memory over its rows, as the measurement works it out."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.sink_memory import Sample, slope_of


def samples(mb_per_million: float, *, seed: int = 0) -> list[Sample]:
    """Return memory that jumps at first, then rises steadily under noise."""
    random = Random(seed)
    return [
        Sample(
            rows=step * 50_000,
            rss_mb=(900 if step > 10 else 300) + mb_per_million * step / 20 + random.gauss(0, 5),
            cpu_s=1.0,
        )
        for step in range(1, 201)
    ]


def test_growth_is_told_from_noise() -> None:
    slope, half = slope_of(samples(5.0))
    assert slope == pytest.approx(5.0, abs=half)
    assert slope - half > 0


def test_flat_memory_is_flat_whatever_the_first_rows_took() -> None:
    slope, half = slope_of(samples(0.0))
    assert abs(slope) <= half

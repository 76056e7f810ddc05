"""A number is short where people read it, and never another number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.figures import readable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.730000000000004, "1.73"), (2.0, "2"), (3, "3"), (0.0, "0"), (-0.5, "-0.5"),
        (0.1 + 0.2, "0.3"), (0.066666, "0.06667"), (999.96, "1000"), (12_846.4, "12846"),
        (1_764_467_000.25, "1764467000"), (1.5e-7, "1.5e-07"), (1e20, "1e+20"),
        (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_four_digits_count_and_the_whole_part_stands_in_full(value: float, shown: str) -> None:
    assert readable(value) == shown


@settings(max_examples=40)
@given(st.floats(min_value=1e-300, max_value=1e300) | st.floats(-1e300, -1e-300))
def test_what_is_shown_is_the_number_to_a_thousandth(value: float) -> None:
    assert math.isclose(float(readable(value)), value, rel_tol=1e-3)

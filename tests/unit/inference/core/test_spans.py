"""Stamped versions are believed only when the engine says the same."""

from __future__ import annotations

from inference.core.spans import mismatch
from schemas.ids import Version

V1, V2 = Version(1, 1), Version(1, 2)


def test_equal_spans_agree_however_they_are_cut() -> None:
    assert mismatch([(V1, 0, 2), (V1, 2, 3), (V2, 3, 4)], [(V1, 0, 3), (V2, 3, 4)]) is None


def test_empty_spans_say_nothing() -> None:
    assert mismatch([(V1, 0, 3), (V2, 3, 3)], [(V1, 0, 3)]) is None


def test_a_border_at_another_token_is_a_mismatch() -> None:
    assert mismatch([(V1, 0, 2), (V2, 2, 4)], [(V1, 0, 3), (V2, 3, 4)]) is not None


def test_an_engine_that_gives_no_account_is_a_mismatch() -> None:
    assert mismatch([(V1, 0, 2)], None) is not None

"""Sections of the report from answers that are not as one would like them."""

from __future__ import annotations

import pytest

from infra.run.findings import Findings, nothing
from infra.run.learning_sections import of_learning

pytestmark = pytest.mark.slow


def test_a_ratio_that_is_not_finite_counts_as_no_effective_token() -> None:
    rows = [
        {"ordinal": ordinal, "bucket": "le_1", "ratio_p50": 1.0, "ratio_p95": 1.5,
         "ratio_p99": p99, "tokens": 10.0, "effective_sample_tokens": size}
        for ordinal, p99, size in ((1, 2.0, 8.0), (2, None, None))
    ]  # fmt: skip
    section = of_learning(Findings(rows={"ratios": rows}), {})["ratios"]
    assert section.svg
    (table,) = section.tables
    assert list(table.rows) == [("1", "2", "20", "8.0", "40.0%", "2", "1", "1.5", "-", "2")]


def test_a_digest_of_the_held_out_set_stands_though_nobody_has_answered() -> None:
    section = of_learning(Findings(rows={"held_out": []}), {"digits": "d" * 64})["held_out"]
    assert section.absent.startswith("No held-out task has been answered")
    assert [list(table.rows) for table in section.tables] == [[("digits", "d" * 64)]]


def test_every_section_says_why_the_tables_told_nothing() -> None:
    for section in of_learning(nothing("they are away"), {}).values():
        assert section.absent == "The tables of the run told nothing: they are away."
        assert not section.svg
        assert not section.tables

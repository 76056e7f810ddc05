"""The measurement of queries at a tiny size; its figures are not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import queries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_every_statement_of_page_top_and_canned_queries_is_answered(tmp_path: Path) -> None:
    told = queries.measured(tmp_path / "tables", rows=20_000, times=1)
    page = [name for name in told["times_ms"] if name.startswith("page ")]
    text = (queries.ROOT / "infra/dashboard/static/dashboard.js").read_text()
    # One is the function that asks.
    assert len(page) == text.count("ask(") - 1 >= 10
    assert {f"canned {name}" for name in ("token_accounts", "run_list")} <= told["times_ms"].keys()
    assert any(name.startswith("top ") for name in told["times_ms"])
    rows = queries.table(told)
    assert {row["name"] for row in rows} >= {
        "query_p95_ms", "query_p95_cpu_ms", "report_questions_ms",
    }  # fmt: skip
    assert all(row["value"] > 0 for row in rows)

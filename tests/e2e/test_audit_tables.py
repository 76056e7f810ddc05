"""The audit's comparison of tables, rollups and topics, on a real embedded ClickHouse that the sink
filled from a recorded run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.audit.audit import audit
from infra.audit.report import AuditReport
from infra.audit.tables import with_tables
from infra.run.worker import table_definitions
from schemas.ids import RunId
from schemas.topics import TOKENS
from stream_jobs import sink
from stream_jobs.sink_engines import EmbeddedEngine, Limits
from stream_jobs.sink_settings import SinkSettings
from tests.support.contexts import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.recorded_run import RecordedRun
from tests.support.run_records import RUN

pytestmark = pytest.mark.timeout(120)


_AT_ONCE = "SETTINGS mutations_sync = 1"
_LIMITS = Limits(seconds_max=20, rows_max=1_000_000, memory_bytes_max=2_000_000_000)


class Filled(NamedTuple):
    """A run on a bus, and the tables that a sink made of it and left."""

    bus: MemoryBus
    engine: EmbeddedEngine

    def ask(self, statement: str) -> Any:
        return json.loads(self.engine.ask(statement, "JSON", {}))["data"]

    async def report(self) -> AuditReport:
        found = await audit(self.bus.consumers(), RUN)
        assert found.is_clean
        return await with_tables(self.bus.consumers(), found, None, self.ask)


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Filled]:
    """Let a sink take everything and stop."""
    bus = RecordedRun().write()
    context = context_on(bus, run=RUN, worker="sink-0")
    settings = SinkSettings(
        tables_dir=str(tmp_path / "clickhouse"), address_file=str(tmp_path / "sink.json")
    )
    context.stop.set()  # type: ignore[attr-defined]
    migrations = table_definitions()
    await sink.run(context, settings, codec=bus.codec, migrations=migrations)
    engine = EmbeddedEngine(Path(settings.tables_dir), _LIMITS)
    yield Filled(bus, engine)
    engine.close()


def _said(report: AuditReport) -> str:
    return "; ".join(one.what for one in report.violations if one.invariant == 12)


async def test_tables_rollups_and_topics_agree_and_each_break_is_named(filled: Filled) -> None:
    report = await filled.report()
    assert _said(report) == ""
    assert report.checked[12] > 40
    counts = {one.name: one for one in report.tables or ()}
    assert counts["token_commits"].log == counts["token_commits"].table > 0
    assert counts["trained_members"].log == 2
    for rollup in ("quantity_1m", "quantity_1h"):
        names = {one.source for one in report.tables or () if one.name == rollup}
        assert {"policy_lag_steps", "buffer_age_s", "commit_latency_ms"} <= names
    assert report.to_json()["invariants"][-1]["number"] == 12

    for says, statement in (
        ("verdicts: the topic makes", "INSERT INTO verdicts SELECT * FROM verdicts LIMIT 1"),
        (
            "gate_members: the topic makes",
            f"ALTER TABLE gate_members DELETE WHERE src_offset = 0 {_AT_ONCE}",
        ),
        (
            "token_commits: the topic makes",
            f"ALTER TABLE token_commits UPDATE `count` = 7 WHERE `count` = 6 {_AT_ONCE}",
        ),
        (
            "quantity_1m: policy_lag_steps has 2 rows, the rollup counts 0",
            "ALTER TABLE quantity_minutes DELETE WHERE quantity = 'policy_lag_steps' " + _AT_ONCE,
        ),
        (
            "quantity_1h: buffer_age_s has 2 rows, the rollup counts 0",
            "ALTER TABLE quantity_hours DELETE WHERE quantity = 'buffer_age_s' " + _AT_ONCE,
        ),
        (
            "episode_ledger: trained_members has 2 tokens or marks, the rollup counts 0",
            f"ALTER TABLE episode_marks DELETE WHERE bitTest(facts, 2) {_AT_ONCE}",
        ),
        (
            "episode_runs: episode_events has 5 attempts, the rollup counts 0",
            f"ALTER TABLE attempt_marks DELETE WHERE 1 {_AT_ONCE}",
        ),
    ):
        filled.engine.run(statement)
        assert says in _said(await filled.report())


async def test_one_row_missing_and_another_twice_is_named_though_the_sums_agree(
    filled: Filled,
) -> None:
    alike = filled.ask(
        "SELECT src_partition AS p, min(src_offset) AS one, max(src_offset) AS other "
        "FROM token_commits GROUP BY src_partition, `count` HAVING one < other LIMIT 1"
    )[0]
    place = f"src_partition = {alike['p']} AND src_offset = "
    filled.engine.run(f"INSERT INTO token_commits SELECT * FROM token_commits WHERE {place}"
                      f"{alike['one']}")  # fmt: skip
    filled.engine.run(f"ALTER TABLE token_commits DELETE WHERE {place}{alike['other']} {_AT_ONCE}")
    assert "token_commits: the topic makes" in _said(await filled.report())


async def test_a_rollup_that_counts_other_rows_is_named(filled: Filled) -> None:
    filled.engine.run(
        "INSERT INTO trained_members SELECT * REPLACE(src_offset + 1000 AS src_offset) "
        "FROM trained_members LIMIT 1"
    )
    assert "quantity_1m: policy_lag_steps has 3 rows, the rollup counts 2" in _said(
        await filled.report()
    )


async def test_a_closed_run_whose_tables_are_behind_is_not_clean(filled: Filled) -> None:
    late = filled.bus.records(TOKENS)[-1]
    filled.bus.append(TOKENS, late, partition=0)
    report = await filled.report()
    assert "the sink has 1 records to go" in _said(report)
    assert not report.is_clean


async def test_records_of_a_later_run_on_the_same_topics_are_nothing_that_lacks(
    filled: Filled,
) -> None:
    later = replace(filled.bus.records(TOKENS)[-1], run_id=RunId("later"))
    filled.bus.append(TOKENS, later, partition=0)
    report = await filled.report()
    assert _said(report) == ""
    assert report.is_clean

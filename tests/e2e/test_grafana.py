"""What the dashboards ask, asked: statements of ClickHouse, expressions of Prometheus' parser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import small_run
from tests.support.grafana_boards import BOARDS, panels
from tests.support.grafana_plugin import expand
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Tables without a row: whether a statement is understood takes none."""
    one = Tables(tmp_path_factory.mktemp("boards"))
    yield one
    one.close()


def statements() -> set[str]:
    """Every statement that a panel or a variable asks."""
    asked = {
        target["rawSql"]
        for _, panel in panels(asking="grafana-clickhouse-datasource")
        for target in panel["targets"]
    }
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            source = variable.get("datasource", {})
            if source.get("type") == "grafana-clickhouse-datasource":
                asked.add(variable["query"])
    return asked


def test_clickhouse_understands_every_statement(tables: Tables) -> None:
    for statement in sorted(statements()):
        sent = expand(
            statement, values={"run_id": small_run.RUN}, from_s=0, to_s=2_000_000_000,
            interval_s=120,
        )  # fmt: skip
        # The plan names every column; nothing is run.
        assert tables.ask(f"EXPLAIN QUERY TREE {sent}"), statement


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"panel:{board}:p{panel['id']}{target['refId'].lower()}",
            "expr": target["expr"].replace("$__rate_interval", "1m").replace("$run_id", "run-1"),
        }
        for board, panel in panels(asking="prometheus")
        for target in panel["targets"]
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout, json.dumps(rules)

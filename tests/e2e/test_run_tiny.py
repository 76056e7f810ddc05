"""The whole system on real parts: a tiny model is trained, then audited, replayed, tailed and asked
in SQL.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.audit.report import NAMES
from tests.conftest import LocalPlatform
from tests.support.command_line import call, with_topics

ROOT = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 540

pytestmark = [pytest.mark.kafka, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(720)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRun:
    """A finished run and how to call the command line on its bus."""

    summary: dict[str, Any]
    folder: Path
    environment: dict[str, str]

    def sluice(self, *arguments: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return call(self.environment, *arguments, limit_s=limit_s)

    def json(self, *arguments: str) -> Any:
        done = self.sluice(*arguments, "--json")
        assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tiny(local_platform: LocalPlatform, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    runs = tmp_path_factory.mktemp("runs")
    environment = with_topics(local_platform)
    done = call(
        environment, "run", "examples/tiny.toml", "--runs", str(runs), "--json", limit_s=RUN_LIMIT_S
    )
    logs = "\n".join(
        f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
        for path in sorted(runs.glob("*/logs/*.log"))
    )
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}\n{logs}"
    (folder,) = [path.parent for path in runs.glob("*/start.json")]
    return TinyRun(summary=json.loads(done.stdout), folder=folder, environment=environment)


def test_the_run_closes_with_everything_accounted_for(tiny: TinyRun) -> None:
    found = tiny.summary
    assert found["closed"]
    assert found["steps"] == 6
    assert found["pending"] == 0
    assert found["audit_violations"] == 0
    settled = found["trained"] + sum(found["dropped"].values()) + sum(found["abandoned"].values())
    assert found["issued"] == settled + found["evaluated"]
    assert found["trained"] == 6 * 16
    assert 0 <= found["lag_steps"]["p50"] <= found["lag_steps"]["p99"] <= 4


def test_the_audit_of_the_command_line_is_clean_and_its_counts_are_the_summarys(
    tiny: TinyRun,
) -> None:
    report = tiny.json("audit", tiny.summary["run_id"])
    assert report["clean"]
    assert {one["number"] for one in report["invariants"]} == set(NAMES)
    assert not any(one["violations"] for one in report["invariants"])
    assert report["counts"]["issued"] == tiny.summary["issued"]
    assert report["counts"]["trained"] == tiny.summary["trained"]


def test_a_trained_episode_can_be_replayed_to_the_step_that_trained_it(tiny: TinyRun) -> None:
    events = tiny.sluice(
        "tail", "learner-steps", "--from-start", "--no-follow", "--kind", "step", "--json",
        "--run", tiny.summary["run_id"],
    )  # fmt: skip
    assert events.returncode == 0, events.stderr
    step = json.loads(events.stdout.splitlines()[0])["record"]
    episode = step["trained"][0]["episode_id"]
    story = tiny.json("replay", episode)
    assert json.dumps(story).count(episode) > 0
    assert story["step"]["ordinal"] == step["ordinal"]


def test_the_trained_weights_moved_and_the_served_version_followed(tiny: TinyRun) -> None:
    versions = tiny.json("policies", "list", tiny.summary["run_id"])
    assert [one["ordinal"] for one in versions] == list(range(7))
    assert len({one["digest"] for one in versions}) == 7
    served = tiny.sluice(
        "tail", "refreshes", "--from-start", "--no-follow", "--kind", "serving", "--json",
        "--run", tiny.summary["run_id"],
    )  # fmt: skip
    numbers = [json.loads(line)["record"]["number"] for line in served.stdout.splitlines()]
    assert max(numbers) >= 4


def test_sql_gives_the_lag_quantiles_of_the_summary(tiny: TinyRun) -> None:
    rows = tiny.json(
        "sql", "SELECT p50, p95, p99, n FROM policy_lag_steps", "--run", str(tiny.folder)
    )
    assert rows[0]["n"] == tiny.summary["lag_steps"]["n"]
    assert rows[0]["p50"] == tiny.summary["lag_steps"]["p50"]


def test_the_report_is_one_file_without_external_assets(tiny: TinyRun) -> None:
    text = (tiny.folder / "report.html").read_text()
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>\s*<p[^>]*>[^<]*</p>\s*<figure[^>]*><svg", text)
    for asked in (
        "Reward", "Policy lag", "Buffer age", "Funnel", "Stage latencies", "Where the time went",
        "Importance ratio by lag", "Lengths trained",
    ):  # fmt: skip
        assert any(title.startswith(asked) for title in titles), (asked, titles)
    assert "told nothing" not in text
    assert "Alarm:" not in text
    assert 'src="' not in text
    assert "https://" not in text.replace("https://matplotlib.org", "")


def test_summary_and_report_are_made_again_from_the_topics_alone(tiny: TinyRun) -> None:
    report = tiny.folder / "report.html"
    before = len(report.read_text())
    report.unlink()
    again = tiny.json("report", str(tiny.folder))
    assert again == tiny.summary
    assert json.loads((tiny.folder / "summary.json").read_text()) == tiny.summary
    assert len(report.read_text()) > before / 2


def test_the_tables_of_the_closed_run_hold_all_that_its_topics_hold(tiny: TinyRun) -> None:
    report = tiny.json(
        "audit", tiny.summary["run_id"], "--tables", "--runs", str(tiny.folder.parent)
    )
    assert report["clean"]
    tables = {one["name"]: one for one in report["tables"]}
    assert tables["token_commits"]["log"] > 0
    assert all(one["log"] == one["table"] and not one["behind"] for one in report["tables"])

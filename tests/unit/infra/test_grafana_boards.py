"""The dashboards as files: what they ask, how they are laid out, where they lead."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from infra.docs import ROOT
from infra.exporter import catalogue
from infra.settings import TrainingSection
from infra.tables.canned import in_grafana
from infra.tables.quantities import QUANTITIES
from infra.tables.questions import QUESTIONS
from tests.support.grafana_boards import BOARDS, FOLDER, panels

SOURCES = {
    "grafana-clickhouse-datasource": "${clickhouse}",
    "prometheus": "${prometheus}",
}
PERCENTILES = {"p50", "p95", "p99", "n"}


def known() -> dict[str, str]:
    """Every statement that a panel may ask, with the name of its canned query."""
    named = {}
    for one in QUESTIONS:
        if "quantity" not in one.parameters:
            named[in_grafana(one)] = one.name
            continue
        for quantity in QUANTITIES:
            named[in_grafana(one, {"quantity": quantity.name})] = f"{one.name} ({quantity.name})"
    return named


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert set(BOARDS) == {"runs", "learning", "staleness", "workers", "verifier", "bus"}
    assert set(BOARDS) == {one.board for one in QUESTIONS}
    for name, board in BOARDS.items():
        assert board["uid"] == f"sluice-{name}"
        assert board["description"]


def test_panels_ask_canned_queries_and_nothing_else_and_say_which() -> None:
    names = known()
    asked = set()
    for _, panel in panels(asking="grafana-clickhouse-datasource"):
        (target,) = panel["targets"]
        name = names[target["rawSql"]]
        assert f"Canned query: {name}." in panel["description"]
        asked.add(name.split()[0])
        one = next(one for one in QUESTIONS if one.name == name.split()[0])
        over_time = one.shape == "over_time"
        assert (target["format"], target["queryType"]) == (
            (0, "timeseries") if over_time else (1, "table")
        )
        assert target["editorType"] == "sql"
    # Shown whole, or as the table of all quantities is, by their panels.
    assert {one.name for one in QUESTIONS} - asked == set()


def test_every_quantity_of_time_is_drawn_with_its_definition() -> None:
    drawn = {}
    for _, panel in panels(asking="grafana-clickhouse-datasource"):
        found = re.search(r"quantity_over_time \((\w+)\)", panel["description"])
        if found:
            drawn[found[1]] = panel
    for one in QUANTITIES:
        if one.name in drawn:
            told = drawn[one.name]["description"]
            assert told.lower().startswith(one.definition.lower())
    # Lag in seconds is drawn by update alone, and so is the learner's work without its waits.
    left_out = {"policy_lag_s", "learner_busy_ms"}
    assert {one.name for one in QUANTITIES} - drawn.keys() == left_out


def test_a_panel_tells_what_it_shows_and_in_which_unit() -> None:
    for board, panel in panels():
        where = f"{board}: {panel['title']}"
        assert panel["title"], where
        assert panel["description"].endswith("."), where
        kind = panel["datasource"]["type"]
        assert panel["datasource"]["uid"] == SOURCES[kind], where
        if panel["type"] not in {"table", "stat"}:
            assert panel["fieldConfig"]["defaults"]["unit"], where
        if panel["type"] == "stat":
            assert panel["fieldConfig"]["overrides"], where


def test_percentiles_come_with_their_count() -> None:
    for board, panel in panels():
        text = json.dumps(panel["targets"])
        if re.search(r"\bp99\b", text):
            legends = {target.get("legendFormat") for target in panel["targets"]}
            in_sql = set(re.findall(r"\b(p50|p95|p99|n)\b", text))
            single = any("rate5m" in text or ":p99" in str(one) for one in panel["targets"])
            assert single or in_sql | legends >= PERCENTILES, f"{board}: {panel['title']}"


def test_panels_fill_the_grid_without_overlap() -> None:
    for name, board in BOARDS.items():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids)), name
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24, name
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not taken & cells, f"{name}: {panel['title']}"
            taken |= cells


def test_each_dashboard_chooses_a_run_and_leads_to_the_others() -> None:
    for name, board in BOARDS.items():
        variables = {one["name"]: one for one in board["templating"]["list"]}
        assert set(variables) == {"clickhouse", "prometheus", "run_id"}, name
        for kind, uid in SOURCES.items():
            assert variables[uid.strip("${}")]["query"] == kind
        assert variables["run_id"]["datasource"]["uid"] in SOURCES.values()
        (link,) = board["links"]
        assert link["type"] == "dashboards"
        assert set(link["tags"]) <= set(board["tags"])
        assert link["includeVars"]
        assert link["keepTime"]


def test_expressions_ask_only_for_what_is_exported_or_recorded() -> None:
    exported = {f"sluice_{one.name}": one for one in catalogue.ALL}
    rules = yaml.safe_load((ROOT / "infra/prometheus/recording.yml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    asked = 0
    for board, panel in panels(asking="prometheus"):
        for target in panel["targets"]:
            where = f"{board}: {panel['title']}: {target['expr']}"
            assert '="$run_id"' in target["expr"], where
            for name in re.findall(r"\b(sluice_\w+|run:[\w:]+)", target["expr"]):
                base = re.sub(r"_(bucket|count|sum)$", "", name)
                assert base in exported or name in recorded, where
                asked += 1
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert f"{label}" in target["expr"].partition(" by (")[2].partition(")")[0], where
    assert asked > 0


@pytest.mark.parametrize(
    ("alert", "title", "factor"),
    [
        ("GateDropsMuch", "Share of decisions that drop", 1),
        ("TokenCommitsSlow", "Of token commits", 1),
        ("TokenCommitsSlow", "Commit of tokens", 1000),
        ("ConsumerLagGrows", "Records behind", 1),
        ("ClockSkew", "Writers' clocks ahead of the brokers'", 1),
    ],
)
def test_a_line_is_drawn_where_the_alert_warns(alert: str, title: str, factor: int) -> None:
    rules = yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text())
    (expr,) = (
        rule["expr"] for group in rules["groups"] for rule in group["rules"]
        if rule["alert"] == alert
    )  # fmt: skip
    warns_at = float(re.findall(r"> ([\d.]+)\)?", expr)[0])
    found = [panel for _, panel in panels() if panel["title"] == title]
    assert found
    for panel in found:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert [step.get("value") for step in steps] == [None, warns_at * factor]


def test_lines_of_lag_are_drawn_at_the_default_bound() -> None:
    """An alert knows each run's own bound; a line of a dashboard stands still."""
    bound = TrainingSection().max_lag_steps
    drawn = [
        [step.get("value") for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        for _, panel in panels()
        if panel["title"].startswith("Policy lag when trained")
        and panel["fieldConfig"]["defaults"].get("unit") == "suffix: updates"
    ]  # fmt: skip
    assert len(drawn) == 3
    assert all(steps == [None, bound] for steps in drawn)


def test_provisioning_names_both_sources_and_holds_no_secret() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/sluice.yaml").read_text())
    assert {one["type"] for one in sources["datasources"]} == set(SOURCES)
    clickhouse = sources["datasources"][0]
    assert clickhouse["secureJsonData"]["password"].startswith("$SLUICE_")
    assert clickhouse["jsonData"]["protocol"] == "http"
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/sluice.yaml").read_text())
    (only,) = provider["providers"]
    assert only["options"]["path"] == "$SLUICE_GRAFANA_DASHBOARDS"
    page = (ROOT / "docs" / "grafana.md").read_text()
    for text in (json.dumps(sources), json.dumps(provider)):
        for name in re.findall(r"\$(SLUICE_\w+)", text):
            assert name in page

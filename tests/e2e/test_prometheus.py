"""Real Prometheus: it finds the processes of a run by itself, and its rules hold."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry

from infra.exporter import catalogue as of
from infra.exporter.instruments import PREFIX
from infra.exporter.serve import exporting
from infra.settings import MetricsSection

CONFIGURATION = Path(__file__).resolve().parents[2] / "infra" / "prometheus"
LIMIT_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_one_that_prometheus_takes() -> None:
    assert "is valid" in promtool("check", "config", str(CONFIGURATION / "prometheus.yml"))


def test_each_alert_fires_on_its_fault_and_names_the_cause() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CONFIGURATION / "alerts_test.yml"))


def test_each_recorded_name_has_its_value_and_each_alert_its_words() -> None:
    told = promtool("test", "rules", str(CONFIGURATION / "values_test.yml"))
    assert "SUCCESS" in told
    tests = [
        test
        for file in ("alerts_test.yml", "values_test.yml")
        for test in yaml.safe_load((CONFIGURATION / file).read_text())["tests"]
    ]
    asked = " ".join(
        case["expr"] for test in tests for case in test.get("promql_expr_test", ())
        if case["exp_samples"]
    )  # fmt: skip
    fired = {
        (case["alertname"], alert["exp_labels"].get("reason"))
        for test in tests
        for case in test.get("alert_rule_test", ())
        for alert in case["exp_alerts"]
    }
    recorded = [rule["record"] for rule in _rules("recording.yml")]
    alerts = [(rule["alert"], rule["labels"].get("reason")) for rule in _rules("alerts.yml")]
    assert recorded
    assert [name for name in recorded if name not in asked] == []
    assert [alert for alert in alerts if alert not in fired] == []


def _rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONFIGURATION / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_and_alerts_ask_only_for_what_is_exported() -> None:
    exported = {PREFIX + one.name for one in of.ALL}
    for file in ("recording.yml", "alerts.yml"):
        text = (CONFIGURATION / file).read_text()
        asked = {word for word in _words(text) if word.startswith(PREFIX)}
        assert asked
        for name in asked:
            base = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            assert base in exported, name


def _words(text: str) -> Iterator[str]:
    word = ""
    for sign in text + " ":
        if sign.isalnum() or sign == "_":
            word += sign
        else:
            yield word
            word = ""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """Run the real server on the project's own configuration; its address."""
    shutil.copytree(CONFIGURATION, tmp_path / "infra" / "prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={tmp_path}/infra/prometheus/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=20)


def ask(address: str, query: str) -> Any:
    """The samples of a query; empty while the server does not answer yet."""
    try:
        answer = httpx.get(f"{address}/api/v1/query", params={"query": query}, timeout=5)
    except httpx.TransportError:
        return []
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return []
    return answer.json().get("data", {}).get("result", [])


def test_prometheus_finds_a_process_and_reads_what_it_exports(
    tmp_path: Path, prometheus: str
) -> None:
    with exporting(
        MetricsSection(), targets=tmp_path / "runs" / ".prometheus", role="learner", index=0,
        run_id="run-1", registry=CollectorRegistry(),
    ) as instruments:  # fmt: skip
        for lag in (0.0, 1.0, 1.0):
            instruments.add(of.LAG, lag)
        until = time.monotonic() + LIMIT_S
        while not (found := ask(prometheus, "sluice_policy_lag_steps_count")):
            assert time.monotonic() < until, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.2)
    assert found[0]["value"][1] == "3"
    assert found[0]["metric"]["run"] == "run-1"
    assert found[0]["metric"]["role"] == "learner"
    alerts = httpx.get(f"{prometheus}/api/v1/rules", timeout=5).json()["data"]["groups"]
    assert all(rule["health"] in ("ok", "unknown") for group in alerts for rule in group["rules"])

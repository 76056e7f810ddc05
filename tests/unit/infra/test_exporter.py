"""What a process exports is what it wrote to the log and was given from it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from infra.exporter import catalogue as of
from infra.exporter.catalogue import ALL, OTHER, SERIES_MAX, Kind
from infra.exporter.doors import MeteredConsumers, MeteredProducer
from infra.exporter.instruments import Instruments
from infra.exporter.records import AT_START, samples_of
from infra.exporter.serve import exporting
from infra.run.roles import ROLES
from infra.settings import MetricsSection
from schemas.errors import UnknownOutcomeError
from schemas.topics import TOKENS
from tests.support.clocks import RealClock
from tests.support.memory_bus import Fault, MemoryBus
from tests.support.records import commit, within
from tests.support.small_run import rows

UNITS = (
    "_total",
    "_seconds",
    "_records",
    "_steps",
    "_episodes",
    "_ratio",
    "reward",
    "learner_loss",
    "sample",
)


class Stand:
    """A memory bus behind counting doors."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)
        self.bus = MemoryBus(partitions=1)
        self.producer = MeteredProducer(self.bus.producer(), self.instruments, RealClock())
        self.consumers = MeteredConsumers(self.bus.consumers(), self.instruments)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"sluice_{name}", labels)


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_a_record_counts_once_it_is_acknowledged(stand: Stand) -> None:
    await stand.producer.send(TOKENS, commit(0), deadline=within(1_000))
    await stand.producer.offer(TOKENS, commit(1))
    assert stand.value("produced_records_total", topic="tokens.v1", outcome="acked") == 2
    assert stand.value("produce_ack_seconds_count", topic="tokens.v1") == 2


async def test_a_record_of_unknown_outcome_adds_nothing_to_what_the_log_holds(stand: Stand) -> None:
    stand.bus.faults.next(Fault.UNKNOWN_LOST)
    with pytest.raises(UnknownOutcomeError):
        await stand.producer.send(TOKENS, commit(0), deadline=within(1_000))
    stand.bus.faults.next(Fault.REJECTED)
    await stand.producer.offer(TOKENS, commit(0))
    assert stand.value("produced_records_total", topic="tokens.v1", outcome="unknown") == 1
    assert stand.value("produced_records_total", topic="tokens.v1", outcome="rejected") == 1
    assert stand.value("committed_tokens_total", kind="action") is None


async def test_what_was_given_and_what_is_left_are_exported(stand: Stand) -> None:
    for seq in range(3):
        stand.bus.append(TOKENS, commit(seq))
    stand.bus.append_raw(TOKENS, partition=0, raw=b"\x00nonsense")
    reader = stand.consumers.reader({TOKENS: {0: 0}})
    assert len(await reader.poll(records_max=2, timeout_s=1.0)) == 2
    await stand.consumers.export_lag()
    assert stand.value("consumed_records_total", topic="tokens.v1") == 2
    assert stand.value("consumer_lag_records", topic="tokens.v1") == 2
    assert len(await reader.poll(records_max=9, timeout_s=1.0)) == 2
    await stand.consumers.export_lag()
    assert stand.value("poisoned_records_total", topic="tokens.v1") == 1
    assert stand.value("consumer_lag_records", topic="tokens.v1") == 0


def test_every_record_of_a_whole_run_is_exported_without_a_fault(stand: Stand) -> None:
    for _topic, _second, record in rows():
        stand.instruments.take(samples_of(record))
    assert stand.value("learner_events_total", kind="step")
    assert stand.value("policy_lag_steps_count")
    assert stand.value("committed_tokens_total", kind="action")
    ended = stand.value("episode_events_total", kind="ended")
    assert ended == stand.value("environment_reset_seconds_count") == 4
    assert ended == stand.value("environment_step_seconds_count")


def test_labels_without_bound_are_folded(stand: Stand) -> None:
    for number in range(SERIES_MAX + 5):
        stand.instruments.add(of.SKIPPED, 1.0, f"reason-{number}")
    assert stand.value("learner_skipped_total", reason="reason-0") == 1
    assert stand.value("learner_skipped_total", reason=OTHER) == 5
    assert stand.value("learner_skipped_total", reason=f"reason-{SERIES_MAX}") is None


def test_a_value_that_is_not_finite_does_not_spoil_a_sum(stand: Stand) -> None:
    for value in (float("nan"), float("inf"), 0.5):
        stand.instruments.add(of.REWARD, value, "arithmetic")
    assert stand.value("reward_sum", environment="arithmetic") == 0.5


def test_names_end_in_their_unit_and_histograms_have_rising_bounds() -> None:
    for one in ALL:
        assert one.name.endswith(UNITS), one.name
        assert one.text.endswith("."), one.name
        assert (one.kind is Kind.HISTOGRAM) == bool(one.bounds), one.name
        assert list(one.bounds) == sorted(set(one.bounds)), one.name


def test_a_process_tells_prometheus_where_it_is_as_long_as_it_lives(tmp_path: Path) -> None:
    place = tmp_path / "metrics" / "run-1-gate-0.json"
    with exporting(
        MetricsSection(), targets=tmp_path / "metrics", role="gate", index=0, run_id="run-1",
        registry=CollectorRegistry(),
    ) as instruments:  # fmt: skip
        instruments.watch_disk({"run": tmp_path})
        instruments.add(of.DECIDED, 1.0, "admitted", "none")
        (told,) = json.loads(place.read_text())
        assert told["labels"] == {"run": "run-1", "role": "gate", "index": "0"}
        with urllib.request.urlopen(f"http://{told['targets'][0]}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    assert 'sluice_gate_decisions_total{outcome="admitted",reason="none"} 1.0' in text
    assert 'sluice_disk_free_ratio{folder="run"} 0.' in text
    assert not place.exists()


@pytest.mark.parametrize(
    ("role", "name", "kind"),
    [
        ("learner", "sluice_learner_events_total", "step"),
        ("inference", "sluice_refresh_events_total", "failed"),
    ],
)
def test_what_never_happened_is_seen_to_stand_still_and_its_first_time_to_be_one(
    tmp_path: Path, role: str, name: str, kind: str
) -> None:
    registry = CollectorRegistry()
    assert set(AT_START) <= set(ROLES)
    with exporting(
        MetricsSection(enabled=False), targets=tmp_path, role=role, index=0, run_id="run-1",
        registry=registry,
    ):  # fmt: skip
        assert registry.get_sample_value(name, {"kind": kind}) == 0.0


def test_nothing_listens_when_metrics_are_off(tmp_path: Path) -> None:
    with exporting(
        MetricsSection(enabled=False), targets=tmp_path / "metrics", role="gate", index=0,
        run_id="run-1", registry=CollectorRegistry(),
    ) as instruments:  # fmt: skip
        instruments.add(of.DECIDED, 1.0, "admitted", "none")
    assert not (tmp_path / "metrics").exists()

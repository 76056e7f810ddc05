"""Measurements run at tiny sizes and say what they promise; their figures are not looked at."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from benchmarks import assembler, bottlenecks, codec, gateway
from benchmarks.broker import RUN
from benchmarks.figures import interval, median, quantile, ratio_row
from benchmarks.trajectories import Path, make_load
from infra.cli.bench import BENCHES, shown
from infra.settings import assemble
from schemas.codec import Codec
from schemas.enums import TokenKind
from schemas.ports import Delivered
from schemas.topics import GATE_DECISIONS, TOKENS
from tests.support.clocks import RealClock
from tests.support.contexts import context_on
from tests.support.memory_bus import MemoryBus

_KEYS = {"name", "value", "unit", "goal", "conditions"}


def test_a_row_names_its_figure_and_its_conditions() -> None:
    rows = [
        *codec.run(rounds=1, episodes=8, per_episode=2),
        *assembler.run(rounds=1, episodes=8),
    ]
    assert [set(row) for row in rows] == [_KEYS] * 2
    assert all(row["value"] > 0 for row in rows)


def test_a_figure_is_held_against_its_goal_from_the_right_side() -> None:
    def reached(name: str, value: float, goal: float) -> str:
        row = {"name": name, "value": value, "unit": "u", "goal": goal, "conditions": "here"}
        return shown(row)[4]

    assert reached("codec_records_per_s", 80_000, 80_000) == "yes"
    assert reached("codec_records_per_s", 79_999, 80_000) == "no"
    assert reached("commit_p99_ratio", 1.3, 1.3) == "yes"
    assert reached("episodes_lost", 1, 0) == "no"


def test_a_prediction_is_held_against_what_was_measured_and_the_stage_against_the_slow_one() -> (
    None
):
    right = bottlenecks.Found(
        stage="verify", busy_s={"rollout": 30.0, "verify": 57.0, "learn": 9.0, "sync": 1.0},
        wall_s=60.0, trajectories=72, whole="verify", attributed=1.001,
    )  # fmt: skip
    # The refresh held the episodes up for most of the time in which they ran.
    held = replace(right, stage="sync", whole="rollout", attributed=0.97,
                   busy_s={"rollout": 59.0, "verify": 5.0, "learn": 9.0, "sync": 50.0})  # fmt: skip
    assert (right.named, held.named) == ("verify", "sync")
    found = {row["name"]: row["value"] for row in bottlenecks.table([right, held])}
    assert found["bottlenecks_named"] == 1, "the whole run's view named another stage for one"
    assert found["bottleneck_rate_error"] == pytest.approx(60 / 50 - 1)
    assert found["waits_sum_error"] == pytest.approx(0.03)


def test_each_stage_is_made_slow_by_settings_that_a_run_accepts(tmp_path: FilePath) -> None:
    for stage in bottlenecks.STAGES:
        tree = tomllib.loads(bottlenecks.settings_of(stage, tmp_path))
        places = {
            "learner.versions_dir": "v", "learner.checkpoints_dir": "c", "sink.tables_dir": "t",
            "sink.address_file": "s",
        }  # fmt: skip
        tree["model"]["path"] = str(tmp_path)
        assert assemble(tree, places=places).run.name == f"bottleneck-{stage}"


def test_every_measurement_is_a_module_that_runs() -> None:
    for module in (one.module for one in BENCHES.values()):
        # Not imported: one of them loads an engine's libraries.
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert "\ndef run(" in FilePath(spec.origin).read_text(), module


async def test_every_trajectory_of_a_block_is_put_decided_and_fetched() -> None:
    bus = MemoryBus()
    local = Codec.local()
    load = make_load("measured", local, 16)
    path = Path(context_on(bus), local)
    await path.open()
    for _ in range(2):
        assert await path.block(load) > 0
    await path.close()
    assert len(load.frames) == 2 * len(load.sealed)
    reader = context_on(bus).consumers.reader({GATE_DECISIONS: dict.fromkeys(range(12), 0)})
    decisions = [
        one.record
        for one in await reader.poll(records_max=100, timeout_s=0.1)
        if isinstance(one, Delivered)
    ]
    assert [len(decision.members) for decision in decisions] == [8] * 4


async def test_a_turn_is_asked_over_http_and_behind_the_gateway() -> None:
    bus = MemoryBus()
    context = context_on(bus, run=RUN, clock=RealClock())
    over, behind = await gateway.measure(context, gateway.settings_of(None), pairs=2)
    assert len(over) == len(behind) == 2
    actions = [one.count for one in bus.records(TOKENS) if one.kind is TokenKind.ACTION]
    assert actions == [gateway.TOKENS] * 4, "both arms sample and commit the same"


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], [0.5, 0.5, 9.0, 9.0]])
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high = interval(values)
    assert low <= median(values) <= high
    assert quantile(values, 1.0) == max(values)
    assert "95 %" in ratio_row("r", values, goal=1.0, conditions="here")["conditions"]

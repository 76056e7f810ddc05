"""The chaos report: what it counts, and that the page describes every key of it."""

from __future__ import annotations

from pathlib import Path

import orjson

from infra.chaos.driver import Done
from infra.chaos.findings import Findings, Hit
from infra.chaos.plan import EDGES, Act, Deed
from infra.chaos.resuming import Resuming
from infra.chaos.session import Read, hindered, tallied
from infra.chaos.totals import totals
from infra.run.worker import worker_id
from schemas.crash_points import CrashPoint

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "chaos.md").read_text()


def done(act: Act, target: str, point: CrashPoint | None = None) -> Done:
    return Done(deed=Deed(after_s=0.0, act=act, target=target, point=point), at_ms=0, pid=1)


def test_an_edge_counts_where_something_died_and_a_stop_there_is_told_apart() -> None:
    counted = tallied(
        [
            done(Act.EDGE, "inference-1", CrashPoint.AFTER_APPEND),
            done(Act.EDGE, "inference-0", CrashPoint.AFTER_APPEND),
            done(Act.STOP, "environment-0", CrashPoint.IN_TOOL),
            done(Act.KILL, "task-source-0"),
            done(Act.BROKER_KILL, "broker"),
        ]
    )
    assert counted["kills_by_edge"] == {"after_append": 2}
    assert counted["stops_by_edge"] == {"in_tool": 1}
    assert counted["kills_by_act"] == {"edge": 2, "stop": 1, "kill": 1, "broker_kill": 1}
    assert counted["kills_by_role"] == {
        "inference": 2, "environment": 1, "task-source": 1, "broker": 1,
    }  # fmt: skip
    assert set(counted["edges_not_hit"]) == set(CrashPoint) - {CrashPoint.AFTER_APPEND}


def test_who_was_hindered_and_for_how_long_follows_from_the_deeds() -> None:
    stop = Done(
        deed=Deed(after_s=0.0, act=Act.STOP, target="inference-1", lasts_s=2.5), at_ms=100, pid=1
    )
    one = hindered(stop, "run-a")
    assert (one.worker_id, one.from_ms, one.to_ms) == (
        worker_id("inference", 1, "run-a"),
        100,
        2600,
    )
    cut = hindered(done(Act.CUT, "inference-0"), "run-a")
    assert (cut.from_ms, cut.to_ms) == (0, 0)
    assert hindered(done(Act.BROKER_STOP, "broker"), "run-a").worker_id == "", "everybody"


def test_the_report_is_json_with_and_without_deaths() -> None:
    read = Read(findings=Findings("0"), resuming=Resuming("0"))
    deaths = [Hit(worker_id="inference-0@0", at_ms=0)]
    for hits in ([], deaths):
        told = orjson.loads(orjson.dumps(read.recovery(hits)))
        assert told["others_turn_speed_ratio"] == {
            "mean": None, "low": None, "high": None, "n": 0, "window_ms": 2_000, "moments": [],
        }  # fmt: skip


def test_every_crash_point_is_an_edge_of_one_role() -> None:
    listed = [point for points in EDGES.values() for point in points]
    assert sorted(listed) == sorted(CrashPoint)


def test_the_page_describes_every_key() -> None:
    read = Read(findings=Findings("0"), resuming=Resuming("0"))
    told = read.recovery([Hit(worker_id="inference-0@0", at_ms=0)])
    keys = {*told, *told["work_lost"], *told["work_lost"]["learner"], *tallied([]), *totals([])}
    # Told as `work_lost.uncommitted_tail_s`, `_tokens`.
    keys -= {"work_lost", "uncommitted_tail_tokens"}
    missing = {key for key in keys if f"`{key}`" not in PAGE and f".{key}`" not in PAGE}
    assert not missing

"""The chaos report: what it counts, and that the page describes every key of it."""

from __future__ import annotations

from pathlib import Path

from infra.chaos.driver import Done
from infra.chaos.findings import Findings, Hit
from infra.chaos.plan import EDGES, Act, Deed
from infra.chaos.resuming import Resuming
from infra.chaos.session import Read, tallied
from infra.chaos.totals import totals
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

"""Sums over chaos campaigns: every folder's report counts once, what is none is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from infra.chaos.totals import REPORT_NAME, reports_in, totals


def put(directory: Path, name: str, **values: Any) -> None:
    report = {
        "engine": "scripted", "kills": 4, "violations": 0, "committed_tokens_decoded_twice": 0,
        "kills_by_edge": {"in_tool": 3}, "kills_by_act": {"edge": 3, "kill": 1}, "closed": True,
        **values,
    }  # fmt: skip
    (directory / name).mkdir()
    (directory / name / REPORT_NAME).write_bytes(orjson.dumps(report))


def test_campaigns_are_summed_by_engine_and_by_edge(tmp_path: Path) -> None:
    put(tmp_path, "a")
    put(tmp_path, "b", engine="vllm", kills=2, kills_by_edge={"after_marker": 1}, violations=1)
    put(tmp_path, "c", closed=False, committed_tokens_decoded_twice=5)
    found = totals(reports_in(tmp_path))
    assert found == {
        "campaigns": 3,
        "not_closed": 1,
        "violations": 1,
        "committed_tokens_decoded_twice": 5,
        "kills": 10,
        "kills_by_engine": {"scripted": 8, "vllm": 2},
        "kills_by_act": {"edge": 9, "kill": 3},
        "kills_by_edge": {"in_tool": 6, "after_marker": 1},
        "others_throughput_ratio": {},
        "others_turn_speed_ratio": {},
    }


def test_what_others_did_is_put_together_over_campaigns_of_one_engine(tmp_path: Path) -> None:
    put(tmp_path, "a", others_throughput_ratio={"moments": [[10, 100, 20, 100]]})
    put(tmp_path, "b", others_throughput_ratio={"moments": [[30, 100, 20, 100], [0, 9, 0, 9]]})
    put(tmp_path, "c", engine="vllm", others_throughput_ratio={"moments": [[10, 100, 5, 100]]})
    found = totals(reports_in(tmp_path))["others_throughput_ratio"]
    assert (found["scripted"]["mean"], found["scripted"]["n"]) == (1.0, 2)
    assert (found["vllm"]["mean"], found["vllm"]["n"]) == (0.5, 1)


def test_a_folder_without_a_report_or_with_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / REPORT_NAME).write_bytes(b'{"kills": 3')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / REPORT_NAME).write_bytes(b"[1]")
    assert len(reports_in(tmp_path)) == 1
    assert totals([])["kills"] == 0

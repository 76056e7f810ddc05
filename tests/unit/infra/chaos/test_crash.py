"""Orders to die at a named edge: read once, counted from when they are seen, carried out once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from infra.chaos.crash import (
    VARIABLE,
    CrashAct,
    CrashOrder,
    Watch,
    arm_from,
    fired,
    give_order,
    withdraw_order,
)
from schemas import crash_points
from schemas.crash_points import CrashPoint, reach
from schemas.errors import SettingsError

WORKER = "inference-0"


class Signals(list[signal.Signals]):
    """What a process would have sent itself."""


@pytest.fixture
def sent() -> Signals:
    return Signals()


@pytest.fixture
def watch(tmp_path: Path, sent: Signals) -> Watch:
    return Watch(tmp_path, WORKER, send=sent.append)


def test_without_an_order_a_reach_does_nothing(watch: Watch, sent: Signals) -> None:
    for point in CrashPoint:
        watch(point)
    assert sent == []


def test_an_order_is_carried_out_at_its_nth_reach_and_once(
    tmp_path: Path, watch: Watch, sent: Signals
) -> None:
    order = CrashOrder(point=CrashPoint.AFTER_APPEND, nth=3)
    watch(CrashPoint.AFTER_APPEND)
    give_order(tmp_path, WORKER, order)
    for point in (CrashPoint.AFTER_APPEND, CrashPoint.AFTER_DURABLE, CrashPoint.AFTER_APPEND):
        watch(point)
    assert sent == []
    watch(CrashPoint.AFTER_APPEND)
    assert sent == [signal.SIGKILL]
    watch(CrashPoint.AFTER_APPEND)
    assert sent == [signal.SIGKILL]
    carried_out = fired(tmp_path, WORKER)
    assert carried_out is not None
    assert carried_out.order == order
    assert abs(carried_out.at_ms - time.time_ns() // 1_000_000) < 60_000
    assert fired(tmp_path, WORKER) is None


def test_an_order_taken_back_just_before_it_is_carried_out_is_not_obeyed(
    tmp_path: Path, watch: Watch, sent: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_order(tmp_path, WORKER, CrashOrder(point=CrashPoint.IN_TOOL))
    read_text = Path.read_text

    def read_and_lose(path: Path) -> str:
        text = read_text(path)
        withdraw_order(tmp_path, WORKER)
        return text

    monkeypatch.setattr(Path, "read_text", read_and_lose)
    watch(CrashPoint.IN_TOOL)
    assert sent == []


def test_an_order_to_stop_sends_the_signal_that_can_be_continued(
    tmp_path: Path, watch: Watch, sent: Signals
) -> None:
    give_order(tmp_path, WORKER, CrashOrder(point=CrashPoint.IN_TOOL, act=CrashAct.STOP))
    watch(CrashPoint.IN_TOOL)
    assert sent == [signal.SIGSTOP]


def test_an_order_for_another_worker_or_one_withdrawn_is_not_obeyed(
    tmp_path: Path, watch: Watch, sent: Signals
) -> None:
    give_order(tmp_path, "inference-1", CrashOrder(point=CrashPoint.IN_TOOL))
    give_order(tmp_path, WORKER, CrashOrder(point=CrashPoint.IN_TOOL))
    withdraw_order(tmp_path, WORKER)
    watch(CrashPoint.IN_TOOL)
    assert sent == []


@pytest.mark.parametrize("text", ["", "in_tool", "nowhere 1 kill", "in_tool 0 kill", "in_tool 1 x"])
def test_an_order_that_says_nothing_known_is_refused_by_name(
    tmp_path: Path, watch: Watch, text: str
) -> None:
    (tmp_path / WORKER).write_text(text)
    with pytest.raises(SettingsError, match=r"in_tool|first reach"):
        watch(CrashPoint.IN_TOOL)


def test_nothing_is_armed_unless_the_environment_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_points, "_handler", None)
    (tmp_path / WORKER).write_text("nowhere 1 kill")
    arm_from({}, WORKER)
    reach(CrashPoint.AFTER_SAMPLE)
    arm_from({VARIABLE: str(tmp_path)}, WORKER)
    with pytest.raises(SettingsError):
        reach(CrashPoint.AFTER_SAMPLE)

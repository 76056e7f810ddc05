"""Processes of the platform: started apart, known again, never mistaken for another."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.platform.process import (
    ask_to_stop,
    is_alive,
    last_lines,
    monotonic_ms,
    spawn,
    wait_until_gone,
)
from infra.platform.state import ProcessRecord
from schemas.deadline import Deadline

Start = Callable[[str], ProcessRecord]


def within(budget_ms: int) -> Deadline:
    return Deadline.after(budget_ms, now_ms=monotonic_ms(), waiting_for="the process to end")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[ProcessRecord] = []

    def one(program: str) -> ProcessRecord:
        log = tmp_path / "logs" / "one.log"
        command = [sys.executable, "-u", "-c", program]
        begun.append(spawn("one", command, folder=tmp_path, log=log, out=log, port=1))
        return begun[-1]

    yield one
    for record in begun:
        if is_alive(record):
            os.kill(record.pid, signal.SIGKILL)
    wait_until_gone(begun, within(5000))


SLEEP = "print('ready'); import time; time.sleep(60)"


@pytest.mark.slow
def test_a_started_process_leads_a_session_of_its_own_and_ends_on_request(start: Start) -> None:
    record = start(SLEEP)
    assert is_alive(record)
    assert os.getsid(record.pid) == record.pid
    ask_to_stop(record)
    assert wait_until_gone([record], within(5000)) == []
    assert not is_alive(record)


@pytest.mark.slow
def test_a_process_that_will_not_end_is_killed_at_the_deadline(
    start: Start, tmp_path: Path
) -> None:
    record = start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP)
    deadline = within(5000)
    while "ready" not in last_lines(tmp_path / "logs" / "one.log"):
        assert not deadline.is_over(now_ms=monotonic_ms())
        time.sleep(0.02)
    ask_to_stop(record)
    assert wait_until_gone([record], within(100)) == [record]
    assert not is_alive(record)


@pytest.mark.slow
def test_a_pid_that_went_to_another_process_is_not_ours_and_is_not_signalled(start: Start) -> None:
    record = start(SLEEP)
    recycled = replace(record, start_ticks=record.start_ticks - 1)
    assert not is_alive(recycled)
    ask_to_stop(recycled)
    assert wait_until_gone([recycled], within(0)) == []
    assert is_alive(record)


def test_a_record_of_an_earlier_boot_is_not_alive(start: Start) -> None:
    assert not is_alive(replace(start(SLEEP), boot_id="an earlier one"))


def test_the_last_lines_of_a_log_are_few_and_short(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(f"{number} " + "x" * 1000 for number in range(100)))
    shown = last_lines(log, lines=3).splitlines()
    assert [line.split()[0] for line in shown] == ["97", "98", "99"]
    assert max(len(line) for line in shown) <= 240
    assert last_lines(tmp_path / "none.log") == ""


def test_the_cause_of_a_failure_is_not_hidden_behind_the_frames_of_its_stack(
    tmp_path: Path,
) -> None:
    log = tmp_path / "broker.log"
    frames = "\tat org.apache.kafka.storage.Log.append(Log.java:10)\n" * 60
    log.write_text(
        f"ERROR failed\njava.io.IOException: outer\n{frames}"
        f"Caused by: java.io.IOException: No space left on device\n{frames}\t... 12 more\n"
        "INFO shut down completed\n"
    )
    assert last_lines(log).splitlines() == [
        "ERROR failed",
        "java.io.IOException: outer",
        "Caused by: java.io.IOException: No space left on device",
        "INFO shut down completed",
    ]

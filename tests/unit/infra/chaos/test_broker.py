"""The broker under a chaos run is started only once it is gone."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.chaos import broker as chaos_broker
from infra.chaos.broker import Broker
from schemas.errors import TransientError


class Kernel:
    """One broker process, which goes when it is killed, or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, goes: bool) -> None:
        self.done: list[str] = []
        self._goes = goes
        monkeypatch.setattr(Broker, "_record", lambda _: SimpleNamespace(pid=7, name="broker-1"))
        monkeypatch.setattr("os.kill", self._kill)
        monkeypatch.setattr(chaos_broker, "wait_until_gone", self._wait)
        monkeypatch.setattr(chaos_broker, "up", self._up)

    def _kill(self, pid: int, number: int) -> None:
        assert (pid, number) == (7, signal.SIGKILL)
        self.done.append("killed")

    def _wait(self, records: list[Any], _: object) -> list[Any]:
        self.done.append("waited")
        return [] if self._goes else records

    def _up(self, *_: object) -> None:
        self.done.append("up")


def broker() -> Broker:
    return Broker(SimpleNamespace(data=Path()), SimpleNamespace())  # type: ignore[arg-type]  # only handed on


def test_a_killed_broker_is_started_after_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, goes=True)
    broker().kill_and_start()
    assert kernel.done == ["killed", "waited", "up"]


def test_a_broker_that_outlives_its_kill_is_told_and_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch, goes=False)
    with pytest.raises(TransientError, match="outlived"):
        broker().kill_and_start()
    assert kernel.done == ["killed", "waited"]

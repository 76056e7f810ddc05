"""The outside world of the counter: it counts every execution and refuses earlier attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.counter.store import CounterStore
from schemas.errors import FencedError


def test_each_execution_is_counted_even_of_one_key(tmp_path: Path) -> None:
    store = CounterStore(tmp_path / "counter.sqlite")
    assert [store.add("e", "e:0:0:0", 1, 1), store.add("e", "e:0:0:0", 1, 1)] == [1, 2]
    assert [(run.key, run.executions) for run in store.executions()] == [("e:0:0:0", 2)]


def test_an_attempt_below_one_that_was_seen_is_refused(tmp_path: Path) -> None:
    store = CounterStore(tmp_path / "counter.sqlite")
    store.add("e", "k", 2, 1)
    with pytest.raises(FencedError, match="attempt 1"):
        store.add("e", "k", 1, 1)
    assert store.ask("k", 3) == 1


def test_after_it_answered_none_no_earlier_attempt_can_run_the_call(tmp_path: Path) -> None:
    store = CounterStore(tmp_path / "counter.sqlite")
    assert store.ask("k", 2) is None
    with pytest.raises(FencedError):
        store.add("e", "k", 1, 1)
    assert store.add("e", "k", 2, 1) == 1

"""What a client complains of is kept until a broker answers, and is not said again and again."""

from __future__ import annotations

import pytest

from consumers.trouble import Trouble


def test_a_broker_that_stays_away_while_others_answer_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Trouble("one:1,two:2,three:3")
    for _ in range(50):
        trouble.note("_TRANSPORT", "two:2: Connection refused")
        trouble.clear()
    trouble.note("_RESOLVE", "three: unknown")
    assert [record.args for record in caplog.records] == [
        ("_TRANSPORT", "two:2: Connection refused"),
        ("_RESOLVE", "three: unknown"),
    ]


def test_an_answer_ends_the_silence_and_the_last_complaint_is_in_the_error() -> None:
    trouble = Trouble("one:1")
    trouble.note("_TRANSPORT", "refused")
    assert trouble.lasts_ms >= 0
    assert "one:1: _TRANSPORT: refused" in str(trouble.failure("nothing"))
    trouble.clear()
    assert trouble.lasts_ms == 0
    assert "one:1: nothing" in str(trouble.failure("nothing"))


def test_a_refusal_is_not_covered_by_what_follows_it() -> None:
    trouble = Trouble("one:1")
    trouble.note("_AUTHENTICATION", "wrong password")
    trouble.note("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    assert trouble.is_refusal
    assert "user, password" in trouble.failure("nothing").hint

"""Errors of the client library end a reader with the error of whoever must act, or heal."""

from __future__ import annotations

import pytest

from consumers.core.classify import error_of, failure_of
from consumers.core.config import group_config, reader_config
from consumers.core.topic_ids import GONE, remember_id
from consumers.settings import ConsumerSettings
from consumers.trouble import Trouble
from schemas.errors import (
    BusUnreachableError,
    FencedError,
    InvariantError,
    SettingsError,
    TransientError,
)

SETTINGS = ConsumerSettings(bootstrap="broker:9092")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("_AUTO_OFFSET_RESET", "", InvariantError),
        ("UNKNOWN_TOPIC_OR_PART", "", InvariantError),
        ("CORRUPT_MESSAGE", "", InvariantError),
        ("TOPIC_AUTHORIZATION_FAILED", "", SettingsError),
        ("_AUTHENTICATION", "", BusUnreachableError),
        ("FENCED_INSTANCE_ID", "", FencedError),
        ("_FATAL", "Static consumer fenced by other consumer", FencedError),
        ("_SOMETHING_NEW", "", TransientError),
    ],
)
def test_an_error_names_who_must_act(name: str, text: str, kind: type[Exception]) -> None:
    assert type(failure_of(name, text, place="tokens.v1/3")) is kind
    assert "tokens.v1/3" in str(failure_of(name, text, place="tokens.v1/3"))


@pytest.mark.parametrize("name", ["_ALL_BROKERS_DOWN", "NOT_LEADER_FOR_PARTITION", "_TRANSPORT"])
def test_what_the_library_heals_ends_no_stream_but_may_fail_a_request(name: str) -> None:
    assert failure_of(name, "", place="x") is None
    assert type(error_of(name, "", place="x")) is TransientError


def test_a_reader_never_resets_its_offset_nor_commits_by_itself() -> None:
    config = reader_config(SETTINGS, host="h", pid=1)
    assert config["auto.offset.reset"] == "error"
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["check.crcs"] is True
    assert config["isolation.level"] == "read_uncommitted"


def test_a_group_member_is_static_cooperative_and_gives_up_in_time() -> None:
    config = group_config(SETTINGS, group="gate", member="gate-0", host="h", pid=1)
    assert config["group.id"] == "sluice.gate"
    assert config["group.instance.id"] == "gate-0"
    assert config["partition.assignment.strategy"] == "cooperative-sticky"
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (10_000, 3_000)
    assert config["max.poll.interval.ms"] == 120_000
    assert config["auto.offset.reset"] == "error"


def test_another_topic_id_under_a_known_name_stops_by_name() -> None:
    known: dict[str, str] = {}
    remember_id(known, "tokens.v1", "a")
    remember_id(known, "tokens.v1", "a")
    for found in ("b", GONE):
        with pytest.raises(InvariantError, match=r"tokens\.v1"):
            remember_id(known, "tokens.v1", found)


def test_a_refusal_is_not_covered_by_the_silence_that_follows_it() -> None:
    trouble = Trouble("broker:9092")
    assert trouble.lasts_ms == 0
    trouble.note("_AUTHENTICATION", "wrong password")
    trouble.note("_ALL_BROKERS_DOWN", "1/1 down")
    assert trouble.is_refusal
    assert "wrong password" in str(trouble.failure("timed out"))
    assert "password" in trouble.failure("timed out").hint
    trouble.clear()
    assert trouble.lasts_ms == 0
    assert "sluice up" in trouble.failure("timed out").hint


def test_a_reader_tries_a_lost_broker_again_at_least_twice_a_second() -> None:
    config = reader_config(SETTINGS, host="h", pid=1)
    assert int(config["reconnect.backoff.max.ms"]) <= 500

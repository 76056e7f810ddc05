"""The pure rules of the write door."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from producers.core.backoff import CEILING_MS, wait_ms
from producers.core.classify import bus_hint, outcome_of, version_of
from producers.core.config import client_config
from producers.core.routing import bytes_max, check_partitions, oversize, partition_for
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.errors import SettingsError
from schemas.partition import partition_of
from schemas.ports import Rejected, Unknown
from schemas.topics import ALL, COMMIT_BYTES_MAX, DEAD_LETTERS, PAYLOADS, TOKENS
from tests.support.clocks import HeldClock
from tests.support.records import commit

SETTINGS = ProducerSettings(bootstrap="broker:9092", client_id="inference-0")


@pytest.mark.parametrize(
    "name", ["_MSG_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_TRANSPORT", "_SOMETHING_NEW"]
)
def test_what_is_not_certainly_absent_is_unknown(name: str) -> None:
    assert isinstance(outcome_of(name, "", was_acked_before=False), Unknown)


@pytest.mark.parametrize("name", ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD"])
def test_what_the_broker_refuses_by_content_is_rejected(name: str) -> None:
    assert isinstance(outcome_of(name, "", was_acked_before=True), Rejected)


def test_a_right_that_was_taken_away_meanwhile_leaves_the_record_unknown() -> None:
    name = "TOPIC_AUTHORIZATION_FAILED"
    assert isinstance(outcome_of(name, "", was_acked_before=False), Rejected)
    assert isinstance(outcome_of(name, "", was_acked_before=True), Unknown)


def test_versions_of_the_client_are_compared_as_numbers() -> None:
    assert version_of(0x021000FF) == (2, 16, 0)
    assert version_of(0x020500FF) < version_of(0x021000FF)


def test_a_client_library_that_is_too_old_refuses_the_start_before_it_connects() -> None:
    settings = SETTINGS.model_copy(update={"client_version_min": (99, 0, 0)})
    with pytest.raises(SettingsError, match=r"older than 99\.0\.0"):
        KafkaProducer(settings, Codec.local(), HeldClock())


def test_a_hint_tells_a_wrong_password_from_a_broker_that_is_down() -> None:
    assert "password" in bus_hint("_AUTHENTICATION")
    assert "sluice up" in bus_hint("_ALL_BROKERS_DOWN")


@given(tries=st.integers(1, 10_000), left_ms=st.integers(0, 60_000))
def test_a_wait_has_a_ceiling_and_never_outlasts_the_deadline(tries: int, left_ms: int) -> None:
    assert 0 <= wait_ms(tries, left_ms=left_ms) <= min(CEILING_MS, left_ms)


def test_the_waits_double_from_the_first() -> None:
    assert [wait_ms(tries, left_ms=1_000) for tries in (1, 2, 3, 4)] == [2, 4, 8, 16]
    with pytest.raises(ValueError, match="counts from 1"):
        wait_ms(0, left_ms=1)


def test_all_episodes_of_a_group_share_the_partition_of_the_group() -> None:
    places = {
        partition_for(TOKENS, commit(group="g-7", episode=f"run-1.7.{n}"), 12) for n in range(20)
    }
    assert places == {partition_of("g-7", 12)}


def test_only_chunks_and_dead_letters_may_be_larger_than_a_commit() -> None:
    larger = {topic.name for topic in ALL if bytes_max(topic) > COMMIT_BYTES_MAX}
    assert larger == {PAYLOADS.name, DEAD_LETTERS.name}
    assert oversize(TOKENS, COMMIT_BYTES_MAX) is None
    assert "tokens.v1" in (oversize(TOKENS, COMMIT_BYTES_MAX + 1) or "")
    config = client_config(SETTINGS, compression="lz4", linger_ms=1, host="h", pid=7)
    assert max(bytes_max(topic) for topic in ALL) < int(config["message.max.bytes"])


def test_the_settings_that_decide_about_loss_are_fixed() -> None:
    config = client_config(SETTINGS, compression="lz4", linger_ms=1, host="h", pid=7)
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert config["max.in.flight"] == 5
    assert config["partitioner"] == "murmur2_random"
    assert config["client.id"] == "inference-0-h-7"
    assert config["delivery.timeout.ms"] == 30_000
    with pytest.raises(ValidationError):
        ProducerSettings.model_validate({"bootstrap": "b:1", "acks": "1"})


def test_missing_topics_and_uneven_partitions_refuse_the_start_by_name() -> None:
    good = {topic.name: 12 for topic in ALL}
    check_partitions(good, prefix="sluice")
    with pytest.raises(SettingsError, match=r"missing: sluice\.tokens\.v1"):
        check_partitions({k: v for k, v in good.items() if k != TOKENS.name}, prefix="sluice")
    with pytest.raises(SettingsError, match=r"'sluice\.tokens\.v1': 6"):
        check_partitions(good | {TOKENS.name: 6}, prefix="sluice")


def test_a_producer_tries_a_lost_broker_again_at_least_twice_a_second() -> None:
    config = client_config(SETTINGS, compression="lz4", linger_ms=1, host="h", pid=7)
    assert int(config["reconnect.backoff.max.ms"]) <= 500

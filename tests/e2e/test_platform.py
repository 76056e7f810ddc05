"""The local platform on real brokers: up, down, again, three brokers, kills and taken ports."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.platform.commands import down, status, up
from infra.platform.settings import PlatformSettings
from infra.platform.status import ServiceState
from infra.setup.places import Places, find_places
from infra.topic_admin import create_topics, describe_topics
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.errors import BusUnreachableError, SettingsError
from schemas.ports import Acked, Delivered
from schemas.topics import TOKENS
from tests.conftest import LocalPlatform, require_platform_parts
from tests.support.clocks import RealClock
from tests.support.platform import private_settings
from tests.support.records import commit, within

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.fixture
def places() -> Places:
    require_platform_parts()
    return find_places(os.environ)


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformSettings]:
    """A platform of one broker that is up when a test begins and may be in any state after it."""
    require_platform_parts()
    chosen = private_settings(tmp_path_factory.mktemp("one"))
    yield chosen
    down(chosen)


def create_topic(bootstrap: str, name: str, copies: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"min.insync.replicas": str(max(1, copies - 1))}
    topic = NewTopic(name, num_partitions=3, replication_factor=copies, config=config)
    admin.create_topics([topic], operation_timeout=30)[name].result(30)


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics)


def wait_until(holds: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_up_starts_nothing_and_refuses_other_ports(
    one_broker: PlatformSettings, places: Places
) -> None:
    first = up(one_broker, places)
    assert set(first.started) == {"broker-1", "registry"}
    assert first.status.is_well
    assert up(one_broker, places).was_up
    with pytest.raises(SettingsError, match="run on other ports"):
        up(private_settings(one_broker.data), places)


def test_up_starts_again_only_what_was_killed(one_broker: PlatformSettings, places: Places) -> None:
    first = up(one_broker, places)
    create_topic(first.status.bootstrap, "kept-by-kill", 1)
    broker, registry = first.status.services
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)

    wait_until(lambda: status(one_broker).services[0].state is ServiceState.DEAD)
    again = up(one_broker, places)

    assert again.started == ("broker-1",)
    assert again.status.services[1].pid == registry.pid
    assert "kept-by-kill" in topics(again.status.bootstrap)


def test_state_survives_down_and_up_on_other_ports(
    one_broker: PlatformSettings, places: Places
) -> None:
    first = up(one_broker, places)
    create_topic(first.status.bootstrap, "kept-by-stop", 1)

    assert set(down(one_broker).stopped) == {"broker-1", "registry"}
    assert {one.state for one in status(one_broker).services} == {ServiceState.STOPPED}
    assert not list((one_broker.data / "run").glob("*.pid"))

    moved = private_settings(one_broker.data)
    try:
        again = up(moved, places)
        assert again.status.bootstrap != first.status.bootstrap
        assert again.status.cluster_id == first.status.cluster_id
        assert "kept-by-stop" in topics(again.status.bootstrap)
    finally:
        down(moved)


def test_a_taken_port_is_an_error_that_names_port_and_holder_and_starts_nothing(
    tmp_path: Path, places: Places
) -> None:
    chosen = private_settings(tmp_path)
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", chosen.broker_ports[0]))
        squatter.listen()
        with pytest.raises(SettingsError) as refused:
            up(chosen, places)
    assert f"port {chosen.broker_ports[0]}, wanted by broker-1, is taken" in str(refused.value)
    assert f"pid {os.getpid()}" in str(refused.value)
    assert {one.state for one in status(chosen).services} == {ServiceState.STOPPED}


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformSettings]:
    """A cluster of three brokers and a controller."""
    require_platform_parts()
    chosen = private_settings(tmp_path_factory.mktemp("three"), brokers=3)
    yield chosen
    down(chosen)


async def test_a_stream_goes_on_while_the_leader_is_killed_and_comes_back(
    three_brokers: PlatformSettings, places: Places
) -> None:
    report = up(three_brokers, places)
    assert report.started == ("registry", "controller", "broker-1", "broker-2", "broker-3")
    bootstrap = report.status.bootstrap
    create_topics(bootstrap, prefix="moved", partitions=2)
    write = ProducerSettings(bootstrap=bootstrap, prefix="moved", delivery_timeout_ms=60_000)
    producer = KafkaProducer(write, Codec.local(), RealClock())
    consumers = KafkaConsumers(ConsumerSettings(bootstrap=bootstrap, prefix="moved"), Codec.local())
    first = await producer.send(TOKENS, commit(0), deadline=within(20_000))
    reader = consumers.reader({TOKENS: {first.partition: first.offset}})
    leader = leader_of(bootstrap, TOKENS.full("moved"), first.partition)
    pid = next(one.pid for one in report.status.services if one.name == f"broker-{leader}")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for seq in range(1, 40):
        # The records of the moment wait for the next leader; none is dropped, none is doubled.
        outcome = await asyncio.wait_for(producer.offer(TOKENS, commit(seq)), 60)
        assert isinstance(outcome, Acked), outcome
    assert leader_of(bootstrap, TOKENS.full("moved"), first.partition) != leader
    assert up(three_brokers, places).started == (f"broker-{leader}",)
    for seq in range(40, 60):
        await producer.send(TOKENS, commit(seq), deadline=within(20_000))
    seqs: list[int] = []
    until = time.monotonic() + 20
    while len(seqs) < 60 and time.monotonic() < until:
        found = await reader.poll(records_max=100, timeout_s=1)
        seqs += [one.record.seq for one in found if isinstance(one, Delivered)]
    assert seqs == list(range(60))
    await reader.close()
    await consumers.close()
    assert await producer.close(deadline=within(5_000)) == 0


def leader_of(bootstrap: str, topic: str, partition: int) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return admin.list_topics(topic, timeout=20).topics[topic].partitions[partition].leader


async def test_with_one_broker_of_three_nothing_is_acknowledged_until_a_second_is_back(
    three_brokers: PlatformSettings, places: Places
) -> None:
    report = up(three_brokers, places)
    bootstrap = report.status.bootstrap
    create_topics(bootstrap, prefix="alone", partitions=2)
    for state in describe_topics(bootstrap, prefix="alone", partitions=2):
        assert (state.replicas, state.differences) == (3, ()), state.name
    assert TOKENS.config(replicas=3)["min.insync.replicas"] == "2"
    write = ProducerSettings(bootstrap=bootstrap, prefix="alone", delivery_timeout_ms=100_000)
    producer = KafkaProducer(write, Codec.local(), RealClock())
    first = await producer.send(TOKENS, commit(0), deadline=within(20_000))
    name = TOKENS.full("alone")
    leader = leader_of(bootstrap, name, first.partition)
    pids = {one.name: one.pid for one in report.status.services}
    for number in {1, 2, 3} - {leader}:
        pid = pids[f"broker-{number}"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    waiting = producer.offer(TOKENS, commit(1))
    # The leader counts itself alone in sync from here on: one copy fewer and it would acknowledge.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    until = time.monotonic() + 40
    while in_sync(admin, name, first.partition) != [leader]:
        assert time.monotonic() < until, "the two killed ones are still counted"
        await asyncio.sleep(0.5)
    done, _ = await asyncio.wait({waiting}, timeout=3)
    assert not done
    await asyncio.to_thread(up, three_brokers, places)
    outcome = await asyncio.wait_for(waiting, 60)
    assert isinstance(outcome, Acked)
    assert (outcome.partition, outcome.offset) == (first.partition, first.offset + 1)
    assert await producer.close(deadline=within(5_000)) == 0


def in_sync(admin: AdminClient, topic: str, partition: int) -> list[int]:
    return list(admin.list_topics(topic, timeout=20).topics[topic].partitions[partition].isrs)


def test_three_brokers_keep_three_copies_and_stop_before_their_controller(
    three_brokers: PlatformSettings, places: Places
) -> None:
    bootstrap = up(three_brokers, places).status.bootstrap
    create_topic(bootstrap, "copied", 3)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce("copied", b"one")
    assert producer.flush(30) == 0
    described = AdminClient({"bootstrap.servers": bootstrap}).list_topics("copied", timeout=20)
    copies = {len(one.isrs) for one in described.topics["copied"].partitions.values()}
    assert copies == {3}
    with pytest.raises(SettingsError, match=r"made with 3 broker\(s\), not 1"):
        up(three_brokers.model_copy(update={"brokers": 1}), places)
    report = down(three_brokers)
    assert report.stopped[-1] == "controller"
    assert report.killed == ()


def test_an_existing_cluster_is_checked_and_left_alone(
    local_platform: LocalPlatform, tmp_path: Path, places: Places
) -> None:
    elsewhere = {
        "external_bootstrap": local_platform.bootstrap,
        "external_registry": local_platform.registry_url,
    }
    chosen = private_settings(tmp_path).model_copy(update=elsewhere)
    report = up(chosen, places)
    assert report.was_up
    assert {one.state for one in report.status.services} == {ServiceState.EXTERNAL}
    assert down(chosen).stopped == ()
    wrong = chosen.model_copy(update={"external_bootstrap": "127.0.0.1:1"})
    with pytest.raises(BusUnreachableError, match=r"no broker answers at 127\.0\.0\.1:1"):
        up(wrong, places)

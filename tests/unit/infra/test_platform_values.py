"""The platform's settings, node texts and state: values in, values out."""

import json
import re
from pathlib import Path

import pytest

from infra.platform.nodes import (
    bootstrap_address,
    format_arguments,
    new_cluster_id,
    plan_nodes,
    server_properties,
)
from infra.platform.ports import free_ports, port_is_free, require_free
from infra.platform.settings import PlatformSettings, platform_settings
from infra.platform.state import (
    PlatformState,
    ProcessRecord,
    read_state,
    state_file,
    write_state,
)
from infra.platform.status import ServiceState, brokers_wanted
from infra.setup.places import find_places
from schemas.errors import SettingsError

PLACES = find_places({"SLUICE_HOME": "/somewhere"})
RECORD = ProcessRecord(
    name="broker-1", pid=7, start_ticks=8, boot_id="b", port=9, since_ms=10, log="l"
)
STATE = PlatformState(
    cluster_id="c", brokers=1, bootstrap="127.0.0.1:1", registry_url="u", processes=(RECORD,)
)


def properties(settings: PlatformSettings, brokers: int, index: int) -> dict[str, str]:
    node = plan_nodes(settings, brokers)[index]
    text = server_properties(node, settings, brokers=brokers, store=Path("/store"))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_environment_moves_folder_ports_and_addresses() -> None:
    chosen = platform_settings(
        {
            "SLUICE_DATA": "/data",
            "SLUICE_KAFKA_PORT": "20000",
            "SLUICE_REGISTRY_PORT": "20001",
            "SLUICE_BOOTSTRAP": "far:9092",
        },
        PLACES,
    )
    assert chosen.data == Path("/data")
    assert chosen.broker_ports == (20000, 20010, 20020)
    assert chosen.registry_port == 20001
    assert chosen.external_bootstrap == "far:9092"
    assert platform_settings({}, PLACES).data == Path("/somewhere/local")


@pytest.mark.parametrize(
    ("environ", "brokers", "words"),
    [
        ({"SLUICE_KAFKA_PORT": "many"}, None, "SLUICE_KAFKA_PORT='many' is no port"),
        ({"SLUICE_KAFKA_PORT": "19093"}, None, "two services share a port"),
        ({"SLUICE_REGISTRY_PORT": "70000"}, None, "port 70000 is not between"),
        ({}, 2, "brokers: Input should be 1 or 3"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    environ: dict[str, str], brokers: int | None, words: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        platform_settings(environ, PLACES, brokers=brokers)


def test_one_broker_is_its_own_controller_and_keeps_one_copy() -> None:
    chosen = platform_settings({}, PLACES)
    assert [node.name for node in plan_nodes(chosen, 1)] == ["broker-1"]
    values = properties(chosen, 1, 0)
    assert values["process.roles"] == "broker,controller"
    assert values["offsets.topic.replication.factor"] == "1"
    assert values["transaction.state.log.min.isr"] == "1"
    assert values["auto.create.topics.enable"] == "false"


def test_three_brokers_share_one_controller_and_keep_three_copies() -> None:
    chosen = platform_settings({}, PLACES)
    controller, *brokers = plan_nodes(chosen, 3)
    assert controller.is_controller
    assert not controller.is_broker
    assert [node.is_controller for node in brokers] == [False, False, False]
    values = properties(chosen, 3, 1)
    assert values["process.roles"] == "broker"
    assert values["default.replication.factor"] == "3"
    assert values["transaction.state.log.min.isr"] == "2"
    assert "--standalone" in format_arguments(controller, "c", Path("f"))
    assert "--no-initial-controllers" in format_arguments(brokers[0], "c", Path("f"))
    assert bootstrap_address(chosen, 3).count(",") == 2


@pytest.mark.parametrize("brokers", [1, 3])
def test_nothing_listens_beyond_loopback(brokers: int) -> None:
    chosen = platform_settings({}, PLACES)
    for index in range(len(plan_nodes(chosen, brokers))):
        for listener in properties(chosen, brokers, index)["listeners"].split(","):
            assert re.fullmatch(r"\w+://127\.0\.0\.1:\d+", listener)


def test_no_broker_sets_the_minimum_of_copies_for_all_topics() -> None:
    chosen = platform_settings({}, PLACES)
    assert all("min.insync.replicas" not in properties(chosen, 3, index) for index in range(4))


def test_a_cluster_id_is_sixteen_bytes_and_no_option() -> None:
    ids = {new_cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", one) for one in ids)


def test_state_comes_back_as_it_was_written_with_a_pid_file_for_each_service(
    tmp_path: Path,
) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE
    assert (tmp_path / "run" / "broker-1.pid").read_text() == "7\n"
    write_state(tmp_path, STATE.without_process("broker-1"))
    assert list((tmp_path / "run").glob("*.pid")) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "x": 1}'])
def test_a_damaged_state_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    state_file(tmp_path).write_text(text)
    with pytest.raises(SettingsError, match=re.escape(str(state_file(tmp_path)))):
        read_state(tmp_path)


def test_the_state_file_names_what_a_client_needs(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    body = json.loads(state_file(tmp_path).read_text())
    assert {"bootstrap", "registry_url", "cluster_id", "processes"} <= set(body)


def test_a_folder_keeps_its_number_of_brokers() -> None:
    asked = platform_settings({}, PLACES, brokers=3)
    assert brokers_wanted(asked, None) == 3
    with pytest.raises(SettingsError, match="made with 1"):
        brokers_wanted(asked, STATE)
    assert brokers_wanted(platform_settings({}, PLACES), STATE) == 1


def test_ports_that_are_chosen_together_differ_and_are_free() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert all(port_is_free(port) for port in ports)
    require_free(ports[0], "nobody")


def test_only_a_running_or_foreign_answering_service_is_well() -> None:
    well = {state for state in ServiceState if state.is_well}
    assert well == {ServiceState.RUNNING, ServiceState.EXTERNAL}

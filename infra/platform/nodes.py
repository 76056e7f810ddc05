"""What each Kafka node is, and the text of its configuration: values in, text out, no I/O.

Source of the values: the broker settings of the Kafka documentation for 4.3; topics carry
`min.insync.replicas` themselves, since a broker-wide value is refused while eligible leader
replicas are on.
"""

import base64
import uuid
from dataclasses import dataclass
from pathlib import Path

from infra.platform.ports import LOOPBACK
from infra.platform.settings import PlatformSettings

CONTROLLER_ID = 100
INTERNAL_PARTITIONS = 6
"""Partitions of Kafka's own topics: few, since one machine serves few groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One Kafka process."""

    name: str
    node_id: int
    is_broker: bool
    is_controller: bool
    port: int
    """The port that tells whether the node answers: the broker's, else the controller's."""


def plan_nodes(settings: PlatformSettings, brokers: int) -> tuple[Node, ...]:
    """The nodes in the order they start: a controller before the brokers that need it."""
    if brokers == 1:
        port = settings.broker_ports[0]
        return (Node(name="broker-1", node_id=1, is_broker=True, is_controller=True, port=port),)
    controller = Node(
        name="controller",
        node_id=CONTROLLER_ID,
        is_broker=False,
        is_controller=True,
        port=settings.controller_port,
    )
    return (
        controller,
        *(
            Node(
                name=f"broker-{number}",
                node_id=number,
                is_broker=True,
                is_controller=False,
                port=settings.broker_ports[number - 1],
            )
            for number in range(1, brokers + 1)
        ),
    )


def bootstrap_address(settings: PlatformSettings, brokers: int) -> str:
    """The addresses that a client starts from."""
    return ",".join(f"{LOOPBACK}:{port}" for port in settings.broker_ports[:brokers])


def new_cluster_id() -> str:
    """A cluster id in Kafka's own form: 16 random bytes in URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka's tools would take a leading dash for an option.
        if not text.startswith("-"):
            return text


def server_properties(node: Node, settings: PlatformSettings, *, brokers: int, store: Path) -> str:
    """The text of a node's `server.properties`."""
    controller = f"{LOOPBACK}:{settings.controller_port}"
    copies = min(brokers, 3)
    roles = [("broker", node.is_broker), ("controller", node.is_controller)]
    listeners = []
    if node.is_broker:
        listeners.append(f"PLAINTEXT://{LOOPBACK}:{node.port}")
    if node.is_controller:
        listeners.append(f"CONTROLLER://{controller}")
    values: dict[str, object] = {
        "process.roles": ",".join(name for name, held in roles if held),
        "node.id": node.node_id,
        "controller.quorum.bootstrap.servers": controller,
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": store,
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "offsets.retention.minutes": 20_160,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": max(1, copies - 1),
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": max(1, copies - 1),
        "group.initial.rebalance.delay.ms": 0,
        # The cleaner takes this much heap at the start; the default of 128 MiB is a third of ours.
        "log.cleaner.dedupe.buffer.size": 16_777_216,
    }
    if node.is_broker:
        values["inter.broker.listener.name"] = "PLAINTEXT"
    return "".join(f"{name}={value}\n" for name, value in values.items())


def format_arguments(node: Node, cluster_id: str, properties: Path) -> list[str]:
    """Arguments of `kafka.tools.StorageTool` that make a node's empty store."""
    # Only a controller knows the quorum from the start; brokers learn it from the controller.
    quorum = "--standalone" if node.is_controller else "--no-initial-controllers"
    return ["format", "-t", cluster_id, "-c", str(properties), quorum]


LOG4J2_XML = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN">
  <Appenders>
    <RollingFile name="file" fileName="${sys:sluice.log}" filePattern="${sys:sluice.log}.%i">
      <PatternLayout pattern="%d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1}: %m%n"/>
      <SizeBasedTriggeringPolicy size="10MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="INFO"><AppenderRef ref="file"/></Root>
  </Loggers>
</Configuration>
"""
"""Logging of a node: bounded files, named by the system property `sluice.log`."""

"""Format and start the Kafka nodes of a data folder.

Invariants: a store is formatted only in a data folder that has no cluster yet; a store that should
be there and is not stops the start, since an empty one would forget what the log held.
"""

import subprocess
from pathlib import Path

from infra.platform.java import JVM_OPTIONS, java, kafka_classpath
from infra.platform.nodes import LOG4J2_XML, Node, format_arguments, server_properties
from infra.platform.process import last_lines, spawn
from infra.platform.settings import PlatformSettings
from infra.platform.state import PlatformState, ProcessRecord
from infra.setup.places import Places
from infra.setup.steps import write_atomically
from schemas.errors import Boundary, InvariantError, TransientError

FORMAT_LIMIT_S = 60


def node_store(data: Path, node: Node) -> Path:
    """Where a node keeps its partitions."""
    return data / "kafka" / node.name


def node_log(data: Path, node: Node) -> Path:
    """A node's log; what it says before logging works is in the `.out` file beside it."""
    return data / "logs" / f"{node.name}.log"


def format_node(
    node: Node,
    settings: PlatformSettings,
    places: Places,
    *,
    state: PlatformState,
) -> None:
    """Write a node's configuration, and make its empty store when the cluster is new.

    Raises InvariantError when an old cluster's store is gone, TransientError when the tool fails.
    """
    store = node_store(settings.data, node)
    properties = _properties_file(settings.data, node)
    text = server_properties(node, settings, brokers=state.brokers, store=store)
    write_atomically(properties, text)
    write_atomically(_log4j_file(settings.data), LOG4J2_XML)
    if (store / "meta.properties").exists():
        return
    if state.is_formatted:
        raise InvariantError(
            f"the store of {node.name} is gone from {store}, so the log it held is lost",
            boundary=Boundary.PLATFORM,
            hint="put the folder back, or name a new one with SLUICE_DATA to begin anew",
        )
    store.mkdir(parents=True, exist_ok=True)
    command = [
        java(),
        "-Xmx256m",
        *JVM_OPTIONS,
        *_logging(settings.data, settings.data / "logs" / f"{node.name}-format.log"),
        "-cp",
        kafka_classpath(places),
        "kafka.tools.StorageTool",
        *format_arguments(node, state.cluster_id, properties),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=FORMAT_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _not_formatted(node, f"no end after {FORMAT_LIMIT_S} s") from error
    if done.returncode != 0:
        raise _not_formatted(node, (done.stdout + done.stderr).strip()[-600:])


def start_node(node: Node, settings: PlatformSettings, places: Places) -> ProcessRecord:
    """Start a node whose store is formatted; it is ready when its port and the cluster answer."""
    log = node_log(settings.data, node)
    heap_mb = settings.broker_heap_mb if node.is_broker else 128
    command = [
        java(),
        f"-Xms{min(128, heap_mb)}m",
        f"-Xmx{heap_mb}m",
        *JVM_OPTIONS,
        *_logging(settings.data, log),
        "-cp",
        kafka_classpath(places),
        "kafka.Kafka",
        str(_properties_file(settings.data, node)),
    ]
    return spawn(
        node.name,
        command,
        folder=settings.data,
        log=log,
        out=log.with_suffix(".out"),
        port=node.port,
    )


def node_words(data: Path, node: Node) -> str:
    """The last lines of a node's log and of its output."""
    log = node_log(data, node)
    return f"{last_lines(log)}\n{last_lines(log.with_suffix('.out'), lines=4)}".strip()


def _properties_file(data: Path, node: Node) -> Path:
    return data / "config" / f"{node.name}.properties"


def _log4j_file(data: Path) -> Path:
    return data / "config" / "log4j2.xml"


def _logging(data: Path, log: Path) -> tuple[str, str]:
    return f"-Dlog4j2.configurationFile={_log4j_file(data)}", f"-Dsluice.log={log}"


def _not_formatted(node: Node, why: str) -> TransientError:
    return TransientError(
        f"the store of {node.name} could not be made: {why}",
        boundary=Boundary.PLATFORM,
        hint="is the disk full or the folder read-only? `sluice doctor` looks",
    )

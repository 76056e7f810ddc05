"""The Kafka admin client: which brokers are there, and the topics as declared.

Invariants: every call has a deadline; errors of the client library leave as ours.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from infra.reach import patience_s
from producers.core.classify import bus_hint
from schemas.deadline import Deadline
from schemas.errors import Boundary, BusUnreachableError, SettingsError, TransientError
from schemas.topics import ALL, Topic

PROBE_S = 2.0
LIST_S = 10.0
CREATE_S = 20.0
POLL_S = 0.1
_log = logging.getLogger(__name__)


def admin_client(bootstrap: str, *, heard: list[KafkaError] | None = None) -> AdminClient:
    """Open an admin client that reports trouble to the log and to `heard`, not to stderr."""

    def complained(error: KafkaError) -> None:
        _log.debug("admin client: %s", error)
        if heard is not None:
            heard.append(error)

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "sluice-admin",
        # A broker that is starting refuses a few times; waiting ten seconds then costs more.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "socket.timeout.ms": 10_000,
        # Its complaints come by the callback; its own lines would stand on stderr beside our error.
        "log_level": 2,
        "logger": _log,
        "error_cb": complained,
    }
    return AdminClient(settings)


def count_brokers(bootstrap: str, *, limit_s: float = PROBE_S) -> int:
    """Count the brokers that the cluster lists; raises BusUnreachableError when none answers."""
    return _reached(bootstrap, limit_s)[1]


def wait_for_brokers(
    bootstrap: str,
    count: int,
    deadline: Deadline,
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait until the cluster lists `count` brokers.

    check: called before each look; what it raises ends the wait (the death of a process that is
    waited for). Raises BusUnreachableError with the name of the wait when the deadline passes.
    """
    admin = admin_client(bootstrap)
    seen = 0
    while True:
        check()
        try:
            seen = _listed(admin, bootstrap, PROBE_S)
        except BusUnreachableError:
            seen = 0
        if seen >= count:
            return
        if deadline.is_over(now_ms=time.monotonic_ns() // 1_000_000):
            raise BusUnreachableError(
                f"gave up on {deadline.waiting_for}: {seen} of {count} answer at {bootstrap}",
                hint="`sluice status` names what is down and where its log lies",
            )
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic on the broker, beside what is declared."""

    name: str
    """Name on the broker."""
    topic_id: str
    """Its id; another one under the same name is another log. Empty when the topic is missing."""
    partitions: int
    replicas: int
    differences: tuple[str, ...]
    """What is not as declared, one sentence each."""


def missing_topics(bootstrap: str, *, prefix: str) -> list[str]:
    """Return the names on the broker of the declared topics that it does not hold."""
    admin, _ = _reached(bootstrap, patience_s())
    there = admin.list_topics(timeout=LIST_S).topics
    return [topic.full(prefix) for topic in ALL if topic.full(prefix) not in there]


def create_topics(bootstrap: str, *, prefix: str, partitions: int) -> list[str]:
    """Create the topics that are missing, as declared; return their names on the broker.

    Replication follows the number of brokers, at most 3. Safe to repeat and to run twice at once.
    Raises BusUnreachableError, or SettingsError with the broker's words when it refuses.
    """
    admin, brokers = _reached(bootstrap, patience_s())
    replicas = min(3, max(1, brokers))
    there = admin.list_topics(timeout=LIST_S).topics
    wanted = [
        NewTopic(
            topic.full(prefix),
            num_partitions=partitions,
            replication_factor=replicas,
            config=topic.config(replicas=replicas),
        )
        for topic in ALL
        if topic.full(prefix) not in there
    ]
    if not wanted:
        return []
    made: list[str] = []
    for name, future in admin.create_topics(wanted, operation_timeout=CREATE_S).items():
        try:
            future.result(timeout=2 * CREATE_S)
            made.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SettingsError(
                    f"{name} could not be created: {error.args[0].str()}",
                    boundary=Boundary.BUS,
                    hint="may this principal create topics, and are enough brokers up?",
                ) from error
    _wait_until_led(admin, [topic.full(prefix) for topic in ALL])
    return made


def describe_topics(
    bootstrap: str,
    *,
    prefix: str,
    topics: Collection[Topic[Any]] = ALL,
    partitions: int | None = None,
) -> list[TopicState]:
    """Compare topics on the broker with their declaration, in the order given.

    partitions: how many are expected; None expects only that all grouped topics have equally many.
    """
    admin, brokers = _reached(bootstrap, patience_s())
    there = admin.list_topics(timeout=LIST_S).topics
    found = [topic for topic in topics if topic.full(prefix) in there]
    ids = topic_ids(bootstrap, prefix=prefix, topics=found)
    settings = _settings_of(admin, [topic.full(prefix) for topic in found])
    grouped = {len(there[t.full(prefix)].partitions) for t in found if t.is_grouped}
    states: list[TopicState] = []
    for topic in topics:
        name = topic.full(prefix)
        if topic not in found:
            gone = ("it is missing; `sluice topics create` makes it",)
            states.append(
                TopicState(name=name, topic_id="", partitions=0, replicas=0, differences=gone)
            )
            continue
        listed = there[name].partitions
        replicas = min(len(one.replicas) for one in listed.values())
        differences = _differences(
            topic, settings[name], replicas=replicas, wanted_replicas=min(3, brokers)
        )
        if partitions is not None and len(listed) != partitions:
            differences.append(f"{len(listed)} partitions, not {partitions}")
        if topic.is_grouped and len(grouped) > 1:
            differences.append(f"grouped topics have {sorted(grouped)} partitions, not one number")
        states.append(
            TopicState(
                name=name,
                topic_id=ids[topic.name],
                partitions=len(listed),
                replicas=replicas,
                differences=tuple(differences),
            )
        )
    return states


def require_topics(bootstrap: str, *, prefix: str, partitions: int) -> None:
    """Raise SettingsError that lists every difference between the topics and their declaration."""
    states = describe_topics(bootstrap, prefix=prefix, partitions=partitions)
    wrong = [f"{one.name}: {'; '.join(one.differences)}" for one in states if one.differences]
    if wrong:
        raise SettingsError(
            f"topics are not as declared: {' | '.join(wrong)}",
            boundary=Boundary.BUS,
            hint="`sluice topics create` makes missing ones; others need a new prefix",
        )


def topic_ids(
    bootstrap: str, *, prefix: str, topics: Collection[Topic[Any]] = ALL
) -> dict[str, str]:
    """Return the id of each topic by logical name; topics that are missing are left out."""
    if not topics:
        return {}
    names = {topic.full(prefix): topic.name for topic in topics}
    # Named, since the answers die with their client.
    admin = admin_client(bootstrap)
    asked = admin.describe_topics(TopicCollection(list(names)), request_timeout=LIST_S)
    ids: dict[str, str] = {}
    for full, future in asked.items():
        try:
            ids[names[full]] = str(future.result(timeout=2 * LIST_S).topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _unreachable(bootstrap, error) from error
    return ids


def log_starts(
    bootstrap: str, *, prefix: str, topics: Collection[Topic[Any]]
) -> dict[tuple[str, int], int]:
    """Return the lowest offset that stands in each partition, by logical topic name."""
    admin, _ = _reached(bootstrap, patience_s())
    there = admin.list_topics(timeout=LIST_S).topics
    names = {topic.full(prefix): topic.name for topic in topics if topic.full(prefix) in there}
    asked = {
        TopicPartition(full, partition): OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        for full in names
        for partition in there[full].partitions
    }
    found: dict[tuple[str, int], int] = {}
    for place, future in admin.list_offsets(asked, request_timeout=LIST_S).items():
        try:
            found[names[place.topic], place.partition] = future.result(timeout=2 * LIST_S).offset
        except KafkaException as error:
            raise _unreachable(bootstrap, error) from error
    return found


def delete_below(
    bootstrap: str, *, prefix: str, floors: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Delete the records below an offset of each partition; return the lowest that stands then.

    Raises SettingsError when a broker refuses one, having tried all.
    """
    admin = admin_client(bootstrap)
    names = {f"{prefix}.{topic}": topic for topic, _ in floors}
    asked = [TopicPartition(f"{prefix}.{t}", p, offset) for (t, p), offset in floors.items()]
    lows: dict[tuple[str, int], int] = {}
    refused: list[str] = []
    answers = admin.delete_records(asked, request_timeout=LIST_S, operation_timeout=CREATE_S)
    for place, future in answers.items():
        try:
            lows[names[place.topic], place.partition] = future.result(
                timeout=2 * CREATE_S
            ).low_watermark
        except KafkaException as error:
            refused.append(f"{place.topic}/{place.partition}: {error.args[0].str()}")
    if refused:
        raise SettingsError(
            f"records were not deleted: {'; '.join(refused)}",
            boundary=Boundary.BUS,
            hint="may this principal delete records, and does each partition have a leader?",
        )
    return lows


def _differences(
    topic: Topic[Any], settings: dict[str, str], *, replicas: int, wanted_replicas: int
) -> list[str]:
    differences = [
        f"{name} is {settings.get(name)!r}, not {value!r}"
        for name, value in topic.config(replicas=wanted_replicas).items()
        if settings.get(name) != value
    ]
    if replicas < wanted_replicas:
        differences.append(f"{replicas} copies, not {wanted_replicas}")
    return differences


def _settings_of(admin: AdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    if not resources:
        return {}
    asked = admin.describe_configs(resources, request_timeout=LIST_S)
    return {
        resource.name: {
            name: entry.value for name, entry in future.result(timeout=2 * LIST_S).items()
        }
        for resource, future in asked.items()
    }


def _wait_until_led(admin: AdminClient, names: list[str]) -> None:
    # Creation is acknowledged by the controller; brokers learn of it a moment later, and lead a
    # partition later than they list it. One that is written to before loses its first records.
    until = time.monotonic() + CREATE_S
    while time.monotonic() < until:
        there = admin.list_topics(timeout=LIST_S).topics
        if all(name in there for name in names) and all(
            _leads(future)
            for future in admin.list_offsets(
                {
                    TopicPartition(name, partition): OffsetSpec.earliest()  # type: ignore[no-untyped-call]
                    for name in names
                    for partition in there[name].partitions
                },
                request_timeout=PROBE_S,
            ).values()
        ):
            return
        time.sleep(POLL_S)
    raise TransientError(
        "the brokers do not lead the new topics yet",
        boundary=Boundary.BUS,
        hint="`sluice topics describe` shows them",
    )


def _leads(answer: Any) -> bool:
    try:
        answer.result(timeout=2 * PROBE_S)
    except KafkaException:
        return False
    return True


def _reached(bootstrap: str, limit_s: float) -> tuple[AdminClient, int]:
    """Return a client that a broker has answered, and how many brokers the cluster lists."""
    heard: list[KafkaError] = []
    admin = admin_client(bootstrap, heard=heard)
    try:
        return admin, _listed(admin, bootstrap, limit_s)
    except BusUnreachableError as error:
        admin.poll(0)
        # What was complained of on the way says more than that the time is over.
        causes = [one for one in heard if one.code() != KafkaError._ALL_BROKERS_DOWN]
        if not causes:
            raise
        told = causes[-1].str().partition(" (after ")[0]
        raise BusUnreachableError(
            f"no broker answers at {bootstrap}: {told.partition('/bootstrap: ')[2] or told}",
            hint=bus_hint(causes[-1].name()),
        ) from error


def _unreachable(bootstrap: str, error: KafkaException) -> BusUnreachableError:
    return BusUnreachableError(
        f"no broker answers at {bootstrap}: {error.args[0].str()}",
        hint="is the address right? `sluice up` starts a local one, `sluice status` shows it",
    )


def _listed(admin: AdminClient, bootstrap: str, limit_s: float) -> int:
    try:
        return len(admin.list_topics(timeout=limit_s).brokers)
    except KafkaException as error:
        raise _unreachable(bootstrap, error) from error

"""The client library's settings, as pure functions: values in, a dictionary out.

Source of the values: shared notes on Kafka 4.3 and librdkafka 2.16, each with its reason there.
None of them is a knob, since every one of them decides whether records are skipped or read twice.
"""

from __future__ import annotations

from consumers.settings import ConsumerSettings

Config = dict[str, str | int | bool]
# How long the broker may hold an answer that has nothing to say; one that has something comes at
# once. A change of what is read waits for the answer that is out: a reader that jumps asks often.
# All others would only make ten times the requests while they are idle.
FETCH_WAIT_MS = 500
JUMPING_WAIT_MS = 50
SOCKET_TIMEOUT_MS = 10_000


def reader_config(
    settings: ConsumerSettings, *, host: str, pid: int, wait_ms: int = FETCH_WAIT_MS
) -> Config:
    """Return the settings of a consumer that reads given partitions, callbacks apart."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"{settings.client_id}-{host}-{pid}",
        # Wanted by the library; nothing is committed under it.
        "group.id": f"{settings.prefix}-readers",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "check.crcs": True,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": wait_ms,
        "queued.max.messages.kbytes": settings.prefetch_kib,
        # With the default of 1,000 ms a reader that fills its prefetch stands still for a second.
        "fetch.queue.backoff.ms": 5,
        "isolation.level": "read_uncommitted",
        "socket.keepalive.enable": True,
        # How long a connection may be silent under a request before another is opened: a peer that
        # vanished without a word is noticed by nothing else. The default is 60 s.
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        # The library's default grows to 10 s and more: a client would sleep on after the broker is
        # back.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "allow.auto.create.topics": False,
        # The error callback says the same once, where the library's log repeats it.
        "log_level": 2,
        "log.connection.close": False,
        **settings.security,
    }


def group_config(
    settings: ConsumerSettings, *, group: str, member: str, host: str, pid: int
) -> Config:
    """Return the settings of a member of a consumer group, callbacks apart."""
    return {
        **reader_config(settings, host=host, pid=pid),
        "group.id": f"{settings.prefix}.{group}",
        "group.instance.id": member,
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": settings.session_ms,
        "heartbeat.interval.ms": min(3_000, settings.session_ms // 3),
        "max.poll.interval.ms": settings.poll_interval_ms,
        "enable.partition.eof": False,
    }


def admin_config(settings: ConsumerSettings) -> Config:
    """Return the settings of the client that asks for ends, partitions and topic ids."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"{settings.client_id}-admin",
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "log_level": 2,
        **settings.security,
    }

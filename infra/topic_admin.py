"""The Kafka admin client: which brokers are there.

Invariants: every call has a deadline; errors of the client library leave as ours.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.deadline import Deadline
from schemas.errors import BusUnreachableError

PROBE_S = 2.0
POLL_S = 0.1
_log = logging.getLogger(__name__)


def admin_client(bootstrap: str) -> AdminClient:
    """Open an admin client that reports trouble to the log, not to stderr."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "sluice-admin",
        # A broker that is starting refuses a few times; waiting ten seconds then costs more.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "socket.timeout.ms": 10_000,
        "logger": _log,
        "error_cb": lambda error: _log.debug("admin client: %s", error),
    }
    return AdminClient(settings)


def count_brokers(bootstrap: str, *, limit_s: float = PROBE_S) -> int:
    """Count the brokers that the cluster lists; raises BusUnreachableError when none answers."""
    return _listed(admin_client(bootstrap), bootstrap, limit_s)


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


def _listed(admin: AdminClient, bootstrap: str, limit_s: float) -> int:
    try:
        return len(admin.list_topics(timeout=limit_s).brokers)
    except KafkaException as error:
        raise BusUnreachableError(
            f"no broker answers at {bootstrap}: {error.args[0].str()}",
            hint="is the address right? `sluice up` starts a local one, `sluice status` shows it",
        ) from error

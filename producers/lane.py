"""One librdkafka producer with its poll thread, and the acknowledgements on their way to the loop.

Invariants:
- Futures are touched on the event loop only; acknowledgements are handed over to it in batches.
- Whatever a callback or the library raises, the thread goes on and nobody waits without end.
- Only an offset is proof: an acknowledgement without one is Unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from producers.core.classify import AUTHENTICATION, outcome_of
from schemas.ports import Acked, Acknowledgement, Unknown

Future = asyncio.Future[Acknowledgement]

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_PURGE_POLLS = 20
_DEAD_POLL_S = 0.05
_JOIN_S = 5.0
# Where one broker of several is down, the others answer between two complaints of it.
_SAY_AGAIN_S = 60.0
# Under load a short rest gathers more acknowledgements into one wake-up of the loop.
_BUSY_SETTLED = 100
_REST_S = 0.002
# The library holds a refused batch for written once the next one of its partition is. On a
# partition without a record of this producer, as one made just now, the broker takes that
# next one although the first is missing: then the acknowledgement is of a record that is lost.
_NO_OFFSET = "acknowledged without an offset: it may have been refused while the next was written"
_new = tuple.__new__


class Ticket(asyncio.Future[Acknowledgement]):
    """An acknowledgement to come that is also its delivery callback: one object per record."""

    __slots__ = ("outcome", "partition", "route")
    route: Route
    partition: int
    outcome: Acknowledgement

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Keep the outcome for the loop. Runs on the poll thread; the message, which holds the
        payload, is not kept.
        """
        route = self.route
        if error is None:
            offset = message.offset()
            self.outcome = (
                Unknown(_NO_OFFSET) if offset is None else _new(Acked, (self.partition, offset))
            )
            route.was_acked = True
        else:
            known = route.was_acked
            self.outcome = outcome_of(error.name(), error.str(), was_acked_before=known)
        route.settled.append(self)


@dataclass(slots=True, kw_only=True)
class Route:
    """What sending to a topic needs, looked up once, and whether it was ever acknowledged."""

    lane: Lane
    settled: list[Ticket]
    produce: Callable[..., None]
    full: str
    hashed: Callable[[Any], str]
    partitions: int
    bytes_max: int
    was_acked: bool = False


class Lane:
    """One librdkafka producer with its poll thread and what is in flight on it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.in_flight: set[Future] = set()
        self.trouble = ""
        self.trouble_name = ""
        self._said: dict[str, float] = {}
        self.statistics = ""
        self.dead = ""
        self._is_retired = False
        self.settled: list[Ticket] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.client = Client(
            {**config, "error_cb": self._complained, "stats_cb": self._measured, "logger": _log}
        )
        self._thread = threading.Thread(target=self._run, name="kafka-producer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its poll thread still runs."""
        return self._thread.is_alive()

    def retire(self, why: str) -> int:
        """Give up what is in flight as Unknown; return how many. The poll thread ends by itself."""
        self.dead = self.dead or why
        self._is_retired = True
        return self._abandon(why)

    def join(self) -> None:
        """Wait for the poll thread; it is a daemon, so a slow one does not keep the process."""
        self._thread.join(timeout=_JOIN_S)

    def _abandon(self, why: str) -> int:
        abandoned = [future for future in self.in_flight if not future.done()]
        for future in abandoned:
            future.set_result(Unknown(why))
        self.in_flight.clear()
        return len(abandoned)

    def _run(self) -> None:
        while not self._is_retired:
            try:
                self.client.poll(_POLL_S)
            except KafkaException as error:
                self._die(f"fatal error: {_words(error.args[0])}")
            except Exception as error:  # noqa: BLE001  a callback's; without this thread all wait for ever
                self._die(f"a callback failed ({error!r}), what it was told of is not known")
            if self._hand_over() >= _BUSY_SETTLED:
                time.sleep(_REST_S)
        self._drain()

    def _drain(self) -> None:
        # What is queued must not be sent any more; what is on its way may still arrive.
        with contextlib.suppress(KafkaException):
            self.client.purge(blocking=False)
        for _ in range(_PURGE_POLLS):
            # Nobody waits for these any more, so that a callback that fails harms nobody.
            with contextlib.suppress(Exception):
                self.client.poll(0.05)
            if len(self.client) == 0:
                break
        self.settled.clear()

    def _die(self, why: str) -> None:
        if not self.dead:
            _log.error("the producer is dead: %s", why)
            self.dead = why
            self._on_loop(lambda: self._abandon(why))
        # After a fatal error the library raises the same at every poll from now on.
        time.sleep(_DEAD_POLL_S)

    def _hand_over(self) -> int:
        settled = self.settled.copy()
        self.settled.clear()
        if settled:
            self._on_loop(lambda: self._settle(settled))
        return len(settled)

    def _on_loop(self, call: Callable[[], object]) -> None:
        if self.loop is not None:
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(call)

    def _settle(self, settled: Sequence[Ticket]) -> None:
        in_flight = self.in_flight
        for ticket in settled:
            in_flight.discard(ticket)
            if not ticket.done():
                ticket.set_result(ticket.outcome)
        if isinstance(settled[-1].outcome, Acked):
            self.trouble = self.trouble_name = ""

    def _complained(self, error: KafkaError) -> None:
        words = _words(error)
        name = words.partition(":")[0]
        if self._is_retired or self.trouble_name in AUTHENTICATION:
            return
        if time.monotonic() - self._said.get(name, -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            self._said[name] = time.monotonic()
            _log.warning("the Kafka client says %s", words)
        self.trouble_name = name
        self.trouble = words

    def _measured(self, statistics: str) -> None:
        self.statistics = statistics


def _words(error: KafkaError) -> str:
    # While a fatal error is being raised, methods of the error object can fail in the library.
    try:
        return f"{error.name()}: {error.str()}"
    except SystemError:
        return "_FATAL: fatal error in the client library"

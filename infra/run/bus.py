"""The bus as a run sees it: addresses, doors for the command line, the Start record and the run's
ends.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.clock import MachineClock
from infra.platform.commands import status
from infra.platform.registry import NAME as REGISTRY
from infra.platform.settings import platform_settings
from infra.reach import patience_s
from infra.setup.places import find_places
from infra.topic_admin import count_brokers
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import ControlKind
from schemas.errors import BusUnreachableError, SettingsError
from schemas.ids import RunId, WorkerId
from schemas.records.control_event import ControlEvent
from schemas.records.parts import LogEnd
from schemas.topics import ALL, CONTROL

_SEND_MS = 15_000
_PORT_MAX = 65_535
CLI_WORKER = WorkerId("cli")
_AGAIN = "superseded "
"""What the audit's counts of records that do not count begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAddress:
    """Where the bus is."""

    bootstrap: str
    registry: str
    prefix: str


def find_bus(bootstrap: str = "", registry: str = "", *, prefix: str = "sluice") -> BusAddress:
    """Return the addresses: as given, else from the environment, else the local platform.

    Raises BusUnreachableError when one is not given and the local platform does not run it,
    SettingsError for what is no address.
    """
    bootstrap = bootstrap or os.environ.get("SLUICE_BOOTSTRAP", "")
    registry = registry or os.environ.get("SLUICE_REGISTRY", "")
    _require_addresses(bootstrap)
    if not (bootstrap and registry):
        now = status(platform_settings(os.environ, find_places(os.environ)))
        given = {True: registry, False: bootstrap}
        down = ", ".join(
            f"{one.name} at {one.address} {one.state.value}"
            for one in now.services
            if not one.state.is_well and not given[one.name == REGISTRY]
        )
        if down:
            raise BusUnreachableError(
                f"the bus is not there: {down}",
                hint="`sluice up` starts it; or set SLUICE_BOOTSTRAP and SLUICE_REGISTRY",
            )
        bootstrap = bootstrap or now.bootstrap
        registry = registry or now.registry_url
    return BusAddress(bootstrap=bootstrap, registry=registry, prefix=prefix)


def _require_addresses(bootstrap: str) -> None:
    """Refuse a port that no machine has, which the client library would turn into another."""
    for address in filter(None, bootstrap.split(",")):
        _, colon, port = address.strip().rpartition(":")
        if colon and not (port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise SettingsError(
                f"{address!r} is no address of a broker",
                hint="expected HOST:PORT, several by comma",
            )


class Doors:
    """The doors of one command: opened late, closed together."""

    def __init__(self, address: BusAddress, *, client: str = "cli") -> None:
        """Raises BusUnreachableError in the time that `infra.reach` gives."""
        self.address = address
        self.clock = MachineClock()
        # The registry is asked a question a subject, which takes long on a busy machine; whether a
        # broker answers should not have to wait for it.
        count_brokers(address.bootstrap, limit_s=patience_s())
        # Its client takes longer to load than all else, which a wrong address should not wait for.
        from infra.registry import resolve_codec

        self.codec: Codec = resolve_codec(address.registry, prefix=address.prefix)
        name = f"{client}-{os.getpid()}"
        self.producer = KafkaProducer(
            ProducerSettings(bootstrap=address.bootstrap, prefix=address.prefix, client_id=name),
            self.codec,
            self.clock,
        )
        self.consumers = KafkaConsumers(
            ConsumerSettings(bootstrap=address.bootstrap, prefix=address.prefix, client_id=name),
            self.codec,
        )

    def deadline(self, budget_ms: int, waiting_for: str) -> Deadline:
        """Return a deadline from now."""
        return Deadline.after(budget_ms, now_ms=self.clock.monotonic_ms(), waiting_for=waiting_for)

    async def close(self) -> None:
        """Release the clients."""
        await self.producer.close(deadline=self.deadline(5_000, "the last acknowledgements"))
        await self.consumers.close()

    async def control(
        self, run_id: RunId, kind: ControlKind, *, ends: tuple[LogEnd, ...] = (),
        settings: str = "", reason: str = "", counts: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Append one control record and wait for its acknowledgement."""
        record = ControlEvent(
            run_id=run_id,
            kind=kind,
            ends=ends,
            settings=settings,
            reason=reason,
            counts=dict(counts or {}),
            at_us=self.clock.now_us(),
            writer_id=CLI_WORKER,
        )
        await self.producer.send(
            CONTROL, record, deadline=self.deadline(_SEND_MS, f"the {kind.value} record")
        )

    async def all_ends(self) -> dict[str, dict[int, int]]:
        """Return the end offset now of every partition of every topic."""
        return {topic.name: dict(await self.consumers.ends(topic)) for topic in ALL}


def log_ends(
    starts: Mapping[str, Mapping[int, int]], topic_ids: Mapping[str, str]
) -> tuple[LogEnd, ...]:
    """Return offsets as the Start record lists them."""
    return tuple(
        LogEnd(topic=name, topic_id=topic_ids.get(name, ""), partition=partition, offset=offset)
        for name, ends in sorted(starts.items())
        for partition, offset in sorted(ends.items())
    )


def new_run_id(now_us: int, randomness: bytes) -> RunId:
    """Return a time-ordered UUID of version 7. Source: RFC 9562, section 5.7."""
    millis = (now_us // 1_000) & ((1 << 48) - 1)
    chance = int.from_bytes(randomness[:10], "big")
    value = (
        millis << 80
        | 0x7 << 76
        | (chance >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | chance & ((1 << 62) - 1)
    )
    return RunId(str(uuid.UUID(int=value)))


def counts_of(report: Any) -> dict[str, Any]:
    """Return the audit's counts of trajectories and tokens as the summary prints them."""
    return {
        "issued": report.counts.get("issued", 0),
        "trained": report.counts.get("trained", 0),
        "dropped": dict(report.dropped),
        "abandoned": dict(report.abandoned),
        "evaluated": report.counts.get("evaluated", 0),
        "pending": report.counts.get("pending", 0),
        "duplicates": _duplicates(report.counts),
        "tokens": dict(report.tokens),
    }


def _duplicates(counts: Mapping[str, int]) -> dict[str, int]:
    """Return by what they are the records that another one of their id stands before."""
    again = {name.removeprefix(_AGAIN): n for name, n in counts.items() if name.startswith(_AGAIN)}
    return again | ({"commits": n} if (n := counts.get("commits superseded", 0)) else {})

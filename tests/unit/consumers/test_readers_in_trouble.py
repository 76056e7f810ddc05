"""A broker that was away, or a stream that ends, costs a reader no record that it had read."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest

from consumers.client import Place, Read, Rebalance
from consumers.group import KafkaGroupReader
from consumers.lookup import Lookup
from consumers.reader import KafkaLogReader
from consumers.settings import ConsumerSettings
from schemas.errors import BusUnreachableError, InvariantError, SluiceError
from schemas.ports import Assigned, Delivered, Floor, GroupReader, LogReader, Position
from schemas.records.token_commit import TokenCommit
from schemas.topics import TOKENS
from tests.support.clocks import RealClock
from tests.support.records import commit, within

SETTINGS = ConsumerSettings(bootstrap="nowhere:1")
AWAY = BusUnreachableError("no broker answers")
GONE = InvariantError("the topic is gone")

Step = Sequence[Read] | SluiceError | bool
"""What the client gives: records; an error that `check` raises; whether all is well."""


def record(offset: int) -> Delivered[TokenCommit]:
    return Delivered(
        topic=TOKENS.name,
        partition=0,
        offset=offset,
        timestamp_ms=1,
        key=None,
        record=commit(offset),
    )


class ScriptedClient:
    """A client that plays a script on the reader's thread; see `consumers.client.Client`."""

    def __init__(self, *script: Step) -> None:
        self._script = deque(script)
        self._outcome: Step = False
        self.is_played = threading.Event()
        self.is_troubled = False

    def take(self, _records_max: int, timeout_s: float) -> tuple[Sequence[Read], int]:
        self._outcome = False
        if not self._script:
            self.is_played.set()
            threading.Event().wait(timeout_s)
            return (), 0
        self._outcome = self._script.popleft()
        return ((), 0) if isinstance(self._outcome, SluiceError | bool) else (self._outcome, 1)

    def check(self) -> bool:
        if isinstance(self._outcome, SluiceError):
            raise self._outcome
        if self.is_troubled:
            raise AWAY
        return self._outcome is True

    def add(self, starts: Mapping[Place, int]) -> None: ...

    def remove(self, places: Collection[Place]) -> None: ...

    def pause(self, places: Collection[Place]) -> None: ...

    def resume(self, places: Collection[Place]) -> None: ...

    def join(self, _topic: str, rebalance: Rebalance) -> None:
        self._rebalance = rebalance
        rebalance.assigned([0])

    def leave(self) -> None:
        self._rebalance.revoked([0])

    def committed(self, _topic: str, _partitions: Collection[int]) -> Mapping[int, Floor]:
        return {}

    def commit(self, topic: str, floors: Mapping[int, Floor]) -> None: ...

    def close(self) -> None: ...


def log_reader(client: ScriptedClient) -> KafkaLogReader:
    return KafkaLogReader(
        lambda: client,
        {(TOKENS.name, 0): 0},
        ends=lambda _topic, _partitions: {},
        settings=SETTINGS,
        now_ms=RealClock().monotonic_ms,
    )


def group_reader(client: ScriptedClient) -> KafkaGroupReader:
    return KafkaGroupReader(
        lambda: client, topic=TOKENS.name, starts={}, floors=lambda _owned: {}, settings=SETTINGS
    )


async def offsets(reader: LogReader | GroupReader) -> list[int]:
    """Return what one poll gives, which asks for more than there is."""
    found = await reader.poll(records_max=100, timeout_s=0.02)
    return [one.offset for one in found if isinstance(one, Delivered)]


both = pytest.mark.parametrize("make", [log_reader, group_reader])
Make = Callable[[ScriptedClient], KafkaLogReader | KafkaGroupReader]


async def played(client: ScriptedClient) -> None:
    """Wait until nothing is left of the script and nobody has polled meanwhile."""
    assert await asyncio.to_thread(client.is_played.wait, 5)


@both
async def test_records_read_before_a_complaint_are_given_before_it(make: Make) -> None:
    client = ScriptedClient([record(0), record(1)], AWAY)
    reader = make(client)
    await played(client)
    assert await offsets(reader) == [0, 1]
    with pytest.raises(BusUnreachableError):
        await offsets(reader)
    assert await offsets(reader) == []
    await reader.close()


@both
async def test_records_read_before_the_stream_ends_are_given_before_its_error(make: Make) -> None:
    client = ScriptedClient([record(0)], [record(1)], GONE)
    reader = make(client)
    await asyncio.to_thread(reader._thread.join, 5)
    assert await offsets(reader) == [0, 1]
    for _ in range(2):
        with pytest.raises(InvariantError, match="gone"):
            await offsets(reader)
    await reader.close()


@both
async def test_a_complaint_that_nobody_heard_is_withdrawn_by_a_record(make: Make) -> None:
    client = ScriptedClient(AWAY, [record(0)])
    reader = make(client)
    await played(client)
    assert await offsets(reader) == [0]
    assert await offsets(reader) == []
    await reader.close()


@both
async def test_a_complaint_that_nobody_heard_is_withdrawn_when_a_broker_answers(
    make: Make,
) -> None:
    client = ScriptedClient(AWAY, True)
    reader = make(client)
    await played(client)
    assert await offsets(reader) == []
    await reader.close()


async def test_reading_to_an_end_gives_back_what_it_took_when_the_bus_is_away() -> None:
    client = ScriptedClient([record(0), record(1)], AWAY)
    reader = log_reader(client)
    await played(client)
    with pytest.raises(BusUnreachableError):
        await reader.read_to({(TOKENS.name, 0): 3}, deadline=within(5_000))
    assert reader.positions() == {(TOKENS.name, 0): 0}
    assert await offsets(reader) == [0, 1]
    await reader.close()


def test_a_fetch_gives_the_record_that_came_although_the_bus_is_in_trouble() -> None:
    client = ScriptedClient([record(3)])
    client.is_troubled = True
    lookup = Lookup(lambda: client, RealClock().monotonic_ms)
    found = lookup.fetch(Position(TOKENS.name, 0, 3), within(5_000))
    assert found == record(3)
    with pytest.raises(BusUnreachableError):
        lookup.fetch(Position(TOKENS.name, 0, 4), within(5_000))


async def test_an_assignment_that_came_before_a_complaint_is_given_before_it() -> None:
    client = ScriptedClient(AWAY)
    reader = group_reader(client)
    await played(client)
    assert [type(one) for one in await reader.poll(records_max=9, timeout_s=0.02)] == [Assigned]
    with pytest.raises(BusUnreachableError):
        await reader.poll(records_max=9, timeout_s=0.02)
    await reader.close()

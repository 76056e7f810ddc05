"""A whole sink whose database is down for a while: it waits, stops reading at its bound, and brings
every row exactly once when the database is back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.run.worker import table_definitions
from schemas.enums import WorkerStatus
from schemas.errors import Boundary, TransientError
from schemas.ids import WorkerId
from schemas.records.metric_point import MetricPoint
from schemas.topics import METRICS, TOKENS, WORKERS, Topic
from stream_jobs import sink, sink_writer
from stream_jobs.core.sink_rollups import NEWEST
from stream_jobs.core.sink_tables import TABLES
from stream_jobs.sink import Sink
from stream_jobs.sink_settings import SinkSettings
from tests.support.asked_offsets import answer_offsets
from tests.support.environment_world import until
from tests.support.fake_rollout import RUN, context_on
from tests.support.memory_bus import MemoryBus
from tests.support.records import commit

HELD_MAX, LOOK = 1_000, 150


class FallibleDatabase:
    """An engine whose every call fails while it is down; of inserts every second one had landed
    all the same, and a repeat under its token leaves no second copy.
    """

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = False

    def __init__(self) -> None:
        self.is_down = False
        self.failed = 0
        self.answered = 0
        """Rows whose insert was answered."""
        self.falls_at = 0
        """Rows at which it falls; 0: it does not."""
        self.rows: dict[str, Counter[tuple[int, int]]] = {}
        self.marks = 0
        self._tokens: set[tuple[str, str]] = set()

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        if not self.is_down or self.failed % 2:
            token = (table, settings["insert_deduplication_token"])
            if token not in self._tokens:
                self._tokens.add(token)
                places = zip(
                    data.column("src_partition").to_pylist(),
                    data.column("src_offset").to_pylist(),
                    strict=True,
                )
                self.rows.setdefault(table, Counter()).update(places)
        self._must_be_up()
        self.answered += data.num_rows
        if self.falls_at and self.answered >= self.falls_at:
            self.is_down, self.falls_at = True, 0

    def run(self, statement: str) -> bytes:
        self._must_be_up()
        there = answer_offsets(
            statement,
            lambda table, partition: (o for p, o in self.rows.get(table, ()) if p == partition),
        )
        if there is not None:
            return there
        self.marks += statement.startswith("INSERT INTO sink_progress")
        return b"0\n" if statement == NEWEST else b""

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        raise AssertionError(statement, form, parameters)

    def close(self) -> None:
        """Nothing to release."""

    def _must_be_up(self) -> None:
        if self.is_down:
            self.failed += 1
            raise RuntimeError("connection refused")


@dataclass
class World:
    """A bus, a database, and what the sink between them has read."""

    bus: MemoryBus = field(default_factory=lambda: MemoryBus(partitions=2))
    database: FallibleDatabase = field(default_factory=FallibleDatabase)
    read: int = 0
    open_failures: int = 0

    @property
    def held(self) -> int:
        """Records that were read and of which nobody said that they are rows."""
        return self.read - self.database.answered

    def append(self, topic: Topic[Any], total: int) -> None:
        """Put so many records on the two partitions of a topic."""
        for seq in range(total):
            record = commit(seq) if topic is TOKENS else _point(seq)
            self.bus.append(topic, record, partition=seq % 2)

    def written(self, topic: Topic[Any]) -> Counter[tuple[int, int]]:
        return self.database.rows.get(TABLES[topic.name][0].name, Counter())

    @asynccontextmanager
    async def running(self, **changes: Any) -> AsyncIterator[None]:
        """Run the sink as its process does, and stop it in order."""
        stop = asyncio.Event()
        context = context_on(self.bus, "sink-0", stop=stop)
        settings = SinkSettings(
            buffered_records_max=HELD_MAX, batch_offsets=300, batch_interval_s=0.05,
            busy_share_max=1.0, rollup_interval_s=1.0, drain_s=5, **changes,
        )  # fmt: skip
        running = asyncio.create_task(
            sink.run(context, settings, codec=self.bus.codec, migrations=table_definitions())
        )
        try:
            yield
            stop.set()
            async with asyncio.timeout(10):
                await running
        finally:
            running.cancel()
            await asyncio.wait({running})

    def is_ready(self) -> bool:
        return any(one.status is WorkerStatus.READY for one in self.bus.records(WORKERS))


def _point(seq: int) -> MetricPoint:
    return MetricPoint(
        run_id=RUN, name="wait_ms", unit="ms", value=float(seq), at_us=1, writer_id=WorkerId("w")
    )


def _expected(total: int) -> Counter[tuple[int, int]]:
    return Counter((seq % 2, seq // 2) for seq in range(total))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with small looks and short pauses."""
    world, look = World(), Sink._look

    def make_engine(settings: SinkSettings) -> FallibleDatabase:
        assert settings.buffered_records_max == HELD_MAX
        if world.open_failures:
            world.open_failures -= 1
            raise TransientError("the server does not answer", boundary=Boundary.STORE)
        return world.database

    async def counted(self: Sink, timeout_s: float) -> int:
        found = await look(self, min(timeout_s, 0.05))
        world.read += found
        return found

    for module, name, value in (
        (sink, "make_engine", make_engine),
        (sink, "_POLL_MAX", LOOK),
        (sink, "_BEHIND", 100),
        (sink, "_GATHER_S", 0.001),
        (sink_writer, "_PAUSE_S", 0.001),
        (sink_writer, "_PAUSE_MAX_S", 0.01),
        (Sink, "_look", counted),
    ):
        monkeypatch.setattr(module, name, value)
    return world


@pytest.mark.parametrize(
    ("topic", "total", "held_max"),
    [(METRICS, 3_000, HELD_MAX), (TOKENS, 12_000, 8 * HELD_MAX)],
    ids=["whole records", "rows"],
)
async def test_a_sink_whose_database_is_down_reads_to_its_bound_and_brings_every_row_once_after(
    world: World, topic: Topic[Any], total: int, held_max: int
) -> None:
    database = world.database
    database.falls_at = 2
    world.append(topic, total)
    async with world.running():
        await until(lambda: database.is_down and database.failed > 0)
        read = -1
        while read != world.read:
            # Much longer than a look takes, so that it has stopped, though more is there.
            read, failed = world.read, database.failed
            await until(lambda: database.failed >= failed + 10)  # noqa: B023  awaited here
        assert held_max / 2 <= world.held
        assert world.held <= held_max + LOOK
        assert world.read < total
        database.is_down = False
        await until(lambda: world.written(topic).total() >= total, seconds=20)
    assert world.written(topic) == _expected(total)
    assert database.marks


async def test_a_sink_that_starts_before_its_database_waits_and_then_works(world: World) -> None:
    world.append(TOKENS, 500)
    world.open_failures, world.database.is_down = 3, True
    async with world.running():
        # The server answers again, and every statement of the start fails for a while as well.
        await until(lambda: world.database.failed >= 3)
        assert not world.open_failures
        assert not world.is_ready()
        world.database.is_down = False
        await until(lambda: world.written(TOKENS).total() >= 500)
        assert world.is_ready()
    assert world.written(TOKENS) == _expected(500)


@pytest.mark.parametrize(
    "table", ["schema_migrations FINAL", "sink_progress FINAL", "rolled_minutes FINAL"]
)
async def test_a_database_that_goes_in_the_middle_of_a_start_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    run, failed = FallibleDatabase.run, list[str]()

    def failing(self: FallibleDatabase, statement: str) -> bytes:
        if statement.startswith("SELECT") and table in statement and len(failed) < 3:
            failed.append(statement)
            raise RuntimeError("connection reset")
        return run(self, statement)

    monkeypatch.setattr(FallibleDatabase, "run", failing)
    world.append(TOKENS, 500)
    async with world.running():
        await until(lambda: world.written(TOKENS).total() >= 500, seconds=20)
    assert len(failed) == 3
    assert world.written(TOKENS) == _expected(500)


async def test_a_sink_gives_up_when_the_database_stays_away_longer_than_it_may(
    world: World, tmp_path: Path
) -> None:
    world.open_failures = 1_000_000
    place = tmp_path / "sink.json"

    async def run_until_it_ends() -> None:
        async with world.running(insert_retry_s=1.0, address_file=str(place)):
            await until(lambda: world.open_failures < 999_970)
            assert not place.exists(), "nobody is sent to a sink that cannot answer"
            await asyncio.sleep(1.0)

    with pytest.raises(TransientError, match="does not answer"):
        await run_until_it_ends()
    assert not world.is_ready()

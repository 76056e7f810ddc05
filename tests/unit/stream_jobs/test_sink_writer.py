"""What the writer does when the store is away for a while, or for good."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.codec import Codec
from schemas.enums import Role
from schemas.errors import InvariantError, TransientError
from schemas.ports import Delivered
from schemas.topics import DEAD_LETTERS, TOKENS
from stream_jobs import sink_writer
from stream_jobs.core.sink_batches import Batch, Batches
from stream_jobs.core.sink_ranges import Range, Stored, Written, resume_at
from stream_jobs.core.sink_rollups import Stale
from stream_jobs.core.sink_slabs import BULK_MIN, Slab
from stream_jobs.sink_intake import Intake
from stream_jobs.sink_store import Store
from stream_jobs.sink_writer import Writer
from tests.support.asked_offsets import answer_offsets
from tests.support.clocks import HeldClock
from tests.support.fake_rollout import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.records import commit

P = (TOKENS.name, 0)


def marks(statement: str) -> list[dict[str, Any]]:
    """Return the rows of an insert into where the sink stands."""
    assert statement.startswith("INSERT INTO sink_progress ")
    found = re.findall(r"\('run-1', '[\w.-]+', 0, (\d+), (\d+), '(\w+)', (\d+)\)", statement)
    return [
        {"first": int(first), "last": int(last), "state": state, "progress": int(progress)}
        for first, last, state, progress in found
    ]


class ScriptedEngine:
    """An engine that fails as told, and keeps what it was given."""

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = False

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.there: Sequence[int] = range(1_000)
        """Offsets of which rows are found."""
        self.calls: list[tuple[str, str, list[dict[str, Any]]]] = []

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        token = settings.get("insert_deduplication_token", "")
        self.calls.append((table, token, data.to_pylist()))
        if self.failures:
            raise RuntimeError(self.failures.pop(0))

    def run(self, statement: str) -> bytes:
        if (there := answer_offsets(statement, lambda *_: self.there)) is not None:
            return there
        self.calls.append(("sink_progress", "", marks(statement)))
        return b""

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        raise AssertionError(statement, form, parameters)

    def close(self) -> None:
        """Nothing to release."""


def batch(first: int, last: int) -> Batch:
    messages = tuple(
        Delivered(
            topic=TOKENS.name, partition=0, offset=offset, timestamp_ms=1, key=None,
            record=commit(offset),
        )
        for offset in range(first, last + 1)
    )  # fmt: skip
    return Batch(place=P, range=Range(first, last), messages=messages)


async def write(
    engine: ScriptedEngine, *batches: Batch, stored: Stored | None = None, retry_ms: int = 5_000
) -> dict[Any, Range]:
    store = await Store.open(lambda: engine)
    held = {} if stored is None else {P: stored}
    writer = Writer(
        context_on(MemoryBus(partitions=1), "sink-0"), store, Codec.local(), held, retry_ms=retry_ms
    )
    try:
        return await writer.write(batches)
    finally:
        await store.close()


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow at once."""
    monkeypatch.setattr(sink_writer, "_PAUSE_S", 0.001)
    monkeypatch.setattr(sink_writer, "_PAUSE_MAX_S", 0.002)


async def test_the_range_is_noted_before_its_rows_and_closed_after_them() -> None:
    engine = ScriptedEngine()
    await write(engine, batch(0, 2), batch(3, 4))
    told = [
        (table, token or f"{rows[0]['state']} {rows[0]['first']}-{rows[0]['last']}")
        for table, token, rows in engine.calls
    ]
    assert told == [
        ("sink_progress", "before 0-2"),
        ("token_commits", f"run-1:{TOKENS.name}:0:0-2"),
        ("sink_progress", "after 0-2"),
        ("sink_progress", "before 3-4"),
        ("token_commits", f"run-1:{TOKENS.name}:0:3-4"),
        ("sink_progress", "after 3-4"),
    ]


async def test_an_insert_whose_error_can_pass_is_repeated_with_identical_rows_and_token() -> None:
    engine = ScriptedEngine("Code: 252. Too many parts", "connection reset")
    await write(engine, batch(0, 2))
    inserts = [call for call in engine.calls if call[0] == "token_commits"]
    assert len(inserts) == 3
    assert inserts[0] == inserts[1] == inserts[2]


async def test_rows_whose_token_was_noted_without_them_are_brought_under_another() -> None:
    name = f"run-1:{TOKENS.name}:0:0-4"
    for failures, stored in (
        (["connection reset"], None),
        ([], Stored(Range(0, 4), Written.BEFORE)),
    ):
        engine = ScriptedEngine(*failures)
        engine.there = (0, 3)
        await write(engine, batch(0, 4), stored=stored)
        told = [
            (token, [row["src_offset"] for row in rows])
            for table, token, rows in engine.calls
            if table == "token_commits"
        ]
        whole = [(name, [0, 1, 2, 3, 4])] * (1 + len(failures))
        assert told == [*whole, (f"{name}:1+3", [1, 2, 4])]


async def test_an_insert_that_can_never_succeed_stops_the_sink_with_its_range_still_open() -> None:
    engine = ScriptedEngine("Code: 16. No such column")
    with pytest.raises(InvariantError, match="No such column"):
        await write(engine, batch(0, 2))
    assert engine.calls[0][2][0]["state"] == Written.BEFORE.value
    assert [table for table, *_ in engine.calls] == ["sink_progress", "token_commits"]


async def test_a_store_that_stays_away_ends_the_process_once_the_budget_is_spent() -> None:
    engine = ScriptedEngine(*["connection refused"] * 10_000)
    async with asyncio.timeout(5):
        with pytest.raises(TransientError, match="refused"):
            await write(engine, batch(0, 2), retry_ms=20)


async def test_a_batch_behind_an_open_range_is_left_out_until_that_is_settled() -> None:
    engine = ScriptedEngine()
    again = await write(
        engine, batch(10, 12), batch(13, 14), stored=Stored(Range(5, 9), Written.BEFORE)
    )
    assert again == {P: Range(5, 9)}
    assert engine.calls == []


async def test_a_database_that_was_down_for_ten_minutes_gets_every_row_once_it_is_back() -> None:
    clock = HeldClock()
    engine = SharedEngine()
    down_until_ms = clock.monotonic_ms() + 600_000
    tried: list[int] = []

    class Down(SharedEngine):
        def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
            tried.append(clock.monotonic_ms())
            # Each try lasts as long as a connection that times out.
            clock.advance(30_000)
            if clock.monotonic_ms() < down_until_ms:
                raise RuntimeError("connection refused")
            engine.insert(table, data, settings)

        def run(self, statement: str) -> bytes:
            return engine.run(statement)

    store = await Store.open(Down)
    context = replace(context_on(MemoryBus(partitions=1), "sink-0"), clock=clock)
    writer = Writer(context, store, Codec.local(), {}, retry_ms=1_800_000)
    try:
        assert await writer.write([batch(0, 2), batch(3, 4)]) == {}
    finally:
        await store.close()
    assert len(tried) >= 20
    assert sorted(row["src_offset"] for row in engine.rows["token_commits"]) == [0, 1, 2, 3, 4]


async def test_a_sink_that_is_asked_to_stop_does_not_wait_for_a_database_that_is_down() -> None:
    engine = ScriptedEngine(*["connection refused"] * 10_000)
    store = await Store.open(lambda: engine)
    stop = asyncio.Event()
    context = replace(context_on(MemoryBus(partitions=1), "sink-0"), stop=stop)
    writer = Writer(context, store, Codec.local(), {}, retry_ms=1_800_000)
    writing = asyncio.create_task(writer.write([batch(0, 2)]))
    async with asyncio.timeout(5):
        while len(engine.calls) < 3:
            await asyncio.sleep(0)
        stop.set()
        with pytest.raises(TransientError, match="refused"):
            await writing
    await store.close()


async def test_part_of_an_open_range_is_buried_whichever_way_it_was_read() -> None:
    bus = MemoryBus(partitions=1)
    for seq in range(BULK_MIN):
        bus.append(TOKENS, commit(seq), partition=0)
    context = context_on(bus, "sink-0")
    intake = Intake(context, Role.SINK, bus.codec, {TOKENS: {0: 0}})
    (slab,), _ = await intake.poll(records_max=1_000, timeout_s=1)
    assert isinstance(slab, Slab)
    store = await Store.open(ScriptedEngine)
    held = {P: Stored(Range(0, 9), Written.BEFORE)}
    writer = Writer(context, store, bus.codec, held, retry_ms=5_000)
    for first, messages in ((2, (slab.within(2, 3),)), (4, batch(4, 5).messages)):
        piece = Batch(place=P, range=Range(first, first + 1), messages=messages)
        assert await writer.write([piece]) == {}
    await store.close()
    assert writer.buried == 4
    letters = bus.records(DEAD_LETTERS)
    assert [(one.origin_offset, one.raw) for one in letters] == [
        (offset, bus.codec.encode(TOKENS, commit(offset))) for offset in range(2, 6)
    ]
    assert {one.error_class for one in letters} == {"RangeMismatch"}


class SharedEngine:
    """Tables that several owners reach: of inserts under one token the first stands, as long as the
    token is remembered, and the newest progress counts.
    """

    faults: tuple[type[Exception], ...] = (RuntimeError,)
    is_shared = True

    def __init__(self, *, remembers: int = 10_000) -> None:
        """remembers: how many tokens of each table."""
        self.tokens: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=remembers))
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def insert(self, table: str, data: Any, settings: Mapping[str, str]) -> None:
        token = settings.get("insert_deduplication_token")
        if token is not None:
            if token in self.tokens[table]:
                return
            self.tokens[table].append(token)
        self.rows.setdefault(table, []).extend(data.to_pylist())

    def run(self, statement: str) -> bytes:
        there = answer_offsets(
            statement, lambda table, _: (r["src_offset"] for r in self.rows.get(table, ()))
        )
        if there is not None:
            return there
        if statement.startswith("INSERT"):
            self.rows.setdefault("sink_progress", []).extend(marks(statement))
            return b""
        if "sink_progress" in statement:
            if (stands := self.stored()) is None:
                return b""
            told = (*P, stands.range.first, stands.range.last, stands.state.value)
            return "\t".join(map(str, told)).encode()
        first = int(statement.rpartition("first = ")[2])
        found = [one for one in self.rows["sink_borders"] if one["first"] == first]
        return str(min(found, key=lambda one: one["claimed"])["last"]).encode()

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        raise AssertionError(statement, form, parameters)

    def close(self) -> None:
        """Nothing to release."""

    def stored(self) -> Stored | None:
        marks = self.rows.get("sink_progress", [])
        if not marks:
            return None
        newest = max(marks, key=lambda one: one["progress"])
        return Stored(Range(newest["first"], newest["last"]), Written(newest["state"]))


class Owner:
    """A sink that reads one partition of `total` records and cuts it where its clock says."""

    def __init__(self, engine: SharedEngine, store: Store, total: int, *, behind_us: int) -> None:
        """behind_us: how far its clock is behind that of others."""
        stored = engine.stored()
        held = {} if stored is None else {P: stored}
        clock = HeldClock(now_us=1_800_000_000_000_000 - behind_us)
        context = replace(context_on(MemoryBus(partitions=1), "sink-0"), clock=clock)
        self.writer = Writer(context, store, Codec.local(), held, retry_ms=5_000)
        self.batches = Batches({P: resume_at(stored, 0)}, offsets_max=1_000, interval_ms=0)
        self.read = resume_at(stored, 0)[0]
        self.total = total

    async def go_on(self, records: int) -> None:
        until = min(self.total, self.read + records)
        for message in batch(self.read, until - 1).messages if until > self.read else ():
            self.batches.take(message, now_ms=0)
        self.read = until
        ready = self.batches.due(now_ms=1, all_of_it=True)
        for place, settled in (await self.writer.write(ready)).items():
            self.batches.rewind(place, settled)
            self.read = settled.first


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.booleans()), max_size=40),
    st.sampled_from((1, 10_000)),
)
@example([(0, 5, False), (0, 5, False), (2, 15, False)], 1)
@settings(max_examples=50, deadline=None)
async def test_several_owners_of_one_partition_at_once_leave_every_row_exactly_once(
    schedule: list[tuple[int, int, bool]], remembers: int
) -> None:
    engine, total = SharedEngine(remembers=remembers), 60
    store = await Store.open(lambda: engine)
    try:
        owners = [Owner(engine, store, total, behind_us=number) for number in range(3)]
        for number, records, is_new in schedule:
            if is_new:
                owners[number] = Owner(engine, store, total, behind_us=number)
            await owners[number].go_on(records)
        for _ in range(30):
            await owners[0].go_on(7)
    finally:
        await store.close()
    offsets = [row["src_offset"] for row in engine.rows["token_commits"]]
    assert sorted(offsets) == list(range(total))
    assert engine.stored() == Stored(engine_last(engine), Written.AFTER)


def engine_last(engine: SharedEngine) -> Range:
    last = max(engine.rows["sink_borders"], key=lambda one: int(one["last"]))
    return Range(last["first"], last["last"])


async def test_minutes_that_another_owner_has_filled_are_made_anew_all_the_same() -> None:
    engine, stale = SharedEngine(remembers=0), Stale(["token_commits"], interval_ms=0)
    store = await Store.open(lambda: engine)
    context = context_on(MemoryBus(partitions=1), "sink-0")
    try:
        for noting in (None, stale):
            writer = Writer(context, store, Codec.local(), {}, retry_ms=5_000, stale=noting)
            assert await writer.write([batch(0, 2)]) == {}
    finally:
        await store.close()
    assert len(engine.rows["token_commits"]) == 3
    assert stale.due(now_ms=1, all_of_it=True) == {"token_commits": [0]}


class HeldEngine(SharedEngine):
    """Answers no query of others before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.done: list[str] = []

    def ask(self, statement: str, form: str, parameters: Mapping[str, str]) -> bytes:
        assert self.let_go.wait(10), (form, parameters)
        self.done.append(statement)
        return b""

    def run(self, statement: str) -> bytes:
        self.done.append(statement)
        return b""


async def test_rows_wait_for_one_query_of_others_at_most() -> None:
    engine = HeldEngine()
    store = await Store.open(lambda: engine)
    asked = [asyncio.create_task(store.ask(f"query {n}", "TSV", {})) for n in range(20)]
    await asyncio.sleep(0)
    written = asyncio.create_task(store.run("rows"))
    await asyncio.sleep(0)
    engine.let_go.set()
    await asyncio.gather(written, *asked)
    await store.close()
    assert engine.done[:2] == ["query 0", "rows"]
    assert len(engine.done) == 21

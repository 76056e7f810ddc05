"""The tracer against a collector on loopback that decodes what it is sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from infra.exporter.instruments import Instruments
from infra.run.conductor import parts_of
from infra.settings import RunSettings, assemble
from infra.tracing import tracer
from infra.tracing.core.fold import READ
from infra.tracing.otlp import Collector
from infra.tracing.settings import TracingSection
from infra.tracing.tracer import Tracer, persevere, run
from schemas.enums import LearnerEventKind
from schemas.errors import BusUnreachableError, SettingsError
from schemas.ids import RunId, group_of_episode
from schemas.ports import Consumers, Context
from schemas.records.learner_event import LearnerEvent
from schemas.records.trajectory import Trajectory
from schemas.topics import TOKENS, Topic
from schemas.tracing import root_span, trace_of_episode
from tests.support.contexts import context_on
from tests.support.memory_bus import MemoryBus
from tests.support.otlp_collector import OtlpCollector
from tests.support.recorded_run import ABANDONED, TRAINED, RecordedRun

FAST = {"interval_s": 0.02, "drain_s": 5.0, "retry_s": 5.0}


class Running:
    """A tracer that works beside the test."""

    def __init__(
        self,
        bus: MemoryBus,
        endpoint: str,
        folder: Path,
        consumers: Consumers | None = None,
        **settings: Any,
    ) -> None:
        self.context = context_on(bus)
        self.context = replace(self.context, consumers=consumers or self.context.consumers)
        self.settings = TracingSection(endpoint=endpoint, **FAST | settings)
        self.registry = CollectorRegistry()
        self.collector = Collector(
            endpoint, resource={"service.name": "sluice"}, retry_s=self.settings.retry_s
        )
        self.place = folder / "tracing.json"
        self.tracer = Tracer(
            self.context, self.settings, self.collector, Instruments(self.registry), self.place
        )

    def stop(self) -> None:
        stop: Any = self.context.stop
        stop.set()

    def counted(self, outcome: str) -> float:
        found = self.registry.get_sample_value("sluice_trace_spans_total", {"outcome": outcome})
        return found or 0.0


@asynccontextmanager
async def running(
    bus: MemoryBus, endpoint: str, folder: Path, **settings: Any
) -> AsyncIterator[Running]:
    made = Running(bus, endpoint, folder, **settings)
    work = asyncio.create_task(made.tracer.run())
    try:
        yield made
        made.stop()
        await asyncio.wait_for(work, 20)
    finally:
        work.cancel()
        made.collector.close()


async def until(holds: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def ids(spans: list[Any]) -> set[tuple[str, str]]:
    return {(span.trace_id.hex(), span.span_id.hex()) for span in spans}


async def test_a_collector_is_sent_the_spans_of_a_run(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        bus = RecordedRun().write()
        async with running(bus, collector.endpoint, tmp_path) as made:
            await until(lambda: any(s.name == "episode" for s in collector.spans()))
        spans = collector.spans()
        trace = f"{trace_of_episode(TRAINED):032x}"
        (top,) = (s for s in spans if s.name == "episode" and s.trace_id.hex() == trace)
        assert top.span_id.hex() == f"{root_span(trace_of_episode(TRAINED)):016x}"
        assert not top.parent_span_id
        told = {one.key: one.value for one in top.attributes}
        assert told["sluice.outcome"].string_value == "trained"
        assert told["sluice.reward"].double_value == 1.0
        assert told["sluice.action_tokens"].int_value == 7
        assert top.end_time_unix_nano >= top.start_time_unix_nano > 10**18
        (step,) = (s for s in spans if s.name == "learner step")
        assert trace in {link.trace_id.hex() for link in step.links}
        resource = collector.requests[0].resource_spans[0].resource
        assert resource.attributes[0].value.string_value == "sluice"
        failed = [s for s in spans if s.status.code == 2]
        assert "group_deadline" in {s.status.message for s in failed}
        assert made.counted("sent") == len(spans) == made.tracer.sent


async def test_who_was_killed_tells_the_same_spans_again(tmp_path: Path) -> None:
    bus = RecordedRun().write()
    with OtlpCollector() as whole:
        (tmp_path / "a").mkdir()
        async with running(bus, whole.endpoint, tmp_path / "a"):
            await until(lambda: bool(whole.spans()))
    (tmp_path / "b").mkdir()
    with OtlpCollector() as collector:
        first = Running(bus, collector.endpoint, tmp_path / "b", batch_spans=5)
        killed = asyncio.create_task(first.tracer.run())
        await until(lambda: len(collector.requests) >= 2)
        killed.cancel()
        await asyncio.wait({killed})
        async with running(bus, collector.endpoint, tmp_path / "b"):
            await until(lambda: ids(collector.spans()) == ids(whole.spans()))
        before = len(collector.spans())
        async with running(bus, collector.endpoint, tmp_path / "b") as third:
            await until(lambda: third.place.stat().st_size > 0)
        again = [s.name for s in collector.spans()[before:]]
        assert "learner step" not in again, "what was told lies below the place that is kept"
        assert ids(collector.spans()) == ids(whole.spans())


class Slowly:
    """The doors of a bus whose readers are handed one record at a time, tokens last."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self._held: deque[Any] = deque()
        self._read: dict[tuple[str, int], int] = {}
        self.polls_left = 0
        self.idle = 0
        """Polls that were told of nothing."""

    async def partitions(self, _: Topic[Any]) -> int:
        return self._bus.partitions

    def reader(self, starts: Any) -> Slowly:
        self._read = {(topic.name, p): at for topic, of in starts.items() for p, at in of.items()}
        for topic in sorted(starts, key=lambda topic: topic is TOKENS):
            self._held.extend(self._bus.messages(topic))
        return self

    async def poll(self, **_: Any) -> list[Any]:
        await asyncio.sleep(0 if self.polls_left else 0.001)
        if not self.polls_left or not self._held:
            self.idle += 1
            return []
        self.polls_left -= 1
        message = self._held.popleft()
        self._read[message.topic, message.partition] = message.offset + 1
        return [message]

    def positions(self) -> dict[tuple[str, int], int]:
        return self._read

    async def ends(self, topic: Topic[Any]) -> dict[int, int]:
        return {p: self._bus.end(topic.name, p) for p in range(self._bus.partitions)}

    async def close(self) -> None:
        return


async def test_an_abandoned_episode_is_told_with_tokens_that_are_read_long_after(
    tmp_path: Path,
) -> None:
    def change(topic: Topic[Any], record: Any) -> Any:
        """The abandoned episode has sampled what a trained one has."""
        if topic is TOKENS and record.episode_id == TRAINED:
            its = replace(record, episode_id=ABANDONED, group_id=group_of_episode(ABANDONED))
            return [its, record]
        return record

    bus = RecordedRun(change).write()
    tokens = len(bus.messages(TOKENS))
    others = sum(len(bus.messages(topic)) for topic in READ) - tokens
    doors = Slowly(bus)
    doors.polls_left = others
    with OtlpCollector() as collector:
        made = Running(bus, collector.endpoint, tmp_path, consumers=cast(Any, doors))
        work = asyncio.create_task(made.tracer.run())
        trace = f"{trace_of_episode(ABANDONED):032x}"
        await until(lambda: doors.idle >= 100)
        assert trace not in {span.trace_id.hex() for span in collector.spans()}
        doors.polls_left = tokens
        await until(lambda: any(s.name == "episode" and s.trace_id.hex() == trace
                                for s in collector.spans()))  # fmt: skip
        made.stop()
        await asyncio.wait_for(work, 20)
        made.collector.close()
        names = [s.name for s in collector.spans() if s.trace_id.hex() == trace]
        assert names.count("generation") >= 2
        assert made.registry.get_sample_value("sluice_traces_late_records_total") == 0.0


async def test_a_spoilt_place_tells_the_run_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "tracing.json").write_text('{"floors": [["tokens')
    with OtlpCollector() as collector:
        async with running(RecordedRun().write(), collector.endpoint, tmp_path):
            await until(lambda: any(s.name == "learner step" for s in collector.spans()))


async def test_what_the_collector_asks_to_come_later_comes_later(tmp_path: Path) -> None:
    with OtlpCollector([503, 429, 502]) as collector:
        async with running(RecordedRun().write(), collector.endpoint, tmp_path) as made:
            await until(lambda: bool(collector.spans()))
        assert collector.refused == 3
        assert made.tracer.given_up == 0


async def test_what_the_collector_refuses_for_good_is_given_up_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpCollector([500]) as collector:
        async with running(
            RecordedRun().write(), collector.endpoint, tmp_path, batch_spans=4
        ) as made:
            await until(lambda: bool(collector.spans()))
        assert collector.refused == 1
        assert made.counted("given_up") == made.tracer.given_up == 4
        assert f"4 spans given up: the collector at {collector.endpoint} did not" in caplog.text
        assert made.counted("sent") == len(collector.spans())


async def test_a_collector_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        endpoint = collector.endpoint
    async with running(
        RecordedRun().write(), endpoint, tmp_path, retry_s=0.05, batch_spans=8
    ) as made:
        await until(lambda: made.tracer.given_up >= 16)
    assert made.tracer.sent == 0


async def test_a_slow_collector_slows_the_reading_and_no_queue_grows(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        collector.go_on.clear()
        bus = RecordedRun().write()
        async with running(bus, collector.endpoint, tmp_path, queue_spans_max=8) as made:
            await until(collector.arrived.is_set)
            reads = dict(made.tracer.positions)
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert made.tracer.positions == reads, "nothing is read while a batch is sent"
            collector.go_on.set()
            await until(lambda: any(s.name == "learner step" for s in collector.spans()))


async def test_a_collector_that_never_answers_does_not_hold_the_end_of_a_run(
    tmp_path: Path,
) -> None:
    with OtlpCollector() as collector:
        collector.go_on.clear()
        clock = asyncio.get_running_loop().time
        async with running(
            RecordedRun().write(), collector.endpoint, tmp_path, retry_s=600.0, drain_s=0.2
        ):
            await until(collector.arrived.is_set)
            began_s = clock()
        assert clock() - began_s < 5.0
        assert not (tmp_path / "tracing.json").exists(), "what was not taken will be told again"


async def test_a_record_that_cannot_be_decoded_and_another_run_are_passed_over(
    tmp_path: Path,
) -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is Trajectory:
            return [b"\x00spoilt", replace(record, run_id=RunId("another")), record]
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.EPOCH_STARTED:
            return [replace(record, kind=LearnerEventKind.STEP, epoch=-1), record]
        return record

    with OtlpCollector() as collector:
        async with running(RecordedRun(change).write(), collector.endpoint, tmp_path) as made:
            await until(lambda: any(s.name == "learner step" for s in collector.spans()))
        assert made.tracer.poisoned == 5
        assert len([s for s in collector.spans() if s.name == "assembly"]) == 4


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x/", "http://"])
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        TracingSection(endpoint=endpoint)


class Failing:
    """Raises what it is given, in turn; then it is asked to stop."""

    def __init__(self, context: Context, errors: list[Exception]) -> None:
        self._context, self._errors = context, errors
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)
        stop: Any = self._context.stop
        stop.set()


async def test_trouble_of_the_machine_begins_anew_and_a_fault_of_ours_ends_no_run(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracer, "_AGAIN_S", 0.0)
    context, registry = context_on(MemoryBus(partitions=1)), CollectorRegistry()
    away = BusUnreachableError("no broker answers")
    failing: Any = Failing(context, [away, away])
    await asyncio.wait_for(persevere(context, Instruments(registry), lambda: failing), 5)
    assert failing.runs == 3
    name = "sluice_traces_troubles_total"
    assert registry.get_sample_value(name, {"end": "begun_anew"}) == 2.0

    context, registry = context_on(MemoryBus(partitions=1)), CollectorRegistry()
    failing = Failing(context, [ZeroDivisionError("ours"), away])
    work = asyncio.create_task(persevere(context, Instruments(registry), lambda: failing))
    await until(lambda: registry.get_sample_value(name, {"end": "stopped"}) == 1.0)
    assert not work.done(), "the process lives on, so that nobody counts its deaths"
    assert "the run itself goes on" in caplog.text
    stop: Any = context.stop
    stop.set()
    await asyncio.wait_for(work, 5)
    assert failing.runs == 1


async def test_a_place_that_cannot_be_kept_costs_repeats_and_no_span(tmp_path: Path) -> None:
    with OtlpCollector() as collector:
        bus = RecordedRun().write()
        async with running(bus, collector.endpoint, tmp_path / "missing") as made:
            await until(lambda: any(s.name == "learner step" for s in collector.spans()))
        assert made.tracer.given_up == 0
        assert not made.place.exists()


async def test_a_tracer_without_an_address_refuses_to_start(tmp_path: Path) -> None:
    context = context_on(MemoryBus(partitions=1))
    with pytest.raises(SettingsError, match="endpoint is empty"):
        await run(
            context, TracingSection(), instruments=Instruments(CollectorRegistry()),
            folder=tmp_path,
        )  # fmt: skip


def test_nothing_is_traced_unless_asked_for() -> None:
    default: Any = RunSettings.model_fields["tracing"].get_default(call_default_factory=True)
    assert default.endpoint == ""
    names = [part.role for part in parts_of(_settings(""))]
    assert "tracer" not in names
    assert [part.role for part in parts_of(_settings("http://x/v1/traces"))] == [*names, "tracer"]


def _settings(endpoint: str) -> RunSettings:
    return assemble(
        {"task_source": {"streams": [{"environment": "digits"}]}, "tracing": {"endpoint": endpoint},
         "model": {"path": "tiny"}},
        places={"learner.versions_dir": "v", "learner.checkpoints_dir": "c",
                "sink.tables_dir": "t", "sink.address_file": "a"},
    )  # fmt: skip

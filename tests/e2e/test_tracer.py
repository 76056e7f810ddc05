"""The tracer reads a real broker and sends what a collector decodes: one episode's whole tree."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.exporter.instruments import Instruments
from infra.topic_admin import create_topics
from infra.tracing import tracer
from infra.tracing.settings import TracingSection
from schemas.enums import EpisodeEventKind, LearnerEventKind
from schemas.ports import Context
from schemas.records.episode_event import EpisodeEvent
from schemas.records.gate_decision import GateDecision
from schemas.records.learner_event import LearnerEvent
from schemas.records.trajectory import Trajectory
from schemas.records.verifier_result import VerifierResult
from schemas.topics import Topic
from schemas.tracing import trace_of_episode
from tests.conftest import LocalPlatform
from tests.support.contexts import context_on
from tests.support.copied_run import copy_onto
from tests.support.memory_bus import MemoryBus
from tests.support.otlp_collector import OtlpCollector
from tests.support.recorded_run import TRAINED, RecordedRun

PARTITIONS = 3
RESET_US, QUEUE_US, JUDGED_US, QUEUED_US, PHASE_US = 20_000, 1_000, 30_000, 4_000, 50_000
DRAIN_S, COME_S = 20.0, 60.0


class Timed:
    """Gives every record of a run a time of its writer, a tenth of a second after the one before,
    and keeps when things came about.
    """

    def __init__(self) -> None:
        self._now_us = 0
        self.at_us: dict[str, int] = {}

    def __call__(self, _: Topic[Any], record: Any) -> Any:
        # A writer's time counts if it is not after the broker's, nor a minute before it.
        self._now_us = (self._now_us or time.time_ns() // 1000 - 30_000_000) + 100_000
        record = replace(record, at_us=self._now_us)
        match record:
            case EpisodeEvent(episode_id=episode, kind=kind) if episode == TRAINED:
                self.at_us[kind.value] = self._now_us
                if kind is EpisodeEventKind.ENDED:
                    return replace(record, reset_us=RESET_US, queue_us=QUEUE_US)
            case VerifierResult(episode_id=episode) if episode == TRAINED:
                self.at_us["verdict"] = self._now_us
                return replace(record, duration_us=JUDGED_US, queued_us=QUEUED_US)
            case Trajectory(episode_id=episode) if episode == TRAINED:
                self.at_us["trajectory"] = self._now_us
                return replace(record, verified_us=self.at_us["verdict"])
            case GateDecision() if TRAINED in {member.episode_id for member in record.members}:
                self.at_us["decision"] = self._now_us
            case LearnerEvent(kind=LearnerEventKind.STEP):
                self.at_us["step"] = self._now_us
                return replace(record, phases_us={"forward": PHASE_US})
        return record

    def expected(self) -> dict[str, tuple[int, int]]:
        """Return when the stages of the trained episode begin and end. Unit: microseconds."""
        at, leased = self.at_us, EpisodeEventKind.LEASED.value
        reset_us = at[leased] + QUEUE_US
        return {
            "episode": (at["issued"], at["step"]),
            "lease wait": (at["issued"], at[leased]),
            "attempt": (at[leased], at["ended"]),
            "environment reset": (reset_us, reset_us + RESET_US),
            "verification": (at["verdict"] - JUDGED_US - QUEUED_US, at["verdict"]),
            "assembly": (at["verdict"], at["trajectory"]),
            "gate": (at["decision"], at["decision"]),
            "learner wait": (at["decision"], at["step"] - PHASE_US),
        }


@asynccontextmanager
async def on_kafka(
    run: RecordedRun, local_platform: LocalPlatform
) -> AsyncIterator[tuple[MemoryBus, KafkaConsumers]]:
    """Give a run on a bus, and the doors of a real broker that holds what the bus holds."""
    prefix = f"trace-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    # Only now, since a writer's time that is a minute before the broker's does not count, and a
    # busy machine makes topics slowly.
    bus = run.write()
    copy_onto(bus, local_platform.bootstrap, prefix, bus.codec)
    settings = ConsumerSettings(
        bootstrap=local_platform.bootstrap, prefix=prefix, client_id="tracer"
    )
    consumers = KafkaConsumers(settings, bus.codec)
    try:
        yield bus, consumers
    finally:
        await consumers.close()


async def trace(context: Context, folder: Path, *, roots: int) -> list[Any]:
    """Run a tracer until a collector of its own has so many episodes, then ask it to stop; return
    the spans that came.
    """
    folder.mkdir(exist_ok=True)
    with OtlpCollector() as collector:
        settings = TracingSection(endpoint=collector.endpoint, interval_s=0.05, drain_s=DRAIN_S)
        instruments = Instruments(CollectorRegistry())
        work = asyncio.create_task(
            tracer.run(context, settings, instruments=instruments, folder=folder)
        )
        async with asyncio.timeout(COME_S):
            while len([s for s in collector.spans() if s.name == "episode"]) < roots:
                await asyncio.sleep(0.02)
        stop: Any = context.stop
        stop.set()
        await asyncio.wait_for(work, DRAIN_S + 5)
        return collector.spans()


def told(spans: list[Any]) -> set[tuple[bytes, bytes, bytes, str, int, int]]:
    return {
        (s.trace_id, s.span_id, s.parent_span_id, s.name, s.start_time_unix_nano,
         s.end_time_unix_nano) for s in spans
    }  # fmt: skip


@pytest.mark.kafka
async def test_a_collector_holds_the_whole_tree_of_an_episode_from_a_real_broker(
    local_platform: LocalPlatform, tmp_path: Path
) -> None:
    timed = Timed()
    run = RecordedRun(timed, partitions=PARTITIONS)
    async with on_kafka(run, local_platform) as (bus, consumers):

        def fresh() -> Context:
            return replace(context_on(bus), consumers=consumers)

        spans = await trace(fresh(), tmp_path / "first", roots=5)
        assert Counter(s.name for s in spans if s.name in ("episode", "learner step")) == {
            "episode": 5, "learner step": 1,
        }  # fmt: skip
        its = [s for s in spans if s.trace_id.hex() == f"{trace_of_episode(TRAINED):032x}"]
        by_id = {span.span_id: span for span in its}
        assert len(by_id) == len(its)
        assert Counter(span.name for span in its) == Counter(
            [*timed.expected(), "turn", "turn", "generation", "generation", "tool add"]
        )
        parents = {(s.name, by_id[s.parent_span_id].name) for s in its if s.parent_span_id}
        assert parents == {
            ("lease wait", "episode"), ("attempt", "episode"), ("verification", "episode"),
            ("assembly", "episode"), ("gate", "episode"), ("learner wait", "episode"),
            ("environment reset", "attempt"), ("turn", "attempt"), ("generation", "turn"),
            ("tool add", "turn"),
        }  # fmt: skip
        assert [s.name for s in its if not s.parent_span_id] == ["episode"]
        lasted = {
            s.name: (s.start_time_unix_nano // 1000, s.end_time_unix_nano // 1000) for s in its
        }
        assert lasted | timed.expected() == lasted
        (step,) = (s for s in spans if s.name == "learner step")
        (root,) = (s for s in its if not s.parent_span_id)
        assert [(one.trace_id, one.span_id) for one in root.links] == [
            (step.trace_id, step.span_id)
        ]

        again = await trace(fresh(), tmp_path / "second", roots=5)
        assert told(again) == told(spans), "who reads it anew tells the same spans"
        rest = await trace(fresh(), tmp_path / "first", roots=0)
        assert rest == [], "who goes on where the first one stopped has nothing to tell"

"""What the alerts of infra/prometheus rest on, as the processes of a run themselves export it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inference import refresh, worker
from inference.refresh_settings import RefreshSettings
from infra.exporter.doors import MeteredConsumers, MeteredProducer
from infra.exporter.instruments import Instruments
from infra.run.folder import RunFolder
from infra.run.worker import exported
from infra.settings import assemble
from schemas.enums import LearnerEventKind, RefreshEventKind, WorkerStatus
from schemas.ids import RunId, Version, WorkerId
from schemas.ports import Context
from schemas.topics import DEAD_LETTER_PART_BYTES, DEAD_LETTERS, REFRESHES, TOKENS, WORKERS
from tests.support.clocks import HeldClock
from tests.support.environment_world import until
from tests.support.inference_stand import context_on, inference_settings
from tests.support.learner_records import learn, publish, started
from tests.support.memory_bus import MemoryBus
from tests.support.records import commit
from tests.unit.infra.test_settings import PLACES, SMALLEST


class Process:
    """A process of the run on a memory bus, with the doors that `sluice worker` gives it."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.registry = CollectorRegistry()
        instruments, plain = Instruments(self.registry), context_on(bus, name)
        self.stop = asyncio.Event()
        self.context: Context = replace(
            plain,
            producer=MeteredProducer(plain.producer, instruments, plain.clock),
            consumers=MeteredConsumers(plain.consumers, instruments),
            stop=self.stop,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"sluice_{name}", labels)


def test_a_process_of_any_role_exports_the_lag_bound_of_its_run(tmp_path: Path) -> None:
    folder = RunFolder(root=tmp_path / "run-1")
    folder.versions.mkdir(parents=True)
    settings = assemble({**SMALLEST, "training": {"max_lag_steps": 7}}, places=PLACES)
    with exported(
        "gate", 0, folder, settings, RunId("run-1"), registry=CollectorRegistry()
    ):  # fmt: skip
        (place,) = folder.targets.iterdir()
        address = json.loads(place.read_text())[0]["targets"][0]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            told = answer.read().decode().splitlines()
    assert "sluice_policy_lag_bound_steps 7.0" in told
    assert any(line.startswith('sluice_disk_free_ratio{folder="versions"} 0.') for line in told)


@pytest.mark.parametrize("way", ["reader", "group"])
async def test_a_writer_whose_clock_is_ahead_shows_by_as_much_where_its_records_are_read(
    way: str,
) -> None:
    clock = HeldClock()
    bus = MemoryBus(partitions=1, clock=clock)
    process = Process(bus, "gate-0")
    for seq, ahead_s in enumerate((7.0, 0.3, -60.0)):
        at_us = clock.now_us() + int(ahead_s * 1e6)
        bus.append(TOKENS, replace(commit(seq), at_us=at_us), partition=0)
    given = 0
    if way == "reader":
        reader = process.context.consumers.reader({TOKENS: {0: 0}})
        given = len(await reader.poll(records_max=10, timeout_s=1.0))
        await reader.close()
    else:
        group = process.context.consumers.group(
            TOKENS, group="g", member="m", starts={0: 0}, floors=lambda _: {}
        )
        async with asyncio.timeout(5):
            while given < 4:  # the assignment comes first
                given += len(await group.poll(records_max=10, timeout_s=0.1))
        await group.close()
    assert given >= 3
    assert process.value("clock_ahead_seconds_count", topic="tokens.v1") == 3
    # The alert asks whether 99 of 100 are within 5 s; a clock behind counts as none ahead.
    assert process.value("clock_ahead_seconds_sum", topic="tokens.v1") == pytest.approx(7.3)
    below = {le: process.value("clock_ahead_seconds_bucket", topic="tokens.v1", le=le)
             for le in ("0.0", "0.5", "5.0", "10.0")}  # fmt: skip
    assert below == {"0.0": 1, "0.5": 2, "5.0": 2, "10.0": 3}


async def test_a_refresh_shows_when_it_was_asked_for_and_when_it_was_served() -> None:
    bus = MemoryBus(partitions=1)
    started(bus)
    # Two records that nobody can read; the larger one makes a letter of several parts.
    bus.append_raw(WORKERS, partition=0, raw=b"junk")
    bus.append_raw(WORKERS, partition=0, raw=b"x" * (2 * DEAD_LETTER_PART_BYTES + 1))
    asking, serving = Process(bus, "refresh"), Process(bus, "inference-0")

    def kinds() -> list[RefreshEventKind]:
        return [one.kind for one in bus.records(REFRESHES)]

    async with AsyncExitStack() as stack:
        for process, role in (
            (serving, worker.run(serving.context, inference_settings())),
            (asking, refresh.run(asking.context, RefreshSettings(tick_ms=10))),
        ):
            stack.push_async_callback(_end, process, asyncio.create_task(role))
        await until(
            lambda: any(
                (one.worker_id, one.status) == (WorkerId("inference-0"), WorkerStatus.READY)
                for one in bus.records(WORKERS)
            )
        )
        learn(bus, LearnerEventKind.STEP, 1)
        publish(bus, Version(1, 1))
        await until(lambda: RefreshEventKind.PREPARE in kinds())
        await until(lambda: RefreshEventKind.SERVING in kinds())
    for kind, process in (
        (RefreshEventKind.PREPARE, asking),
        (RefreshEventKind.LOADED, serving),
        (RefreshEventKind.SERVING, serving),
    ):
        last = [one for one in bus.records(REFRESHES) if one.kind is kind][-1]
        at_s = process.value("refresh_last_event_timestamp_seconds", kind=kind.value)
        assert at_s == pytest.approx(last.at_us / 1e6, abs=1e-6), kind
    letters = bus.records(DEAD_LETTERS)
    assert [one.parts for one in letters] == [1, 3, 3, 3]
    for error in {one.error_class for one in letters}:
        read = [one for one in letters if one.error_class == error and one.part == 0]
        counted = asking.value("dead_letters_total", topic="workers.v1", error=error)
        assert counted == len(read)


async def _end(process: Process, running: asyncio.Task[None]) -> None:
    process.stop.set()
    await asyncio.wait_for(running, 10)

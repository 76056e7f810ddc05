"""The learner on the memory bus with a tiny model: real DeepSpeed, real files, hand-made gated
trajectories.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.setup.extensions import learner_environ
from infra.setup.places import find_places
from infra.setup.tiny_model import make_tiny_model
from learner.canary import Observe
from learner.checkpoint_store import MARKER, CheckpointStore
from learner.core.canary import Surroundings, Trial
from learner.settings import LearnerSettings, LossSettings
from learner.trainer import run
from learner.version_store import facts_in
from schemas.enums import ControlKind, DropReason, LearnerEventKind
from schemas.errors import SettingsError, UnknownOutcomeError
from schemas.ids import WorkerId
from schemas.manifest import manifest_digest, render_manifest
from schemas.ports import Context, Delivered
from schemas.records.control_event import ControlEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import LogEnd
from schemas.rules.lineage import LearnerLog
from schemas.topics import CONTROL, GATED, LEARNER_STEPS, POLICIES
from tests.support.gated_records import RUN, GatedLog, random_group, starts_of
from tests.support.memory_bus import Fault, MemoryBus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCHEDULER = WorkerId("scheduler-0")


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    kept = dict(os.environ)
    os.environ.update(learner_environ(find_places(os.environ)))
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", 0, warm_up_steps=0)


def settings_for(folder: Path, model: Path, **changes: object) -> LearnerSettings:
    values: dict[str, object] = {
        "model_path": str(model),
        "versions_dir": str(folder / "versions"),
        "checkpoints_dir": str(folder / "checkpoints"),
        "batch": 8,
        "steps": 4,
        "checkpoint_every": 2,
        "threads": 1,
        "max_lag_steps": 100,
        "silence_s": 60.0,
        "loss": LossSettings.model_validate({"parameters": {"low": 0.05, "high": 20.0}}),
    }
    return LearnerSettings.model_validate(values | changes)


def context_of(bus: MemoryBus, name: str, stop: asyncio.Event) -> Context:
    return Context(
        run_id=RUN,
        worker_id=WorkerId(name),
        incarnation=f"incarnation-{name}",
        producer=bus.producer(),
        consumers=bus.consumers(),
        clock=bus.clock,
        starts=starts_of(bus),
        secret=b"secret",
        stop=stop,
    )


def steps_of(bus: MemoryBus, kind: LearnerEventKind = LearnerEventKind.STEP) -> list[LearnerEvent]:
    return [event for event in bus.records(LEARNER_STEPS) if event.kind is kind]


def end_stream(bus: MemoryBus, admitted: int) -> None:
    for kind in (ControlKind.SCHEDULER_FENCE, ControlKind.DRAINING, ControlKind.END_OF_STREAM):
        ends = tuple(
            LogEnd(topic=GATED.name, partition=p, offset=bus.end(GATED.name, p))
            for p in range(bus.partitions)
        )
        bus.append(
            CONTROL,
            ControlEvent(
                run_id=RUN,
                kind=kind,
                ends=ends if kind is ControlKind.END_OF_STREAM else (),
                counts={"admitted": admitted, "issued": admitted},
                scheduler_epoch=1,
                scheduler_id=SCHEDULER,
                at_us=1,
                writer_id=SCHEDULER,
            ),
        )


async def learn(
    bus: MemoryBus,
    settings: LearnerSettings,
    name: str,
    until: Callable[[], bool],
    *,
    kill: bool = False,
    observe: Observe | None = None,
) -> None:
    """Run a learner until a condition holds, then stop it, or cancel it as a kill would."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(context_of(bus, name, stop), settings, bus.codec, observe))
    while not until() and not task.done():
        await asyncio.sleep(0.02)
    if kill:
        task.cancel()
        await asyncio.wait({task})
        return
    stop.set()
    await task


async def test_a_run_trains_publishes_checkpoints_and_closes(tmp_path: Path, model: Path) -> None:
    bus = MemoryBus(partitions=3)
    log = GatedLog(bus)
    for ordinal in range(10):
        log.admit(random_group(ordinal))
    settings = settings_for(tmp_path, model, peak_tflops=0.5)
    stop = asyncio.Event()
    task = asyncio.create_task(run(context_of(bus, "learner-0", stop), settings, bus.codec))
    while len(steps_of(bus, LearnerEventKind.CHECKPOINTED)) < 2 and not task.done():
        await asyncio.sleep(0.02)
    end_stream(bus, admitted=40)
    await asyncio.wait_for(task, 60)

    steps = steps_of(bus)
    assert [(step.number, step.ordinal) for step in steps] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    trained = [member.episode_id for step in steps for member in step.trained]
    assert len(trained) == len(set(trained)) == 32
    for step in steps:
        assert step.action_tokens == step.kept_tokens + step.rejected_low + step.rejected_high
        assert step.metrics["gradient_norm"] > 0.0
        model_s = (step.phases_us["forward"] + step.phases_us["backward"]) / 1e6
        assert step.metrics["mfu_ratio"] == pytest.approx(
            step.metrics["arithmetic_operations"] / model_s / 0.5e12, rel=1e-3
        )
        assert step.metrics["mfu_ratio"] > 0.0
    # From the first step to the last every moment belongs to a phase.
    apart_us = steps[-1].at_us - steps[0].at_us
    told_us = sum(sum(step.phases_us.values()) for step in steps[1:])
    assert told_us == pytest.approx(apart_us, rel=0.05, abs=50_000)
    # Every second update has a checkpoint, which the step after it tells of.
    has_checkpoint = [step.phases_us.get("checkpoint", 0) > 0 for step in steps]
    assert has_checkpoint == [False, False, True, False]
    assert [step.trained[0].lag_steps for step in steps] == [0, 1, 2, 3]
    policies = {(p.epoch, p.number): p for p in bus.records(POLICIES)}
    assert sorted(policies) == [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert len({policy.digest for policy in policies.values()}) == 5
    assert [e.checkpoint_id for e in steps_of(bus, LearnerEventKind.CHECKPOINTED)]
    (closed,) = steps_of(bus, LearnerEventKind.CLOSED)
    assert closed.counts["trained"] == 32
    assert closed.counts["run_ended"] == 8
    assert bus.records(LEARNER_STEPS)[-1].kind is LearnerEventKind.CLOSED


UPDATES = 10
"""How many updates after the restore must be those of the uninterrupted run (R69)."""


async def test_the_ten_updates_after_a_restore_are_those_of_the_uninterrupted_run_bit_for_bit(
    tmp_path: Path, model: Path
) -> None:
    last = UPDATES + 4
    groups = 2 * last

    def filled() -> MemoryBus:
        bus = MemoryBus(partitions=1)
        log = GatedLog(bus)
        for ordinal in range(groups):
            log.admit(random_group(ordinal))
        return bus

    whole, broken = filled(), filled()
    changes: dict[str, object] = {
        "steps": 0,
        "optimiser": {"schedule": "linear", "warmup_steps": 4},
    }
    settings = settings_for(tmp_path / "whole", model, **changes)
    await learn(whole, settings, "learner-0", lambda: len(steps_of(whole)) >= last)
    settings = settings_for(tmp_path / "broken", model, **changes)
    await learn(broken, settings, "learner-0", lambda: len(steps_of(broken)) >= 3, kill=True)
    before = len(steps_of(broken))
    await learn(
        broken,
        settings,
        "learner-0",
        lambda: any(s.ordinal == last for s in steps_of(broken)),
    )

    assert before < UPDATES
    (restored,) = [e for e in steps_of(broken, LearnerEventKind.RESTORED) if e.epoch == 2]
    assert restored.parent_number in (2, 4)
    expected = {step.ordinal: step for step in steps_of(whole)}
    found = [step for step in steps_of(broken) if step.epoch == 2]
    assert len(found) >= UPDATES
    for step in found:
        told, other = dict(step.metrics), dict(expected[step.ordinal].metrics)
        for one in (told, other):
            # What is measured with a clock, or counts what waits, is no part of the update.
            for name in ("mfu_ratio", "waiting_trajectories", "clock_skew_records"):
                one.pop(name)
        assert told == other
        assert step.losses == expected[step.ordinal].losses
        assert step.policy_digest == expected[step.ordinal].policy_digest
        assert [m.episode_id for m in step.trained] == [
            m.episode_id for m in expected[step.ordinal].trained
        ]


def fixed_tasks() -> Surroundings:
    return Surroundings(
        facts={"mixture": "one"},
        trials=tuple(
            Trial(name=f"task/{i}", digests={}, prompt=(5 + i, 9, 200), protocol="", rewards=(1.0,))
            for i in range(8)
        ),
    )


def spoil_a_tensor(store: CheckpointStore, name: str) -> None:
    """Change one tensor of a checkpoint and make its checksums right again."""
    folder = store.path(name)
    (path,) = folder.glob("tensors/state/*model_states.pt")
    state = torch.load(path, weights_only=False)
    spoilt = next(tensor for key, tensor in state["module"].items() if "down_proj" in key)
    spoilt.data[0].add_(1.0)
    torch.save(state, path)
    for optimiser in folder.glob("tensors/state/*optim_states.pt"):
        kept = torch.load(optimiser, weights_only=False)
        (group,) = kept["optimizer_state_dict"]["single_partition_of_fp32_groups"]
        group.data[:100].add_(1.0)
        torch.save(kept, optimiser)
    (folder / "manifest.json").unlink()
    (folder / MARKER).unlink()
    manifest = render_manifest(facts_in(folder))
    (folder / "manifest.json").write_text(manifest)
    (folder / MARKER).write_text(manifest_digest(manifest))


async def test_the_canary_passes_restored_weights_and_refuses_a_changed_tensor(
    tmp_path: Path, model: Path
) -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    for ordinal in range(4):
        log.admit(random_group(ordinal))
    settings = settings_for(tmp_path, model, steps=0, checkpoint_every=1)
    await learn(bus, settings, "learner-0", lambda: len(steps_of(bus)) >= 1, observe=fixed_tasks)

    def restored() -> list[LearnerEvent]:
        return steps_of(bus, LearnerEventKind.RESTORED)

    await learn(bus, settings, "learner-0", lambda: len(restored()) >= 2, observe=fixed_tasks)
    assert restored()[1].canary.startswith("passed: 8 tasks, logits within 0 of")
    store = CheckpointStore(tmp_path / "checkpoints")
    for name in store.names():
        spoil_a_tensor(store, name)
    made = len(steps_of(bus))
    with pytest.raises(SettingsError, match=r"canary failed: .*logits differ"):
        await learn(bus, settings, "learner-0", lambda: False, observe=fixed_tasks)
    assert (len(restored()), len(steps_of(bus))) == (2, made)


class FaultyProducer:
    """A producer whose acknowledgement of the n-th record of one kind goes wrong."""

    def __init__(self, bus: MemoryBus, kind: LearnerEventKind, nth: int, fault: Fault) -> None:
        self._bus, self._inner = bus, bus.producer()
        self._kind, self._left, self._fault = kind, nth, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, topic: Any, record: Any, **rest: Any) -> Any:
        if topic is LEARNER_STEPS and record.kind is self._kind:
            self._left -= 1
            if self._left == 0:
                self._bus.faults.next(self._fault, topic=LEARNER_STEPS)
        return await self._inner.send(topic, record, **rest)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_LOST, Fault.UNKNOWN_WRITTEN])
@pytest.mark.parametrize(
    ("kind", "nth"), [(LearnerEventKind.STEP, 3), (LearnerEventKind.CHECKPOINTED, 1)]
)
async def test_a_record_whose_fate_is_unknown_costs_no_trajectory_and_trains_none_twice(
    tmp_path: Path, model: Path, kind: LearnerEventKind, nth: int, fault: Fault
) -> None:
    bus = MemoryBus(partitions=3)
    log = GatedLog(bus)
    for ordinal in range(9):
        log.admit(random_group(ordinal))
    settings = settings_for(tmp_path, model, send_s=2.0)
    first = replace(
        context_of(bus, "learner-0", asyncio.Event()),
        producer=FaultyProducer(bus, kind, nth, fault),
    )
    with pytest.raises(UnknownOutcomeError):
        await run(first, settings, bus.codec)
    task = asyncio.create_task(
        run(context_of(bus, "learner-0", asyncio.Event()), settings, bus.codec)
    )
    while not task.done() and not any(
        event.ordinal == settings.steps for event in steps_of(bus, LearnerEventKind.CHECKPOINTED)
    ):
        await asyncio.sleep(0.02)
    end_stream(bus, admitted=36)
    await asyncio.wait_for(task, 60)

    learner = LearnerLog()
    for message in bus.messages(LEARNER_STEPS):
        assert isinstance(message, Delivered)
        learner.take(message.offset, message.timestamp_ms, message.record)
    assert learner.closed is not None
    assert learner.closed.counts["trained"] == len(learner.trained_surviving) == 32
    counting = {ref.offset for ref in learner.steps}
    trained = [
        member.episode_id
        for message in bus.messages(LEARNER_STEPS)
        if isinstance(message, Delivered) and message.offset in counting
        for member in message.record.trained
    ]
    assert len(trained) == len(set(trained)) == 32
    assert [ref.ordinal for ref in learner.steps] == [1, 2, 3, 4]


async def test_stale_trajectories_are_skipped_and_the_rest_is_trained(
    tmp_path: Path, model: Path
) -> None:
    bus = MemoryBus(partitions=2)
    log = GatedLog(bus)
    for ordinal in range(6):
        log.admit(random_group(ordinal))
    settings = settings_for(tmp_path, model, steps=0, max_lag_steps=1)
    await learn(bus, settings, "learner-0", lambda: bool(steps_of(bus, LearnerEventKind.SKIPPED)))
    (skipped,) = steps_of(bus, LearnerEventKind.SKIPPED)
    assert {(m.reason, m.lag_steps) for m in skipped.skipped} == {(DropReason.LAG, 2)}
    assert len(skipped.skipped) == 8
    assert len(steps_of(bus)) == 2
    (checkpointed,) = steps_of(bus, LearnerEventKind.CHECKPOINTED)
    assert checkpointed.ordinal == 2


async def test_a_checkpoint_of_another_tokenizer_is_refused_by_name(
    tmp_path: Path, model: Path
) -> None:
    bus = MemoryBus(partitions=1)
    log = GatedLog(bus)
    for ordinal in range(4):
        log.admit(random_group(ordinal))
    settings = settings_for(tmp_path, model, steps=0, checkpoint_every=1)
    await learn(bus, settings, "learner-0", lambda: len(steps_of(bus)) >= 1)
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    tokenizer = changed / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    settings = settings_for(tmp_path, changed, steps=0)
    with pytest.raises(SettingsError, match="tokenizer"):
        await run(context_of(bus, "learner-0", asyncio.Event()), settings, bus.codec)

"""One seed, one history: draws a case, plays it, and judges what the log says at the end.

Three profiles share one bus: `tokens` (scheduler, environments with tools, inference), `judging`
(two schedulers, assemblers, gates, a learner; rollouts of one line) and `whole` (every role). A
case is a value, so that a failing one is played again with fewer faults.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from unittest import mock

import environments.registry
import environments.worker
import inference.engine_keeper
import inference.gateway
import inference.service
import inference.worker
from inference import refresh
from inference.refresh_settings import RefreshSettings
from infra.audit.audit import audit
from infra.audit.report import NAMES, AuditReport
from producers.metrics import Metrics
from schemas import topics
from schemas.enums import Purpose
from stream_jobs import assembler, gate, scheduler
from stream_jobs.settings import AssemblerSettings, GateSettings, GroupRule, SchedulerSettings
from tests.simulation import rollout, scripted
from tests.simulation.bus import SimBus
from tests.simulation.faults import AckFault, AtRecord, Blow, Fault, ProcessFault, draw
from tests.simulation.learning import Disk, SimLearner, settings_of
from tests.simulation.loop import SimLoop
from tests.simulation.reading import SimConsumers
from tests.simulation.scenes import draw_scene
from tests.simulation.watch import Watch
from tests.simulation.world import RUN, World

ETA = 1
CALM_S = 50.0
SETTLED_S = 400.0
_LOOK_S = 1.0


class Profile(StrEnum):
    """Which roles a history has."""

    TOKENS = "tokens"
    JUDGING = "judging"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that decides a history."""

    seed: int
    profile: Profile
    faults: tuple[Fault, ...]
    batch: int
    steps: int
    every: int
    size: int
    max_lag: int
    rule: GroupRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a case."""

    violations: tuple[str, ...]
    story: tuple[str, ...]
    seconds: float
    """Simulated. Unit: s."""
    callbacks: int
    records: int
    counts: Mapping[str, int]


_PROCESS = (Blow.KILL, Blow.KILL, Blow.PAUSE, Blow.STOP, Blow.ZOMBIE)
_BLOWS: Mapping[str, tuple[Blow, ...]] = {
    "scheduler": _PROCESS,
    # One that hears of its successor ends at once; scenes draw those.
    "environment": (*_PROCESS[:-1], Blow.DEAF, Blow.DEAF),
    "inference": (*_PROCESS, Blow.ENGINE, Blow.CUT, Blow.CUT, Blow.CUT),
    "assembler": (*_PROCESS, Blow.EXPEL),
    "gate": (*_PROCESS, Blow.EXPEL, Blow.EXPEL),
    "learner": _PROCESS,
    "refresh": _PROCESS,
}
_ROLES: Mapping[Profile, tuple[str, ...]] = {
    Profile.TOKENS: ("scheduler-0", "environment-0", "environment-1", "inference-0", "inference-1"),
    Profile.JUDGING: (
        *("scheduler-0", "scheduler-1", "environment-0", "assembler-0", "assembler-1"),
        *("gate-0", "gate-1", "learner-0"),
    ),
    Profile.WHOLE: (
        *("scheduler-0", "scheduler-1", "environment-0", "environment-1", "inference-0"),
        *("inference-1", "assembler-0", "gate-0", "gate-1", "learner-0", "refresh-0"),
    ),
}
_TOKENS_TOPICS: Mapping[topics.Topic[Any], int] = {
    topics.EPISODES: 14,
    topics.TOKENS: 40,
    topics.TOOL_EVENTS: 10,
}
_JUDGING_TOPICS: Mapping[topics.Topic[Any], int] = {
    topics.EPISODES: 50, topics.TRAJECTORIES: 8, topics.PAYLOADS: 8, topics.GATE_DECISIONS: 6,
    topics.GATED: 8, topics.LEARNER_STEPS: 12, topics.CONTROL: 4, topics.POLICIES: 3,
}  # fmt: skip
_RECORDS: Mapping[Profile, Mapping[str, int]] = {
    Profile.TOKENS: {t.name: n for t, n in _TOKENS_TOPICS.items()},
    Profile.JUDGING: {t.name: n for t, n in _JUDGING_TOPICS.items()},
    Profile.WHOLE: {
        **{t.name: 4 * n for t, n in _TOKENS_TOPICS.items()},
        **{t.name: n for t, n in _JUDGING_TOPICS.items()},
        topics.REFRESHES.name: 10,
    },
}
_UNTIL_MS = {Profile.TOKENS: 2_500, Profile.JUDGING: 15_000, Profile.WHOLE: 20_000}


def case_of(seed: int, profile: Profile | None = None) -> Case:
    """Draw the case of a seed; every 16th is whole, the others alternate."""
    chance = random.Random(f"case {seed}")
    if profile is None:
        profile = Profile.WHOLE if seed % 16 == 15 else (Profile.TOKENS, Profile.JUDGING)[seed % 2]
    faults = draw(
        chance,
        topics=_RECORDS[profile],
        processes={name: _BLOWS[name.partition("-")[0]] for name in _ROLES[profile]},
        until_ms=_UNTIL_MS[profile],
    )
    steps = chance.choice((1, 2, 2, 3))
    scene = draw_scene(seed, steps=steps, roles=_ROLES[profile])
    return Case(
        seed=seed,
        profile=profile,
        faults=faults + scene.faults,
        batch=2,
        steps=max(steps, scene.steps_min),
        every=chance.choice((1, 2)),
        size=max(chance.choice((1, 2)), scene.size_min),
        max_lag=chance.choice((1, 4)),
        rule=chance.choice(list(GroupRule)),
    )


def play(case: Case, *, is_told: bool = False) -> Played:
    """Play a case to its end and judge it."""
    chance = random.Random(f"play {case.seed}")
    loop = SimLoop()  # type: ignore[abstract]  # what the roles do not use is left out
    fates = {(f.topic, f.kind, f.nth): f.fate for f in case.faults if isinstance(f, AckFault)}
    bus = SimBus(loop, chance, partitions=2, fates=fates)
    world = World(loop, bus, chance, is_told=is_told)
    watch = world.watch = Watch(world, batch=case.batch, eta=ETA)
    rollout.NOW[:] = [world]
    _seed(case, world)
    _start(case, world, watch)
    bus.landed.append(world.at_records(f for f in case.faults if isinstance(f, AtRecord)))
    for fault in case.faults:
        if isinstance(fault, ProcessFault):
            loop.call_later(fault.at_ms / 1000, world.strike, fault)
    loop.call_later(CALM_S, world.calm)
    report: AuditReport | None = None
    try:
        if not _settles(case, loop, world, watch):
            world.broken("no-progress", f"not settled after {loop.time():.0f} s: {_open(watch)}")
        report = _audited(loop, bus)
    except RuntimeError as error:
        world.broken("no-progress", str(error))
    watch.look_outside()
    watch.compare_readers()
    for failure in loop.failures:
        world.broken("crash", failure)
    if report is not None:
        _judge(case, world, watch, report)
    loop.close()
    rollout.NOW.clear()
    return Played(
        violations=tuple(world.violations),
        story=tuple(world.story),
        seconds=loop.time(),
        callbacks=loop.worked,
        records=sum(bus.end(t.name, p) for t in topics.ALL for p in range(bus.partitions)),
        counts=dict(report.counts) if report else {},
    )


def _settles(case: Case, loop: SimLoop, world: World, watch: Watch) -> bool:
    def is_over() -> bool:
        if case.profile is Profile.TOKENS:
            return watch.issued_top >= 0 and not watch.open_episodes and _all_issued(case, watch)
        return watch.is_closed

    return loop.run(SETTLED_S, lambda: bool(world.violations) or is_over())


def _all_issued(case: Case, watch: Watch) -> bool:
    return len(watch.lives.by_id) >= 2 * case.size


def _open(watch: Watch) -> str:
    return ", ".join(e for e, life in watch.lives.by_id.items() if not life.is_closed) or "the run"


def _audited(loop: SimLoop, bus: SimBus) -> AuditReport:
    bus.is_calm = True
    task = loop.create_task(audit(SimConsumers(bus), RUN, None))
    loop.run(loop.time() + 60.0, task.done)
    report: AuditReport = task.result()
    return report


def _judge(case: Case, world: World, watch: Watch, report: AuditReport) -> None:
    for found in report.violations:
        name = _JEPSEN[found.invariant]
        where = " ".join((*found.ids, *found.offsets))
        world.broken(name, f"{found.what} ({NAMES[found.invariant][:40]}) {where}")
    if case.profile is not Profile.TOKENS and watch.is_closed and report.counts["pending"]:
        world.broken("lost-write", f"closed with {report.counts['pending']} pending")


_JEPSEN: Mapping[int, str] = {
    1: "aborted-read",
    2: "inconsistent-offsets",
    3: "duplicate",
    4: "inconsistent-offsets",
    5: "lost-write",
    6: "stale-read",
    7: "duplicate",
    8: "aborted-read",
    9: "dirty-write",
    10: "lost-write",
    11: "unbounded",
}


def _seed(case: Case, world: World) -> None:
    """Write what was there before: the starting weights and the first tasks; offer more as they
    are issued.
    """
    chance = random.Random(f"tasks {case.seed}")
    bus, offered = world.bus, [0]
    bus.append(topics.POLICIES, scripted.start_policy())

    def offer() -> None:
        purpose = Purpose.TRAIN
        if case.profile is not Profile.TOKENS and chance.random() < 0.1:
            purpose = Purpose.EVALUATE
        task = scripted.task(offered[0], chance, size=case.size, purpose=purpose)
        offered[0] += 1
        bus.append(topics.TASKS, task)

    ahead = 2 if case.profile is Profile.TOKENS else 8
    for _ in range(ahead):
        offer()
    if case.profile is Profile.TOKENS:
        return

    def more(_: Any) -> None:
        while world.watch.issued_top + ahead > offered[0]:
            offer()

    bus.landed.append(more)


def _start(case: Case, world: World, watch: Watch) -> None:
    codec: Any = world.codec
    disk = Disk()
    learning = settings_of(
        batch=case.batch, steps=case.steps, every=case.every, max_lag=case.max_lag
    )
    leading = SCHEDULER.model_copy(
        update={"batch": case.batch, "group_size": case.size, "steps": case.steps}
    )
    gating = GATE.model_copy(update={"max_lag_steps": case.max_lag, "group_rule": case.rule})
    is_scripted = case.profile is Profile.JUDGING

    async def environment(context: Any) -> None:
        if is_scripted:
            await scripted.roll_out(context, world)
        else:
            await rollout.serve_environment(context, world)

    mains: Mapping[str, Any] = {
        "scheduler": lambda c: scheduler.run(c, leading, codec=codec),
        "environment": environment,
        "inference": lambda c: rollout.serve_inference(c, world, watch),
        "assembler": lambda c: assembler.Assembler(c, ASSEMBLER, codec).run(),
        "gate": lambda c: gate.run(c, gating, codec=codec),
        "learner": lambda c: SimLearner(c, learning, codec, disk).run(),
        "refresh": lambda c: refresh.run(c, REFRESH),
    }
    for name in _ROLES[case.profile]:
        role = name.partition("-")[0]
        is_member = role in ("assembler", "gate")
        world.add(name, mains[role], is_member=is_member, after_s=0.2 * world.chance.random())
    if case.profile is Profile.WHOLE:
        world.add("verifier-0", lambda c: scripted.verify(c, world))


SCHEDULER = SchedulerSettings(
    eta=ETA, max_concurrent=16, drain_s=1.0, lease_ms=30_000, request_deadline_s=40.0,
    group_deadline_s=150.0, bus_deadline_s=8.0, call_max_s=30.0, snapshot_s=2.0,
)  # fmt: skip
ASSEMBLER = AssemblerSettings(verdict_deadline_s=3.0, bus_deadline_s=8.0, commit_interval_s=0.5)
GATE = GateSettings(bus_deadline_s=8.0, commit_interval_s=0.5, max_age_s=300.0)
REFRESH = RefreshSettings()


def _nothing(*_: Any, **__: Any) -> None:
    return None


@contextmanager
def edges() -> Iterator[None]:
    """Put the simulation's edges in place of HTTP, task packages and what only costs time."""

    async def listen(service: Any) -> str:
        return rollout.listen(service, rollout.NOW[0], rollout.NOW[0].watch)

    async def sent(_: Any, response: Any) -> Any:
        return response

    logging.disable(logging.CRITICAL)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    with ExitStack() as stack, warnings.catch_warnings():
        # A request whose server dies before it is looked at is no mistake.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        put = stack.enter_context
        put(mock.patch.object(environments.worker, "GatewayClient", rollout.SimGatewayClient))
        package = rollout.SimPackage()
        put(mock.patch.object(environments.registry, "load", return_value=package))
        put(mock.patch.object(inference.service.InferenceService, "listen", listen))
        put(mock.patch.object(inference.service, "probe", _nothing))
        put(mock.patch.object(inference.engine_keeper, "_WATCH_S", 2.0))
        put(mock.patch.object(inference.worker, "_STATE_S", 2.0))
        put(mock.patch.object(inference.gateway, "_sent", sent))
        put(mock.patch.object(Metrics, "observe", _nothing))
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.collect()
            gc.enable()
            logging.disable(logging.NOTSET)
            sys.unraisablehook = hook


def sweep(number: int) -> None:
    """Collect what dead histories left, every 25 of them; `edges` has the collector off."""
    if number % 25 == 0:
        gc.collect()


def shrink(case: Case, *, tries_max: int = 60) -> Case:
    """Return the case with every fault taken out that the failure does not need."""
    faults, tries = list(case.faults), 0
    at = 0
    while at < len(faults) and tries < tries_max:
        fewer = faults[:at] + faults[at + 1 :]
        tries += 1
        if play(replace(case, faults=tuple(fewer))).violations:
            faults = fewer
        else:
            at += 1
    return replace(case, faults=tuple(faults))

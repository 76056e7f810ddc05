"""`sluice chaos` from start to end: a run as `sluice run` starts it, a driver that hits it, the
audit, and the figures from its topics.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from inference.settings import EngineKind
from infra.chaos.broker import Broker
from infra.chaos.driver import ENDS_A_PROCESS, Done, Driver
from infra.chaos.findings import Findings, Hit
from infra.chaos.others import WINDOW_MS, Standstill, Sums, ratio
from infra.chaos.plan import EDGES, HIT_ROLES, Act, Scope, Tally, deeds, role_of
from infra.chaos.resuming import Resuming
from infra.chaos.totals import REPORT_NAME, reports_in, totals
from infra.platform.settings import platform_settings
from infra.run import session
from infra.run.bus import BusAddress, Doors
from infra.run.conductor import Outcome, parts_of
from infra.run.folder import RunFolder, read_start, write_atomically
from infra.run.worker import configure_log, worker_id
from infra.settings import RunSettings
from infra.setup.places import find_places
from infra.standing import delivered
from schemas.errors import SettingsError
from schemas.ports import Delivered
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    LEARNER_STEPS,
    TASKS,
    TOKENS,
    TRAJECTORIES,
    VERDICTS,
    WORKERS,
    Topic,
)

_READ: tuple[Topic[Any], ...] = (
    TOKENS, EPISODES, TASKS, TRAJECTORIES, GATE_DECISIONS, VERDICTS, LEARNER_STEPS, WORKERS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What is asked of a chaos run."""

    seed: int
    kills: int
    every_s: float
    acts: frozenset[Act]
    with_broker: bool
    roles: frozenset[str] = frozenset()
    """Only processes of these are hit, and not the broker; empty: all."""


class _Made:
    """Keeps the driver that a run was given, for the report."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.driver: Driver
        self.engine = ""

    def __call__(self, settings: RunSettings, folder: RunFolder) -> Driver:
        campaign = self._campaign
        self.engine = settings.inference.engine.value
        orders = folder.root / "crash-points"
        orders.mkdir(exist_ok=True)
        broker = local_broker(settings) if campaign.with_broker else None
        scope = scope_of(settings, campaign, with_broker=broker is not None)
        tally = Tally()
        self.driver = Driver(
            plan=deeds(campaign.seed, scope, tally),
            tally=tally,
            wanted=campaign.kills,
            orders=orders.absolute(),
            broker=broker,
            targets=frozenset(scope.parts) if campaign.roles else frozenset(),
        )
        return self.driver


def scope_of(settings: RunSettings, campaign: Campaign, *, with_broker: bool) -> Scope:
    """Return what a campaign may hit in a run with these settings.

    Raises SettingsError when it names a role that the run does not have, or leaves nothing to do.
    """
    parts = {part.name: part.role for part in parts_of(settings) if part.role in HIT_ROLES}
    roles = campaign.roles or frozenset(parts.values())
    unknown = sorted(roles.difference(parts.values()))
    if unknown:
        raise SettingsError(
            f"the run has no role {', '.join(unknown)} that can be hit",
            hint=f"one of {', '.join(sorted(set(parts.values())))}",
        )
    scope = Scope(
        parts=[name for name, role in parts.items() if role in roles],
        lease_s=settings.scheduler.lease_ms / 1000,
        every_s=campaign.every_s,
        with_broker=with_broker and not campaign.roles,
        has_engine=settings.inference.engine is EngineKind.VLLM,
        acts=campaign.acts,
    )
    if not any(map(scope.allows, Act)):
        raise SettingsError(
            f"none of these acts can be done here: {', '.join(sorted(campaign.acts))}",
            hint=f"edges are reached by {', '.join(EDGES)}; the engine act needs vLLM, a broker "
            "act a local broker and no --role",
        )
    return scope


def local_broker(settings: RunSettings) -> Broker | None:
    """Return the local broker, or None when the bus is somebody else's."""
    if settings.bus.bootstrap:
        return None
    places = find_places(os.environ)
    platform = platform_settings(os.environ, places)
    return None if platform.external_bootstrap else Broker(platform, places)


async def campaign(
    config: Path, asked: Campaign, *, directory: Path, overrides: Mapping[str, str],
    randomness: bytes,
) -> tuple[dict[str, Any], Outcome]:  # fmt: skip
    """Run, disturb, wait for the end, audit; return the report and how the run ended."""
    settings = session.resolve_settings(config, directory=directory, overrides=overrides)
    # What cannot be done is said before anything starts.
    scope_of(settings, asked, with_broker=asked.with_broker and local_broker(settings) is not None)
    configure_log()
    made = _Made(asked)
    outcome = await session.start(
        config, directory=directory, overrides=overrides, randomness=randomness, disturb=made
    )
    report = {"engine": made.engine, **await _report(asked, made.driver, outcome)}
    path = outcome.folder / REPORT_NAME
    write_atomically(path, orjson.dumps(report, option=orjson.OPT_INDENT_2))
    report["all_campaigns"] = totals(reports_in(directory))
    return report, outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the topics of a run say, read once."""

    findings: Findings
    resuming: Resuming

    def recovery(self, hits: Sequence[Hit], disturbed: Sequence[Standstill] = ()) -> dict[str, Any]:
        """Return what the deaths of workers cost: JSON values, described in `docs/chaos.md`.

        disturbed: who was kept from working otherwise, and for how long at least.
        """
        findings, inference = self.findings, _of(hits, "inference")
        all_tokens, in_hand = findings.others(inference, self._standstills(inference, disturbed))
        return {
            "committed_tokens_decoded_twice": findings.decoded_twice,
            "superseded_action_tokens": findings.superseded_tokens,
            "recovery_s": asdict(findings.recovery_s(inference)),
            "rebuilt_s": asdict(findings.rebuilt_s(_of(hits, "environment"))),
            "resumed_s": {k: asdict(v) for k, v in self.resuming.resumed_s(hits).items()},
            "back_s": {k: asdict(v) for k, v in self.resuming.back_s(hits).items()},
            "work_lost": {
                "uncommitted_tail_s": asdict(findings.tail_s(inference)),
                "uncommitted_tail_tokens": asdict(findings.tail_tokens(inference)),
                "turns_interrupted": findings.interruptions,
                "learner": asdict(self.resuming.learner),
            },
            "others_throughput_ratio": _told(all_tokens),
            "others_turn_speed_ratio": _told(in_hand),
        }

    def _standstills(
        self, deaths: Sequence[Hit], disturbed: Sequence[Standstill]
    ) -> list[Standstill]:
        """Return when inference workers could not work: from a death until the next process is
        ready, from anything else until tokens come again.
        """
        found = [
            Standstill(
                worker_id=hit.worker_id,
                from_ms=hit.at_ms,
                to_ms=math.inf if (back_ms := self.resuming.back_ms(hit)) is None else back_ms,
            )
            for hit in deaths
        ]
        for one in disturbed:
            back = self.findings.next_written_ms(one.worker_id, one.to_ms)
            found.append(replace(one, to_ms=one.to_ms if back is None else back))
        return found


def _told(sums: Sequence[Sums]) -> dict[str, Any]:
    kept = [asdict(one) for one in sums]
    return {**asdict(ratio(sums)), "window_ms": WINDOW_MS, "moments": [[*k.values()] for k in kept]}


async def _report(asked: Campaign, driver: Driver, outcome: Outcome) -> dict[str, Any]:
    start = read_start(RunFolder(root=outcome.folder))
    doors = Doors(
        BusAddress(bootstrap=start.bootstrap, registry=start.registry, prefix=start.prefix),
        client="chaos",
    )
    try:
        read = await read_run(doors, start.run_id, start.starts)
    finally:
        await doors.close()
    done, summary = driver.done, outcome.summary
    hits = [
        Hit(worker_id=_worker(one, start.run_id), at_ms=one.at_ms) for one in done if _ends(one)
    ]
    return {
        "seed": asked.seed,
        "kills": len(done),
        "kills_asked": asked.kills,
        "missed": driver.missed,
        "violations": summary["audit_violations"],
        **read.recovery(hits, [hindered(one, start.run_id) for one in done if not _ends(one)]),
        **tallied(done),
        "closed": outcome.closed,
        "reason": outcome.reason,
        "run_id": start.run_id,
        "folder": str(outcome.folder),
        "run": {
            name: summary[name]
            for name in (
                "steps", "wall_s", "issued", "trained", "dropped", "abandoned", "pending",
                "sampled_tokens", "process_restarts",
            )
        },
    }  # fmt: skip


def tallied(done: Sequence[Done]) -> dict[str, Any]:
    """Return what hit, counted by act, role and edge, and the edges at which nothing died."""
    deaths = _counted(one.deed.point.value for one in done if one.deed.point and _is_death(one))
    every = [point.value for points in EDGES.values() for point in points]
    return {
        "kills_by_act": _counted(one.deed.act.value for one in done),
        "kills_by_role": _counted(role_of(one.deed.target) for one in done),
        "kills_by_edge": deaths,
        "stops_by_edge": _counted(
            one.deed.point.value for one in done if one.deed.point and not _is_death(one)
        ),
        "edges_not_hit": [point for point in every if point not in deaths],
    }


def _is_death(one: Done) -> bool:
    return one.deed.act is Act.EDGE


def _ends(one: Done) -> bool:
    return one.deed.act in ENDS_A_PROCESS


def hindered(one: Done, run_id: str) -> Standstill:
    """Return whom a deed that ends no process kept from working, and how long at least."""
    is_broker = one.deed.act in (Act.BROKER_KILL, Act.BROKER_STOP)
    return Standstill(
        worker_id="" if is_broker else _worker(one, run_id),
        from_ms=one.at_ms,
        to_ms=one.at_ms + 1000 * one.deed.lasts_s,
    )


def _worker(one: Done, run_id: str) -> str:
    role, _, index = one.deed.target.rpartition("-")
    return worker_id(role, int(index), run_id)


def _of(hits: Sequence[Hit], role: str) -> list[Hit]:
    return [hit for hit in hits if hit.role == role]


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


async def read_run(doors: Doors, run_id: str, starts: Mapping[str, Mapping[int, int]]) -> Read:
    """Read a run's topics to their ends as they are now."""
    read = Read(findings=Findings(run_id), resuming=Resuming(run_id))
    reader = doors.consumers.reader({topic: starts[topic.name] for topic in _READ})
    try:
        async for message in delivered(
            reader, _READ, clock=doors.clock, waiting_for="what the run's stages wrote"
        ):
            _take(read, message)
    finally:
        await reader.close()
    return read


def _take(read: Read, message: Delivered[Any]) -> None:
    if message.topic == TOKENS.name:
        read.findings.take_token(message)
        return
    if message.topic == EPISODES.name:
        read.findings.take_episode(message)
    read.resuming.take(message)

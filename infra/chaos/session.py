"""`sluice chaos` from start to end: a run as `sluice run` starts it, a driver that hits it, the
audit, and the figures from its topics.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from inference.settings import EngineKind
from infra.chaos.broker import Broker
from infra.chaos.driver import Done, Driver
from infra.chaos.findings import Findings, Hit
from infra.chaos.plan import Act, Scope, Tally, deeds
from infra.platform.settings import platform_settings
from infra.run import session
from infra.run.bus import BusAddress, Doors
from infra.run.conductor import Outcome, parts_of
from infra.run.folder import RunFolder, read_start, write_atomically
from infra.run.worker import configure_log, worker_id
from infra.settings import RunSettings
from infra.setup.places import find_places
from schemas.ports import Delivered
from schemas.topics import EPISODES, TOKENS

_READ_MS = 120_000
_ENDS_A_PROCESS = frozenset({Act.KILL, Act.EDGE, Act.PREEMPT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What is asked of a chaos run."""

    seed: int
    kills: int
    every_s: float
    acts: frozenset[Act]
    with_broker: bool


class _Made:
    """Keeps the driver that a run was given, for the report."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.driver: Driver

    def __call__(self, settings: RunSettings, folder: RunFolder) -> Driver:
        campaign = self._campaign
        orders = folder.root / "crash-points"
        orders.mkdir(exist_ok=True)
        broker = _broker(settings) if campaign.with_broker else None
        scope = Scope(
            parts=[part.name for part in parts_of(settings)],
            lease_s=settings.scheduler.lease_ms / 1000,
            every_s=campaign.every_s,
            with_broker=broker is not None,
            has_engine=settings.inference.engine is EngineKind.VLLM,
            acts=campaign.acts,
        )
        tally = Tally()
        self.driver = Driver(
            plan=deeds(campaign.seed, scope, tally),
            tally=tally,
            wanted=campaign.kills,
            orders=orders.absolute(),
            broker=broker,
        )
        return self.driver


def _broker(settings: RunSettings) -> Broker | None:
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
    configure_log()
    made = _Made(asked)
    outcome = await session.start(
        config, directory=directory, overrides=overrides, randomness=randomness, disturb=made
    )
    report = await _report(asked, made.driver, outcome)
    path = outcome.folder / "chaos.json"
    write_atomically(path, orjson.dumps(report, option=orjson.OPT_INDENT_2))
    return report, outcome


async def _report(asked: Campaign, driver: Driver, outcome: Outcome) -> dict[str, Any]:
    start = read_start(RunFolder(root=outcome.folder))
    doors = Doors(
        BusAddress(bootstrap=start.bootstrap, registry=start.registry, prefix=start.prefix),
        client="chaos",
    )
    try:
        findings = await _read(doors, start.run_id, start.starts)
    finally:
        await doors.close()
    done, summary = driver.done, outcome.summary
    ended = [one for one in done if one.deed.act in _ENDS_A_PROCESS]
    return {
        "seed": asked.seed,
        "kills": len(done),
        "kills_asked": asked.kills,
        "missed": driver.missed,
        "violations": summary["audit_violations"],
        "committed_tokens_decoded_twice": findings.decoded_twice,
        "superseded_action_tokens": findings.superseded_tokens,
        "recovery_s": asdict(findings.recovery_s(_hits(ended, "inference", start.run_id))),
        "rebuilt_s": asdict(findings.rebuilt_s(_hits(ended, "environment", start.run_id))),
        "kills_by_act": _counted(one.deed.act.value for one in done),
        "kills_by_role": _counted(_role(one) for one in done),
        "kills_by_edge": _counted(one.deed.point.value for one in done if one.deed.point),
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


def _role(one: Done) -> str:
    return one.deed.target.rpartition("-")[0] or one.deed.target


def _hits(done: Sequence[Done], role: str, run_id: str) -> list[Hit]:
    return [
        Hit(worker_id=worker_id(role, int(index), run_id), at_ms=one.at_ms)
        for one in done
        for name, _, index in (one.deed.target.rpartition("-"),)
        if name == role
    ]


def _counted(names: Any) -> dict[str, int]:
    return dict(Counter(names).most_common())


async def _read(doors: Doors, run_id: str, starts: Mapping[str, Mapping[int, int]]) -> Findings:
    """Read `tokens` and `episodes` of the run to their ends as they are now."""
    findings = Findings(run_id)
    reader = doors.consumers.reader({topic: starts[topic.name] for topic in (TOKENS, EPISODES)})
    try:
        ends = {
            (topic.name, partition): end
            for topic in (TOKENS, EPISODES)
            for partition, end in (await reader.ends(topic)).items()
        }
        messages = await reader.read_to(
            ends, deadline=doors.deadline(_READ_MS, "tokens and episodes of the run")
        )
    finally:
        await reader.close()
    for message in messages:
        if not isinstance(message, Delivered):
            continue
        if message.topic == TOKENS.name:
            findings.take_token(message)
        else:
            findings.take_episode(message)
    return findings

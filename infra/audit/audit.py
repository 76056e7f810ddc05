"""`sluice audit`: read a run's topics once, with rules of our own, and prove or name what breaks
(design section 16).

The learner, the versions and the tasks concern the whole run and are read first. All else concerns
one episode and stands in the partition of its group, so partitions are read, checked, settled and
forgotten a few at a time: as many together as hold `records_max` records, at least one. `helpers`
may do a share of the partitions each, in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra.audit.accounting import Accounts, settle, sum_up
from infra.audit.checks import check_partitions, check_whole
from infra.audit.facts import Facts, Whole
from infra.audit.reading import Ends, between, sample, shortened_by_cuts, starts_of
from infra.audit.report import AuditReport, Findings
from schemas.enums import EpisodeEventKind, LearnerEventKind, ToolEventKind
from schemas.ports import Consumers, Delivered, Starts
from schemas.topics import (
    CONTROL,
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    PAYLOADS,
    POLICIES,
    TASKS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
    VERDICTS,
    VERIFY_REQUESTS,
    Topic,
)

RECORDS_TOGETHER_MAX = 300_000
Take = Callable[[Delivered[Any]], None]


@dataclass(slots=True)
class Share:
    """What an audit found in some partitions."""

    accounts: Accounts = field(default_factory=Accounts)
    counts: Counter[str] = field(default_factory=Counter)
    poison: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    versions_used: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    peak_bytes: int = 0
    """Of the process that audited it, when it was not this one."""


Cut = Mapping[str, Ends]
Helpers = Callable[[Cut, Mapping[int, int]], Awaitable[Sequence[Share]] | None]
"""Takes the cut and the records of each partition; returns the shares that cover all of them, or
None when the audit is better done here."""


async def audit(
    consumers: Consumers,
    run_id: str,
    starts: Starts | None = None,
    *,
    lows: Starts | None = None,
    records_max: int = RECORDS_TOGETHER_MAX,
    helpers: Helpers | None = None,
) -> AuditReport:
    """Audit a run, live or ended; `starts` are the offsets of its Start record, None reads whole
    topics. `lows` are where the logs begin now: what a trim deleted is left to the recorded audit
    that allowed it.

    Raises BusUnreachableError when no broker answers, TransientError when reading stalls.
    """
    cut = await sample(consumers)
    begins = _begins(starts, lows, cut)
    work = helpers(cut, _records(begins, cut)) if helpers else None
    reading = _read_whole(consumers, run_id, begins, lows, cut)
    shares: Sequence[Share]
    if work is None:
        whole = await reading
        partitions = sorted(cut[EPISODES.name])
        shares = [await _share(consumers, whole, begins, cut, partitions, records_max)]
    else:
        # Together, so that a share that fails ends the audit at once.
        whole, shares = await asyncio.gather(reading, work)
    total = Share()
    for share in shares:
        total.accounts.add(share.accounts)
        total.counts += share.counts
        total.poison += share.poison
        whole.findings.add(share.findings)
        whole.versions_used = {**share.versions_used, **whole.versions_used}
    whole.poison += total.poison
    check_whole(whole, len(cut[EPISODES.name]))
    sum_up(whole, total.accounts)
    peaks = tuple(share.peak_bytes for share in shares if share.peak_bytes)
    return replace(_report(whole, total.accounts, total.counts, cut), peaks=peaks)


async def audit_share(
    consumers: Consumers,
    run_id: str,
    starts: Starts | None,
    cut: Cut,
    partitions: Sequence[int],
    *,
    lows: Starts | None = None,
    records_max: int = RECORDS_TOGETHER_MAX,
) -> Share:
    """Audit some partitions of a run inside a cut that was sampled elsewhere."""
    begins = _begins(starts, lows, cut)
    whole = await _read_whole(consumers, run_id, begins, lows, cut)
    return await _share(consumers, whole, begins, cut, partitions, records_max)


def _begins(starts: Starts | None, lows: Starts | None, cut: Cut) -> dict[Topic[Any], Ends]:
    begins: dict[Topic[Any], Ends] = {}
    for topic in _TOPICS:
        low = (lows or {}).get(topic.name, {})
        begin = starts_of(topic, starts, cut[topic.name])
        begins[topic] = {p: max(offset, low.get(p, 0)) for p, offset in begin.items()}
    return begins


async def _read_whole(
    consumers: Consumers,
    run_id: str,
    begins: Mapping[Topic[Any], Ends],
    lows: Starts | None,
    cut: Cut,
) -> Whole:
    whole = Whole(run_id, lows=lows or {})
    for topic, take in _of_whole(whole):
        await _read(consumers, run_id, whole.poison, topic, (begins[topic], cut[topic.name]), take)
    await _look_further_for_versions(consumers, whole, cut)
    whole.sort_uses()
    return whole


async def _share(
    consumers: Consumers,
    whole: Whole,
    begins: Mapping[Topic[Any], Ends],
    cut: Cut,
    partitions: Sequence[int],
    records_max: int,
) -> Share:
    share = Share()
    part = whole.for_share(share.findings, share.versions_used)
    records = _records(begins, cut)
    for together in _parcels(partitions, records, records_max):
        facts = Facts(part, together)
        await _read_partitions(consumers, facts, share.poison, begins, cut)
        check_partitions(facts, len(cut[EPISODES.name]))
        settle(facts, share.accounts)
        share.counts += _counts(facts)
    return share


def _of_whole(whole: Whole) -> list[tuple[Topic[Any], Take]]:
    return [
        (CONTROL, lambda message: whole.take_control(message.record)),
        (TASKS, lambda message: whole.take_task(message.record)),
        (POLICIES, whole.take_policy),
        (LEARNER_STEPS, whole.steps.take),
    ]


def _of_partitions(facts: Facts) -> list[tuple[Topic[Any], Take]]:
    """Return the topics in the order of reading, each with what takes its records."""

    def take_request(message: Delivered[Any]) -> None:
        facts.verify_requests += 1
        request = message.record
        facts.requests[message.partition, message.offset] = (request.episode_id, request.attempt)

    return [
        (EPISODES, facts.lives.take),
        (TOOL_EVENTS, facts.calls.take),
        (TOKENS, facts.tokens.take),
        (PAYLOADS, facts.payloads.take),
        (VERIFY_REQUESTS, take_request),
        (VERDICTS, facts.outcomes.take_verdict),
        (TRAJECTORIES, facts.outcomes.take_trajectory),
        (GATE_DECISIONS, facts.outcomes.take_decision),
        (GATED, facts.outcomes.take_gated),
    ]


_GROUPED: tuple[Topic[Any], ...] = (
    EPISODES,
    TOOL_EVENTS,
    TOKENS,
    PAYLOADS,
    VERIFY_REQUESTS,
    VERDICTS,
    TRAJECTORIES,
    GATE_DECISIONS,
    GATED,
)
_MAY_BE_TRIMMED = (TOOL_EVENTS, TOKENS)
_TOPICS: tuple[Topic[Any], ...] = (CONTROL, TASKS, POLICIES, LEARNER_STEPS, *_GROUPED)


def _records(begins: Mapping[Topic[Any], Ends], cut: Cut) -> dict[int, int]:
    """Return how many records each partition holds."""
    return {
        partition: sum(
            max(0, cut[topic.name].get(partition, 0) - begins[topic].get(partition, 0))
            for topic in _GROUPED
        )
        for partition in sorted(cut[EPISODES.name])
    }


def _parcels(
    partitions: Sequence[int], records: Mapping[int, int], records_max: int
) -> Iterator[tuple[int, ...]]:
    """Yield the partitions that are read together."""
    together: list[int] = []
    held = 0
    for partition in partitions:
        if together and held + records[partition] > records_max:
            yield tuple(together)
            together, held = [], 0
        together.append(partition)
        held += records[partition]
    if together:
        yield tuple(together)


async def _read_partitions(
    consumers: Consumers,
    facts: Facts,
    poison: Counter[str],
    begins: Mapping[Topic[Any], Ends],
    cut: Cut,
) -> None:
    run_id = facts.whole.run_id
    for topic, take in _of_partitions(facts):
        ends = _only(cut[topic.name], facts.partitions)
        if topic in _MAY_BE_TRIMMED and facts.trimmed:
            take = _unless_trimmed(facts.trimmed, take)
        await _read(consumers, run_id, poison, topic, (begins[topic], ends), take)
        if topic is EPISODES:
            facts.find_trimmed()
            # The WAL end of a final Ended decides which tokens count, so it is known before them.
            facts.tokens.ends = {
                episode: life.final.wal_position
                for episode, life in facts.lives.by_id.items()
                if life.final is not None
            }
        elif topic is TOKENS:
            await shortened_by_cuts(consumers, facts.tokens)
    await _look_further(consumers, facts, cut)


def _unless_trimmed(trimmed: Collection[str], take: Take) -> Take:
    def take_some(message: Delivered[Any]) -> None:
        if message.record.episode_id not in trimmed:
            take(message)

    return take_some


def _only(ends: Ends, partitions: Sequence[int]) -> Ends:
    return {p: ends[p] for p in partitions if p in ends}


async def _read(
    consumers: Consumers,
    run_id: str,
    poison: Counter[str],
    topic: Topic[Any],
    limits: tuple[Ends, Ends],
    take: Take,
) -> None:
    """Hand the run's records of a topic between two limits to `take`, and count the poison."""
    async for messages in between(consumers, topic, *limits):
        for message in messages:
            if type(message) is not Delivered:
                poison[topic.name] += 1
            elif message.record.run_id == run_id:
                take(message)


async def _look_further_for_versions(consumers: Consumers, whole: Whole, cut: Cut) -> None:
    """Read on for versions that may be made or published just beyond the cut."""

    def later_step(message: Delivered[Any]) -> None:
        if message.record.kind is LearnerEventKind.STEP:
            whole.later_versions.add((message.record.epoch, message.record.number))

    takers: list[tuple[Topic[Any], Take]] = [
        (LEARNER_STEPS, later_step),
        (POLICIES, whole.take_policy),
    ]
    for topic, take in takers:
        now = dict(await consumers.ends(topic))
        beyond: Counter[str] = Counter()
        await _read(consumers, whole.run_id, beyond, topic, (cut[topic.name], now), take)


async def _look_further(consumers: Consumers, facts: Facts, cut: Cut) -> None:
    """Read on for causes that may lie just beyond the cut, to ends sampled now."""

    def later_result(message: Delivered[Any]) -> None:
        if message.record.kind is ToolEventKind.RESULT:
            facts.later_results.add((str(message.record.episode_id), message.offset))

    def later_issued(message: Delivered[Any]) -> None:
        if message.record.kind is EpisodeEventKind.ISSUED:
            facts.later_issued.add(str(message.record.episode_id))

    takers: list[tuple[Topic[Any], Take]] = [(TOOL_EVENTS, later_result), (EPISODES, later_issued)]
    for topic, take in takers:
        now = _only(dict(await consumers.ends(topic)), facts.partitions)
        beyond: Counter[str] = Counter()
        await _read(consumers, facts.whole.run_id, beyond, topic, (cut[topic.name], now), take)


def _counts(facts: Facts) -> Counter[str]:
    counts = Counter(
        {
            "commits": facts.tokens.commits,
            "commits superseded": facts.tokens.void,
            "tool calls": facts.calls.calls,
            "tool records void": facts.calls.void,
            "verify requests": facts.verify_requests,
            "payload chunks": len(facts.payloads.chunks),
            "payloads not compared": facts.tokens.not_compared,
            "episodes trimmed": len(facts.trimmed),
            "trajectories": len(facts.outcomes.trajectories),
            "decisions": len(facts.outcomes.decisions),
            "gated": len(facts.outcomes.gated),
        }
    )
    counts.update({f"superseded {kind}": n for kind, n in facts.lives.superseded.items()})
    counts.update({f"superseded {kind}": n for kind, n in facts.outcomes.superseded.items()})
    return counts


_ALWAYS = (
    "commits",
    "commits superseded",
    "tool calls",
    "tool records void",
    "verify requests",
    "payload chunks",
    "trajectories",
    "decisions",
    "gated",
)


def _report(whole: Whole, accounts: Accounts, counted: Counter[str], cut: Cut) -> AuditReport:
    names = ("issued", "trained", "dropped", "abandoned", "evaluated", "pending")
    counts = {name: accounts.counts[name] for name in names}
    counts["tasks"] = whole.tasks
    counts |= {name: counted[name] for name in _ALWAYS}
    lineage = whole.steps.on_lineage()
    counts |= {
        "steps": len(whole.steps.lineage),
        "steps surviving": whole.steps.covered,
        "steps lost": whole.steps.lost,
        "learner records void": whole.steps.void,
        "versions": len(whole.policies),
        "versions orphaned": sum(version not in lineage for version in whole.policies),
        "outside the cut": accounts.counts["outside the cut"],
    }
    counts |= {name: n for name, n in sorted(counted.items()) if n and name not in counts}
    counts |= {f"poison {topic}": n for topic, n in sorted(whole.poison.items())}
    return AuditReport(
        run_id=whole.run_id,
        closed=whole.steps.closed,
        counts=counts,
        dropped=dict(accounts.dropped),
        abandoned=dict(accounts.abandoned),
        tokens={"sampled": 0, **accounts.tokens},
        pending={why: tuple(ids) for why, ids in accounts.pending.items()},
        checked=dict(whole.findings.checked),
        violations=tuple(whole.findings.violations),
        cut=cut,
    )

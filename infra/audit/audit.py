"""`sluice audit`: read a run's topics once, with rules of our own, and prove or name what breaks
(design section 16).

The learner, the versions and the tasks concern the whole run and are read first. All else concerns
one episode and stands in the partition of its group, so partitions are read, checked, settled and
forgotten a few at a time: as many together as hold `records_max` records, at least one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infra.audit.accounting import Accounts, settle, sum_up
from infra.audit.checks import check_partitions, check_whole
from infra.audit.facts import Facts, Whole
from infra.audit.reading import Ends, between, sample, shortened_by_cuts, starts_of
from infra.audit.report import AuditReport
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


async def audit(
    consumers: Consumers,
    run_id: str,
    starts: Starts | None = None,
    *,
    records_max: int = RECORDS_TOGETHER_MAX,
) -> AuditReport:
    """Audit a run, live or ended; `starts` are the offsets of its Start record, None reads whole
    topics.

    Raises BusUnreachableError when no broker answers, TransientError when reading stalls.
    """
    whole = Whole(run_id)
    cut = await sample(consumers)
    begins = {topic: starts_of(topic, starts, cut[topic.name]) for topic in _TOPICS}
    for topic, take in _of_whole(whole):
        await _read(consumers, whole, topic, begins[topic], cut[topic.name], take)
    await _look_further_for_versions(consumers, whole, cut)
    whole.sort_uses()
    accounts, counts = Accounts(), Counter[str]()
    partitions = len(cut[EPISODES.name])
    for together in _parcels(begins, cut, records_max):
        facts = Facts(whole, together)
        await _read_partitions(consumers, facts, begins, cut)
        check_partitions(facts, partitions)
        settle(facts, accounts)
        counts += _counts(facts)
    check_whole(whole, partitions)
    sum_up(whole, accounts)
    return _report(whole, accounts, counts, cut)


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
_TOPICS = (CONTROL, TASKS, POLICIES, LEARNER_STEPS, *_GROUPED)


def _parcels(
    begins: Mapping[Topic[Any], Ends], cut: Mapping[str, Ends], records_max: int
) -> Iterator[tuple[int, ...]]:
    """Yield the partitions that are read together."""
    together: list[int] = []
    held = 0
    for partition in sorted(cut[EPISODES.name]):
        records = sum(
            max(0, cut[topic.name].get(partition, 0) - begins[topic].get(partition, 0))
            for topic in _GROUPED
        )
        if together and held + records > records_max:
            yield tuple(together)
            together, held = [], 0
        together.append(partition)
        held += records
    if together:
        yield tuple(together)


async def _read_partitions(
    consumers: Consumers,
    facts: Facts,
    begins: Mapping[Topic[Any], Ends],
    cut: Mapping[str, Ends],
) -> None:
    for topic, take in _of_partitions(facts):
        ends = _only(cut[topic.name], facts.partitions)
        await _read(consumers, facts.whole, topic, begins[topic], ends, take)
        if topic is EPISODES:
            # The WAL end of a final Ended decides which tokens count, so it is known before them.
            facts.tokens.ends = {
                episode: life.final.wal_position
                for episode, life in facts.lives.by_id.items()
                if life.final is not None
            }
        elif topic is TOKENS:
            await shortened_by_cuts(consumers, facts.tokens)
    await _look_further(consumers, facts, cut)


def _only(ends: Ends, partitions: Sequence[int]) -> Ends:
    return {p: ends[p] for p in partitions if p in ends}


async def _read(
    consumers: Consumers, whole: Whole, topic: Topic[Any], begin: Ends, ends: Ends, take: Take
) -> None:
    run_id = whole.run_id
    async for messages in between(consumers, topic, begin, ends):
        for message in messages:
            if type(message) is not Delivered:
                whole.poison[topic.name] += 1
            elif message.record.run_id == run_id:
                take(message)


async def _look_further_for_versions(
    consumers: Consumers, whole: Whole, cut: Mapping[str, Ends]
) -> None:
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
        await _read(consumers, whole, topic, cut[topic.name], now, take)


async def _look_further(consumers: Consumers, facts: Facts, cut: Mapping[str, Ends]) -> None:
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
        await _read(consumers, facts.whole, topic, cut[topic.name], now, take)


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


def _report(
    whole: Whole, accounts: Accounts, counted: Counter[str], cut: Mapping[str, Ends]
) -> AuditReport:
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

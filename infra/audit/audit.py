"""`sluice audit`: read a run's topics once, with rules of our own, and prove or name what breaks
(design section 16).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from infra.audit.accounting import settle
from infra.audit.checks import run_checks
from infra.audit.facts import Facts
from infra.audit.reading import Ends, between, sample, starts_of
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


async def audit(consumers: Consumers, run_id: str, starts: Starts | None = None) -> AuditReport:
    """Audit a run, live or ended; `starts` are the offsets of its Start record, None reads whole
    topics.

    Raises BusUnreachableError when no broker answers, TransientError when reading stalls.
    """
    facts = Facts(run_id)
    cut = await sample(consumers)
    for topic, take in _takers(facts):
        begin = starts_of(topic, starts, cut[topic.name])
        await _read(consumers, facts, topic, begin, cut[topic.name], take)
        if topic is EPISODES:
            # The WAL end of a final Ended decides which tokens count, so it is known before them.
            facts.tokens.ends = {
                episode: life.final.wal_position
                for episode, life in facts.lives.by_id.items()
                if life.final is not None
            }
    await _look_further(consumers, facts, cut)
    run_checks(facts)
    accounts = settle(facts)
    return AuditReport(
        run_id=run_id,
        closed=facts.steps.closed,
        counts=_counts(facts, accounts.counts),
        dropped=dict(accounts.dropped),
        abandoned=dict(accounts.abandoned),
        tokens={"sampled": 0, **accounts.tokens},
        pending={why: tuple(ids) for why, ids in accounts.pending.items()},
        checked=dict(facts.findings.checked),
        violations=tuple(facts.findings.violations),
        cut=cut,
    )


def _takers(facts: Facts) -> list[tuple[Topic[Any], Callable[[Delivered[Any]], None]]]:
    """Return the topics in the order of reading, each with what takes its records."""

    def count(name: str) -> Callable[[Delivered[Any]], None]:
        def take(_: Delivered[Any]) -> None:
            setattr(facts, name, getattr(facts, name) + 1)

        return take

    return [
        (CONTROL, lambda message: facts.take_control(message.record)),
        (TASKS, count("tasks")),
        (POLICIES, lambda message: facts.take_policy(message.record)),
        (LEARNER_STEPS, facts.steps.take),
        (EPISODES, facts.lives.take),
        (TOOL_EVENTS, facts.calls.take),
        (TOKENS, facts.tokens.take),
        (PAYLOADS, facts.outcomes.take_chunk),
        (VERIFY_REQUESTS, count("verify_requests")),
        (VERDICTS, facts.outcomes.take_verdict),
        (TRAJECTORIES, facts.outcomes.take_trajectory),
        (GATE_DECISIONS, facts.outcomes.take_decision),
        (GATED, facts.outcomes.take_gated),
    ]


async def _read(
    consumers: Consumers,
    facts: Facts,
    topic: Topic[Any],
    begin: Ends,
    ends: Ends,
    take: Callable[[Delivered[Any]], None],
) -> None:
    async for message in between(consumers, topic, begin, ends):
        if not isinstance(message, Delivered):
            facts.poison[topic.name] = facts.poison.get(topic.name, 0) + 1
        elif message.record.run_id == facts.run_id:
            take(message)


async def _look_further(consumers: Consumers, facts: Facts, cut: Mapping[str, Ends]) -> None:
    """Read on for causes that may lie just beyond the cut, to ends sampled now."""

    def later_step(message: Delivered[Any]) -> None:
        if message.record.kind is LearnerEventKind.STEP:
            facts.later_versions.add((message.record.epoch, message.record.number))

    def later_result(message: Delivered[Any]) -> None:
        if message.record.kind is ToolEventKind.RESULT:
            facts.later_results.add((str(message.record.episode_id), message.offset))

    def later_issued(message: Delivered[Any]) -> None:
        if message.record.kind is EpisodeEventKind.ISSUED:
            facts.later_issued.add(str(message.record.episode_id))

    takers: list[tuple[Topic[Any], Callable[[Delivered[Any]], None]]] = [
        (LEARNER_STEPS, later_step),
        (TOOL_EVENTS, later_result),
        (EPISODES, later_issued),
        (POLICIES, lambda message: facts.take_policy(message.record)),
    ]
    for topic, take in takers:
        now = dict(await consumers.ends(topic))
        await _read(consumers, facts, topic, cut[topic.name], now, take)


def _counts(facts: Facts, settled: Counter[str]) -> dict[str, int]:
    names = ("issued", "trained", "dropped", "abandoned", "evaluated", "pending")
    counts = {name: settled[name] for name in names}
    counts |= {
        "tasks": facts.tasks,
        "commits": facts.tokens.commits,
        "commits superseded": facts.tokens.void,
        "tool calls": facts.calls.calls,
        "tool records void": facts.calls.void,
        "verify requests": facts.verify_requests,
        "payload chunks": len(facts.outcomes.chunks),
        "trajectories": len(facts.outcomes.trajectories),
        "decisions": len(facts.outcomes.decisions),
        "gated": len(facts.outcomes.gated),
        "steps": len(facts.steps.lineage),
        "steps surviving": facts.steps.covered,
        "steps lost": facts.steps.lost,
        "learner records void": facts.steps.void,
        "outside the cut": settled["outside the cut"],
    }
    counts |= {f"superseded {kind}": n for kind, n in sorted(facts.lives.superseded.items())}
    counts |= {f"superseded {kind}": n for kind, n in sorted(facts.outcomes.superseded.items())}
    counts |= {f"poison {topic}": n for topic, n in sorted(facts.poison.items())}
    return counts

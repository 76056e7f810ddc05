"""Invariant 3, as far as it concerns who ran the tools: under one lease only the process that it
names, and where it names none, no more than one.

The scheduler names worker and incarnation in Leased; every record of the tool log names its writer.
Two live processes under one worker id, both of which took the lease, show in the tool log even
where each call was harmless.
"""

from __future__ import annotations

from infra.audit.calls import EpisodeCalls
from infra.audit.facts import Facts
from infra.audit.lives import Life
from infra.audit.report import Findings, at
from schemas.topics import TOOL_EVENTS


def leases_have_one_process(facts: Facts) -> None:
    """Compare the writers in the tool log with the leases."""
    for episode, calls in facts.calls.by_episode.items():
        life = facts.lives.by_id.get(episode)
        if life is not None:
            for attempt in calls.writers:
                _check(facts.findings, life, calls, attempt)


def _check(findings: Findings, life: Life, calls: EpisodeCalls, attempt: int) -> None:
    writers = calls.writers[attempt]
    lease = life.leases.get(attempt)
    if lease is None:
        # Its Leased lies outside the cut, or was of a scheduler that no longer counted.
        return
    worker, incarnation = lease
    for (who, process), offset in writers.items():
        findings.check(
            3,
            who == worker and (process == incarnation or not incarnation),
            f"{who} ({process}) wrote to the tool log under attempt {attempt}, {worker} "
            f"({incarnation or 'any'}) holds the lease",
            ids=(life.episode_id,),
            at=(at(TOOL_EVENTS.name, calls.partition, offset),),
        )
    # Of records that name no process: a Fence that came second never counted, a call did.
    acting = calls.acts.get(attempt, {})
    findings.check(
        3,
        bool(incarnation) or len(acting) <= 1,
        f"two processes ran tools under attempt {attempt}: {', '.join(p for _, p in acting)}",
        ids=(life.episode_id,),
        at=tuple(at(TOOL_EVENTS.name, calls.partition, offset) for offset in acting.values()),
    )

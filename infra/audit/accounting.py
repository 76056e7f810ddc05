"""Closed accounting: every issued episode and every sampled token under exactly one heading (design
section 8).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from infra.audit.facts import Facts, Use, Whole
from infra.audit.lives import Life
from infra.audit.report import at
from schemas.enums import DropReason, GateOutcome, Purpose
from schemas.topics import EPISODES, LEARNER_STEPS, TOKENS, TOOL_EVENTS

SIBLING = "sibling_branch"


def _lists() -> defaultdict[str, list[str]]:
    return defaultdict(list)


@dataclass(slots=True)
class Accounts:
    """The sums of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    abandoned: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    pending: defaultdict[str, list[str]] = field(default_factory=_lists)

    def add(self, other: Accounts) -> None:
        """Add the sums of other partitions."""
        self.counts += other.counts
        self.dropped += other.dropped
        self.abandoned += other.abandoned
        self.tokens += other.tokens
        for why, episodes in other.pending.items():
            self.pending[why] += episodes


def settle(facts: Facts, accounts: Accounts) -> None:
    """Sort every issued episode of these partitions under one heading, and check invariants 5 and 7
    on the way.
    """
    accounts.counts["admitted"] += sum(
        member.outcome is GateOutcome.ADMIT
        for decided in facts.outcomes.decisions.values()
        for member in decided.members.values()
    )
    for episode, life in facts.lives.by_id.items():
        accounts.counts["issued"] += 1
        uses = facts.uses.get(episode, [])
        heading, detail = _heading(facts, life, uses)
        _enter(accounts, life, heading, detail)
        _enter_tokens(facts, accounts, life, heading, detail, uses)
        if heading == "pending":
            facts.findings.check(
                5,
                not facts.steps.closed,
                f"the run is closed and this episode is pending: {detail}",
                ids=(episode,),
                at=(at(EPISODES.name, life.partition, life.issued_offset),),
            )
    _strangers(facts, accounts)


def _heading(facts: Facts, life: Life, uses: list[Use]) -> tuple[str, str]:
    """Return the one heading of an episode and the reason or detail under it."""
    episode, decision, skips = life.episode_id, None, facts.whole.skips
    if life.purpose is Purpose.TRAIN:
        decision = facts.outcomes.decision_on(life.group_id, episode)
    _check_claims(facts, life, uses, decision, is_skipped=episode in skips)
    if life.abandoned is not None:
        return "abandoned", life.abandoned.value
    if life.purpose is not Purpose.TRAIN:
        sealed = episode in facts.outcomes.trajectories
        return ("evaluated", "") if sealed else ("pending", _waits_for(facts, life))
    if uses:
        if uses[0].survives:
            return "trained", ""
        return "pending", "a checkpoint that covers its step"
    if episode in skips:
        return "dropped", skips[episode][0].value
    if decision is None:
        return "pending", _waits_for(facts, life)
    if not decision[0]:
        return "dropped", decision[1].value
    if facts.steps.closed:
        return "dropped", DropReason.RUN_ENDED.value
    return "pending", "the learner"


def _check_claims(
    facts: Facts,
    life: Life,
    uses: list[Use],
    decision: tuple[bool, DropReason] | None,
    *,
    is_skipped: bool,
) -> None:
    claims = {
        "abandoned": life.abandoned is not None,
        "trained": bool(uses),
        "skipped": is_skipped,
        "dropped": decision is not None and not decision[0],
    }
    facts.findings.check(
        5,
        sum(claims.values()) <= 1,
        "under two headings at once: " + ", ".join(k for k, claimed in claims.items() if claimed),
        ids=(life.episode_id,),
    )
    if uses:
        facts.findings.check(
            7,
            decision is not None and decision[0],
            "trained without an Admit",
            ids=(life.episode_id,),
        )


def _waits_for(facts: Facts, life: Life) -> str:
    if life.episode_id in facts.outcomes.trajectories:
        return "the gate"
    if life.final is not None:
        return "verdict and assembler"
    return "its end" if life.attempt else "a lease"


def _enter(accounts: Accounts, life: Life, heading: str, detail: str) -> None:
    accounts.counts[heading] += 1
    if heading == "dropped":
        accounts.dropped[detail] += 1
    elif heading == "abandoned":
        accounts.abandoned[detail] += 1
    elif heading == "pending":
        accounts.pending[detail].append(life.episode_id)


def _enter_tokens(
    facts: Facts, accounts: Accounts, life: Life, heading: str, detail: str, uses: list[Use]
) -> None:
    line = facts.tokens.by_episode.get(life.episode_id)
    if line is None:
        return
    tokens = accounts.tokens
    tokens["sampled"] += line.main + line.sibling + line.superseded
    tokens["superseded"] += line.superseded
    tokens["undecodable"] += line.undecodable
    match heading:
        case "trained":
            member = uses[0].member
            masked = {"dis_low": member.masked_low, "dis_high": member.masked_high}
            for reason, number in member.masked_other.items():
                if reason != SIBLING:
                    masked[reason] = masked.get(reason, 0) + number
            facts.findings.check(
                5,
                member.kept_tokens + sum(masked.values()) == line.main,
                f"{line.main} action tokens in the log, the Step has {member.kept_tokens} kept and "
                f"{masked} masked",
                ids=(life.episode_id,),
                at=(at(LEARNER_STEPS.name, uses[0].step.partition, uses[0].step.offset),),
            )
            tokens["trained"] += member.kept_tokens
            for reason, number in masked.items():
                tokens[f"masked:{reason}"] += number
            tokens[f"masked:{SIBLING}"] += line.sibling
        case "dropped" | "abandoned":
            tokens[f"{heading}:{detail}"] += line.main + line.sibling
        case _:
            tokens[heading] += line.main + line.sibling


def _strangers(facts: Facts, accounts: Accounts) -> None:
    """Whatever names an episode that was never issued was invented."""
    lives, later = facts.lives.by_id, facts.later_issued
    for episode, line in facts.tokens.by_episode.items():
        if episode not in lives:
            accounts.counts["outside the cut"] += 1
            facts.findings.check(
                5,
                episode in later,
                "tokens of an episode that was never issued",
                ids=(episode,),
                at=(at(TOKENS.name, line.partition, line.first),),
            )
    for episode, log in facts.calls.by_episode.items():
        facts.findings.check(
            5,
            episode in lives or episode in later,
            "tool events of an episode that was never issued",
            ids=(episode,),
            at=(at(TOOL_EVENTS.name, log.partition, log.first),),
        )
    for episode, found in facts.uses.items():
        facts.findings.check(
            5,
            episode in lives or episode in later,
            "trained, and never issued",
            ids=(episode,),
            at=(at(LEARNER_STEPS.name, found[0].step.partition, found[0].step.offset),),
        )


def sum_up(whole: Whole, accounts: Accounts) -> None:
    """Check the sums, once every partition is settled."""
    counts, tokens, findings = accounts.counts, accounts.tokens, whole.findings
    headings = ("trained", "dropped", "abandoned", "evaluated", "pending")
    total = sum(counts[name] for name in headings)
    findings.check(
        5, counts["issued"] == total, f"{counts['issued']} issued, {total} accounted for"
    )
    accounted = sum(n for name, n in tokens.items() if name not in ("sampled", "undecodable"))
    findings.check(
        5,
        tokens["sampled"] == accounted,
        f"{tokens['sampled']} action tokens sampled, {accounted} accounted for",
    )
    told = whole.stream_counts
    if whole.steps.closed and told:
        for name in ("issued", "admitted", "abandoned", "evaluated"):
            findings.check(
                5,
                told.get(name, counts[name]) == counts[name],
                f"EndOfStream says {told.get(name)} {name}, the log has {counts[name]}",
            )

"""What a counting Trajectory says, held against the log that it was made from (invariants 2, 4, 8
and 9).
"""

from __future__ import annotations

from infra.audit.facts import Facts
from infra.audit.lives import Life
from infra.audit.outcomes import Sealed, Verdict
from infra.audit.payloads import Match
from infra.audit.report import at
from infra.audit.tokens import Line
from schemas.enums import RewardSource, Termination
from schemas.topics import PAYLOADS, TRAJECTORIES, VERDICTS

Where = tuple[str, ...]


def trajectories_say_what_the_log_says(facts: Facts) -> None:
    """Check every counting Trajectory."""
    for episode, sealed in facts.outcomes.trajectories.items():
        life = facts.lives.by_id.get(episode)
        where = (at(TRAJECTORIES.name, sealed.partition, sealed.offset),)
        if life is None:
            facts.findings.check(
                4,
                episode in facts.later_issued,
                "a Trajectory of an episode that was never issued",
                ids=(episode,),
                at=where,
            )
            continue
        final = life.final
        if not facts.findings.check(
            4,
            final is not None
            and sealed.ended_offset == final.offset
            and sealed.attempt == final.attempt,
            f"the Trajectory rests on an Ended at {sealed.ended_offset} that is not the final one",
            ids=(episode,),
            at=where,
        ):
            continue
        if episode not in facts.trimmed:
            _counts(facts, episode, sealed, where)
        _payload(facts, episode, sealed, where)
        _reward(facts, life, sealed, where)


def _counts(facts: Facts, episode: str, sealed: Sealed, where: Where) -> None:
    line = facts.tokens.by_episode.get(episode)
    counted = (line.length, line.main, line.sibling) if line else (0, 0, 0)
    said = (sealed.tokens, sealed.action_tokens, sealed.sibling_tokens)
    facts.findings.check(
        2,
        counted == said,
        f"tokens, action and sibling tokens: the log has {counted}, the Trajectory says {said}",
        ids=(episode,),
        at=where,
    )
    used = {version[1:] for version in line.versions} if line and line.main else set()
    facts.findings.check(
        8,
        not sealed.versions or sealed.versions == used,
        f"versions: the log has {sorted(used)}, the Trajectory says {sorted(sealed.versions)}",
        ids=(episode,),
        at=where,
    )
    if sealed.action_tokens and sealed.policy_digest:
        facts.findings.check(
            8,
            sealed.policy_digest in facts.whole.policies.get(sealed.oldest, set()),
            f"the Trajectory's policy digest is not that of version {sealed.oldest}",
            ids=(episode,),
            at=where,
        )


def _payload(facts: Facts, episode: str, sealed: Sealed, where: Where) -> None:
    last = None
    for ref in sealed.chunks:
        if facts.whole.is_gone(PAYLOADS, ref.partition, ref.offset):
            facts.findings.check(
                2,
                facts.whole.was_audited(TRAJECTORIES, sealed.partition, sealed.offset),
                "its payload was deleted, and no recorded audit saw its Trajectory",
                ids=(episode,),
                at=where,
            )
            return
        last = facts.payloads.chunks.get((ref.partition, ref.offset))
        facts.findings.check(
            2,
            last is not None
            and (last.episode_id, last.length, last.crc32c) == (episode, ref.length, ref.crc32c),
            f"the payload chunk at {ref.partition}@{ref.offset} is missing or another",
            ids=(episode,),
            at=where,
        )
    if last is not None and _is_comparable(facts.tokens.by_episode.get(episode)):
        ref = sealed.chunks[-1]
        # A trajectory with a defect that the gate drops by name may be sealed with no payload.
        is_empty = last.length == 0 and episode not in facts.uses
        facts.findings.check(
            2,
            last.match is Match.SAME or is_empty,
            "ids, log-probs or mask of the payload are not those of the WAL",
            ids=(episode,),
            at=(*where, at(PAYLOADS.name, ref.partition, ref.offset)),
        )


def _is_comparable(line: Line | None) -> bool:
    return line is not None and not line.ragged


def _reward(facts: Facts, life: Life, sealed: Sealed, where: Where) -> None:
    findings, ids = facts.findings, (life.episode_id,)
    verdict = facts.outcomes.verdicts.get((life.episode_id, sealed.attempt))
    if sealed.verdict_offset >= 0:
        findings.check(
            4,
            verdict is not None and verdict.offset == sealed.verdict_offset,
            f"the verdict at {sealed.verdict_offset} is not the first of attempt {sealed.attempt}",
            ids=ids,
            at=where,
        )
    if verdict is not None:
        _request(facts, life, sealed.attempt, verdict)
    match sealed.source:
        case RewardSource.VERDICT:
            sound = (
                verdict is not None
                and verdict.carries
                and verdict.offset == sealed.verdict_offset
                and verdict.reward == sealed.reward
            )
        case RewardSource.ATTRIBUTION:
            sound = (
                sealed.attributed
                and sealed.reward is not None
                and sealed.termination is Termination.AGENT_CAUSED_FAULT
            )
        case _:
            sound = sealed.reward is None
    findings.check(
        9,
        sound,
        f"a reward of {sealed.reward} by {sealed.source} has no ground in a verdict or attribution",
        ids=ids,
        at=where,
    )


def _request(facts: Facts, life: Life, attempt: int, verdict: Verdict) -> None:
    """A verdict that counts answers a request of its attempt."""
    request = facts.requests.get((life.partition, verdict.request_offset))
    facts.findings.check(
        9,
        verdict.request_offset < 0 or request == (life.episode_id, attempt),
        f"the verdict answers a request at {verdict.request_offset} that is not of its attempt",
        ids=(life.episode_id,),
        at=(at(VERDICTS.name, life.partition, verdict.offset),),
    )

"""The checks that compare topics with one another (design section 16)."""

from __future__ import annotations

from infra.audit.facts import Facts
from infra.audit.lives import Life
from infra.audit.outcomes import Decided, Sealed
from infra.audit.report import at
from infra.audit.steps import Step
from schemas.enums import Purpose, RewardSource, Termination
from schemas.records.parts import TrainedMember
from schemas.topics import (
    EPISODES,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    TOKENS,
    TOOL_EVENTS,
    TRAJECTORIES,
)

_TOLERANCE = 1e-9


def run_checks(facts: Facts) -> None:
    """Check everything that needs more than one record; violations go to `facts.findings`."""
    exposed_is_committed(facts)
    trajectories_say_what_the_log_says(facts)
    decisions_rest_on_first_records(facts)
    versions_are_registered(facts)
    ordinals = facts.steps.on_lineage()
    for index, step in enumerate(facts.steps.lineage):
        for member in step.members:
            _consumed(facts, step, member, ordinals)
            _trained_from(facts, step, index, member)


def exposed_is_committed(facts: Facts) -> None:
    """Invariant 1, for Intents and Endeds; Observations are checked where they stand."""
    findings = facts.findings
    for episode, log in facts.calls.by_episode.items():
        line = facts.tokens.by_episode.get(episode)
        if episode not in facts.lives.by_id:
            continue
        for one in log.tries:
            findings.check(
                1,
                line is not None and line.stands_at(one.wal_position),
                f"the Intent of {one.key} rests on WAL offset {one.wal_position}, which does not "
                "count",
                ids=(episode,),
                at=(at(TOOL_EVENTS.name, log.partition, one.offset),),
            )
    for life in facts.lives.by_id.values():
        line = facts.tokens.by_episode.get(life.episode_id)
        for end in life.ends:
            findings.check(
                1,
                end.wal_position < 0 or (line is not None and line.stands_at(end.wal_position)),
                f"an Ended rests on WAL offset {end.wal_position}, which does not count",
                ids=(life.episode_id,),
                at=(at(EPISODES.name, life.partition, end.offset),),
            )
    for episode, partition, offset, result_offset in facts.tokens.shown:
        calls = facts.calls.by_episode.get(episode)
        known = calls is not None and result_offset in calls.result_offsets
        findings.check(
            1,
            known or (episode, result_offset) in facts.later_results,
            f"an Observation shows the Result at {result_offset}, which is not there",
            ids=(episode,),
            at=(at(TOKENS.name, partition, offset),),
        )


def trajectories_say_what_the_log_says(facts: Facts) -> None:
    """Invariants 2, 4 and 9 for every counting Trajectory."""
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
        for ref in sealed.chunks:
            facts.findings.check(
                2,
                facts.outcomes.chunks.get((ref.partition, ref.offset))
                == (episode, ref.length, ref.crc32c),
                f"the payload chunk at {ref.partition}@{ref.offset} is missing or another",
                ids=(episode,),
                at=where,
            )
        _reward(facts, life, sealed, where)


def _reward(facts: Facts, life: Life, sealed: Sealed, where: tuple[str, ...]) -> None:
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


def decisions_rest_on_first_records(facts: Facts) -> None:
    """Invariant 4 for decisions and gated records."""
    for group, decided in facts.outcomes.decisions.items():
        members = facts.lives.groups.get(group)
        where = (at(GATE_DECISIONS.name, decided.partition, decided.offset),)
        if members is None:
            continue
        _decision(facts, group, decided, members, where)
    for (partition, offset), gated in facts.outcomes.gated.items():
        life = facts.lives.by_id.get(gated.episode_id)
        if life is None:
            continue
        verdict = facts.outcomes.decision_on(life.group_id, gated.episode_id)
        first = facts.outcomes.decisions.get(life.group_id)
        facts.findings.check(
            4,
            verdict is not None
            and verdict[0]
            and first is not None
            and first.offset == gated.decision_offset,
            f"a gated record without an Admit in the first decision ({gated.decision_offset})",
            ids=(gated.episode_id,),
            at=(at(GATED.name, partition, offset),),
        )


def _decision(
    facts: Facts, group: str, decided: Decided, members: list[str], where: tuple[str, ...]
) -> None:
    for episode in members:
        life = facts.lives.by_id[episode]
        if life.purpose is not Purpose.TRAIN:
            continue
        sealed = facts.outcomes.trajectories.get(episode)
        member = decided.members.get(episode)
        if member is None:
            # A Trajectory may come late for a member that was abandoned; else it must be decided.
            facts.findings.check(
                4,
                life.abandoned is not None,
                "a decision leaves out a member that was not abandoned",
                ids=(group, episode),
                at=where,
            )
            continue
        facts.findings.check(
            4,
            sealed is not None and sealed.offset == member.trajectory_offset,
            f"a decision on the Trajectory at {member.trajectory_offset}, which is not the first",
            ids=(group, episode),
            at=where,
        )
    strangers = sorted(decided.members.keys() - set(members) - facts.later_issued)
    facts.findings.check(
        4,
        not strangers,
        "a decision names members that were never issued",
        ids=(group, *strangers),
        at=where,
    )


def versions_are_registered(facts: Facts) -> None:
    """Invariant 8."""
    findings = facts.findings
    for version, (episode, place) in sorted(facts.tokens.versions.items()):
        text = f"{version[0]}/{version[1]}"
        digests = facts.policies.get(version, set())
        findings.check(
            8,
            len(digests) == 1,
            f"version {text} has {len(digests)} digests in the registry",
            ids=(episode,),
            at=(place,),
        )
        findings.check(
            8,
            facts.is_served(version),
            f"version {text} is named by no Step that counts",
            ids=(episode,),
            at=(place,),
        )
    for step in facts.steps.lineage:
        known = facts.policies.get(step.version)
        if known is not None and step.digest:
            findings.check(
                8,
                step.digest in known,
                f"Step {step.version[0]}/{step.version[1]} and the registry differ in the digest",
                at=(at(LEARNER_STEPS.name, step.partition, step.offset),),
            )
    for episode, sealed in facts.outcomes.trajectories.items():
        if sealed.action_tokens and sealed.policy_digest:
            findings.check(
                8,
                sealed.policy_digest in facts.policies.get(sealed.oldest, set()),
                f"the Trajectory's policy digest is not that of version {sealed.oldest}",
                ids=(episode,),
                at=(at(TRAJECTORIES.name, sealed.partition, sealed.offset),),
            )


def _consumed(
    facts: Facts, step: Step, member: TrainedMember, ordinals: dict[tuple[int, int], int]
) -> None:
    """Invariant 6 for one consumed trajectory, its lag counted again from the log."""
    findings, bounds = facts.findings, facts.bounds
    ids = (member.episode_id,)
    where = (at(LEARNER_STEPS.name, step.partition, step.offset),)
    consuming = step.ordinal - 1
    line = facts.tokens.by_episode.get(member.episode_id)
    versions = [version[1:] for version in (line.versions if line else [])]
    orphaned = [v for v in versions if ordinals.get(v, consuming + 1) > consuming]
    if not findings.check(
        6,
        not orphaned,
        f"trained on tokens of versions that the step does not descend from: {orphaned}",
        ids=ids,
        at=where,
    ):
        return
    lag = consuming - min((ordinals[v] for v in versions), default=consuming)
    findings.check(
        6,
        lag == member.lag_steps and min(lag, member.lag_steps, member.age_ms) >= 0,
        f"lag by the log is {lag}, the Step says {member.lag_steps} (age {member.age_ms} ms)",
        ids=ids,
        at=where,
    )
    if bounds.max_lag_steps is not None:
        findings.check(
            6,
            member.lag_steps <= bounds.max_lag_steps and lag <= bounds.max_lag_steps,
            f"consumed at lag {max(lag, member.lag_steps)}, the bound is {bounds.max_lag_steps}",
            ids=ids,
            at=where,
        )
    if bounds.max_age_ms is not None:
        findings.check(
            6,
            member.age_ms <= bounds.max_age_ms,
            f"consumed at an age of {member.age_ms} ms, the bound is {bounds.max_age_ms}",
            ids=ids,
            at=where,
        )


def _trained_from(facts: Facts, step: Step, index: int, member: TrainedMember) -> None:
    """Invariants 7 and 9: what a step consumed was gated, and its reward is the Trajectory's."""
    findings = facts.findings
    where = (at(LEARNER_STEPS.name, step.partition, step.offset),)
    gated = facts.outcomes.gated.get((member.partition, member.offset))
    findings.check(
        7,
        gated is not None and gated.episode_id == member.episode_id,
        f"no gated record of it at {member.partition}@{member.offset}",
        ids=(member.episode_id,),
        at=where,
    )
    sealed = facts.outcomes.trajectories.get(member.episode_id)
    findings.check(
        9,
        sealed is not None
        and sealed.reward is not None
        and abs(sealed.reward - member.reward) <= _TOLERANCE,
        f"trained with reward {member.reward}, its Trajectory says "
        f"{sealed.reward if sealed else 'nothing'}",
        ids=(member.episode_id,),
        at=where,
    )
    findings.check(
        8,
        sealed is None or bool(sealed.policy_digest) or not sealed.action_tokens,
        "trained from a Trajectory without a policy digest",
        ids=(member.episode_id,),
        at=where,
    )
    if facts.steps.closed:
        findings.check(
            7,
            facts.steps.survives(index),
            "trained in a step that no checkpoint of the closed run covers",
            ids=(member.episode_id,),
            at=where,
        )

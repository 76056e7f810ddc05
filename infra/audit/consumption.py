"""What the learner consumed, held against what was gated (invariants 6, 7, 8, 9 and 10)."""

from __future__ import annotations

from infra.audit.facts import Facts, Use, Whole
from infra.audit.payloads import rejected_in
from infra.audit.report import at
from schemas.topics import GATED, LEARNER_STEPS, PAYLOADS

_TOLERANCE = 1e-9


def consumption_is_sound(facts: Facts) -> None:
    """Check every use of a trajectory of these partitions."""
    ordinals = facts.steps.on_lineage()
    for uses in facts.uses.values():
        for use in uses:
            _consumed(facts, use, ordinals)
            _trained_from(facts, use)
    _restart_loses_nothing(facts)
    _lists_stand(facts)


def each_is_trained_once(whole: Whole) -> None:
    """Check that no trajectory stands in two steps of the lineage; needs no partition."""
    found: dict[str, list[Use]] = {}
    for uses in whole.uses.values():
        for episode, some in uses.items():
            found.setdefault(episode, []).extend(some)
    for episode, every in found.items():
        whole.findings.check(
            7,
            len(every) == 1,
            f"trained in {len(every)} steps of one lineage",
            ids=(episode,),
            at=tuple(_where(use)[0] for use in every),
        )


def _where(use: Use) -> tuple[str, ...]:
    return (at(LEARNER_STEPS.name, use.step.partition, use.step.offset),)


def _consumed(facts: Facts, use: Use, ordinals: dict[tuple[int, int], int]) -> None:
    """Count the lag again from the log, and hold both it and the age against the bounds."""
    findings, bounds, member = facts.findings, facts.whole.bounds, use.member
    ids, where = (member.episode_id,), _where(use)
    consuming = use.step.ordinal - 1
    versions = _versions(facts, member.episode_id)
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


def _versions(facts: Facts, episode: str) -> list[tuple[int, int]]:
    """Return the versions of an episode's action tokens: by the log, or where that was trimmed by
    the Trajectory that a recorded audit held against it.
    """
    sealed = facts.outcomes.trajectories.get(episode)
    if episode in facts.trimmed and sealed is not None:
        return sorted(sealed.versions)
    line = facts.tokens.by_episode.get(episode)
    return [version[1:] for version in line.versions] if line else []


def _trained_from(facts: Facts, use: Use) -> None:
    """What a step consumed was gated, and its reward is the Trajectory's."""
    findings, member, where = facts.findings, use.member, _where(use)
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
        sealed is None or not sealed.lacks,
        f"trained from a Trajectory without {sealed.lacks if sealed else ''}",
        ids=(member.episode_id,),
        at=where,
    )
    if facts.steps.closed:
        findings.check(
            7,
            use.survives,
            "trained in a step that no checkpoint of the closed run covers",
            ids=(member.episode_id,),
            at=where,
        )


def _restart_loses_nothing(facts: Facts) -> None:
    """A learner that starts now reads on from its newest checkpoint; whatever was gated before
    that position must have been trained up to there, or discarded.
    """
    depth, offset, positions = facts.steps.restart()
    where = at(LEARNER_STEPS.name, 0, offset)
    seen: set[str] = set()
    for (partition, place), gated in facts.outcomes.gated.items():
        if gated.episode_id in seen or partition not in positions:
            continue
        seen.add(gated.episode_id)
        if place >= positions[partition]:
            continue
        uses = facts.uses.get(gated.episode_id, [])
        facts.findings.check(
            10,
            any(use.step.ordinal <= depth for use in uses) or gated.episode_id in facts.whole.skips,
            f"a learner that restarts reads on at {partition}@{positions[partition]} and loses it",
            ids=(gated.episode_id,),
            at=(at(GATED.name, partition, place), where),
        )


def _lists_stand(facts: Facts) -> None:
    """The list of rejected tokens that a Step points at is there, and as long as the Step says."""
    for step in facts.steps.lineage:
        places = [(ref.partition, ref.offset) for ref in step.lists]
        if not places or places[0][0] not in facts.partitions:
            continue
        is_seen = facts.whole.was_audited(LEARNER_STEPS, step.partition, step.offset)
        if is_seen and any(facts.whole.is_gone(PAYLOADS, *place) for place in places):
            continue
        blob = b"".join(facts.payloads.lists.get(place, b"") for place in places)
        chunks = [facts.payloads.chunks.get(place) for place in places]
        is_there = all(
            chunk is not None and (chunk.length, chunk.crc32c) == (ref.length, ref.crc32c)
            for chunk, ref in zip(chunks, step.lists, strict=True)
        )
        where = (
            at(LEARNER_STEPS.name, step.partition, step.offset),
            *(at(PAYLOADS.name, *place) for place in places),
        )
        if facts.findings.check(
            10, is_there, "the list that the Step points at is missing or another", at=where
        ):
            found = rejected_in(blob)
            facts.findings.check(
                5,
                found == step.rejected,
                f"the Step says {step.rejected} tokens below and above the band, its list {found}",
                at=where,
            )

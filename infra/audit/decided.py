"""Groups, decisions and gated records, held against one another (invariants 4, 5 and 6)."""

from __future__ import annotations

from infra.audit.facts import Facts
from infra.audit.outcomes import Decided
from infra.audit.report import at
from schemas.enums import Purpose
from schemas.partition import partition_of
from schemas.topics import EPISODES, GATE_DECISIONS, GATED


def groups_are_whole(facts: Facts, partitions: int) -> None:
    """Check that every group was offered, stands in its partition, and is as large as it says."""
    for group, members in facts.lives.groups.items():
        first = facts.lives.by_id[members[0]]
        where = (at(EPISODES.name, first.partition, first.issued_offset),)
        facts.findings.check(
            5,
            group in facts.whole.groups_offered,
            "issued, and no task offers the group",
            ids=(group,),
            at=where,
        )
        facts.findings.check(
            4,
            first.partition == partition_of(group, partitions),
            f"a group stands in partition {first.partition}, which is not its own",
            ids=(group,),
            at=where,
        )
        if group in facts.outcomes.decisions:
            facts.findings.check(
                4,
                len(members) == first.group_size,
                f"decided with {len(members)} members issued of {first.group_size}",
                ids=(group,),
                at=where,
            )


def decisions_rest_on_first_records(facts: Facts) -> None:
    """Check decisions and gated records."""
    for group, decided in facts.outcomes.decisions.items():
        members = facts.lives.groups.get(group)
        if members is not None:
            where = (at(GATE_DECISIONS.name, decided.partition, decided.offset),)
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
        facts.findings.check(
            6,
            min(member.lag_steps, member.age_ms) >= 0,
            f"decided at lag {member.lag_steps}, age {member.age_ms} ms",
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

"""The checks that compare topics with one another (design section 16)."""

from __future__ import annotations

from infra.audit.consumption import consumption_is_sound, each_is_trained_once
from infra.audit.decided import decisions_rest_on_first_records, groups_are_whole
from infra.audit.facts import Facts, Whole
from infra.audit.holders import leases_have_one_process
from infra.audit.report import at
from infra.audit.sealed import trajectories_say_what_the_log_says
from schemas.topics import EPISODES, LEARNER_STEPS, POLICIES, TOKENS, TOOL_EVENTS


def check_partitions(facts: Facts, partitions: int) -> None:
    """Check everything that needs more than one record of these partitions, of so many in all."""
    facts.findings.checked[2] += facts.tokens.checked
    exposed_is_committed(facts)
    leases_have_one_process(facts)
    episodes_say_what_the_log_says(facts)
    trajectories_say_what_the_log_says(facts)
    groups_are_whole(facts, partitions)
    decisions_rest_on_first_records(facts)
    consumption_is_sound(facts)


def check_whole(whole: Whole, partitions: int) -> None:
    """Check what concerns the whole run, once every partition is read."""
    versions_are_registered(whole)
    each_is_trained_once(whole)
    strays = [p for p in whole.uses if not 0 <= p < partitions]
    for partition in strays:
        for episode in whole.uses[partition]:
            whole.findings.broken(
                7, f"trained from partition {partition}, which does not exist", ids=(episode,)
            )
    told, learner = whole.stream_counts, whole.steps.closed_counts
    whole.findings.check(
        5,
        not (told and learner)
        or all(learner.get(name, number) == number for name, number in told.items()),
        f"EndOfStream says {told}, Closed says {learner}",
    )


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
        for end in life.ends if life.episode_id not in facts.trimmed else ():
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


def episodes_say_what_the_log_says(facts: Facts) -> None:
    """Invariants 2 and 10: the final Ended counts the accepted tokens, and no record lies below the
    floors from which whoever takes the episode over begins to read.
    """
    for life in facts.lives.by_id.values():
        if life.episode_id in facts.trimmed:
            continue
        line = facts.tokens.by_episode.get(life.episode_id)
        log = facts.calls.by_episode.get(life.episode_id)
        if life.final is not None:
            length = line.length if line else 0
            facts.findings.check(
                2,
                life.final.token_count == length,
                f"the Ended says {life.final.token_count} tokens, the log has {length}",
                ids=(life.episode_id,),
                at=(at(EPISODES.name, life.partition, life.final.offset),),
            )
        if life.floors is None:
            continue
        tokens, tools = life.floors
        for topic, first, floor in (
            (TOKENS.name, line.first if line else -1, tokens),
            (TOOL_EVENTS.name, log.first if log else -1, tools),
        ):
            facts.findings.check(
                10,
                first < 0 or first >= floor,
                f"its first record lies below the floor {floor} of its first lease",
                ids=(life.episode_id,),
                at=(at(topic, life.partition, first),),
            )


def versions_are_registered(whole: Whole) -> None:
    """Invariant 8, as far as it needs no Trajectory."""
    findings = whole.findings
    for version, (episode, place) in sorted(whole.versions_used.items()):
        text = f"{version[0]}/{version[1]}"
        digests = whole.policies.get(version, set())
        findings.check(
            8,
            len(digests) == 1,
            f"version {text} has {len(digests)} digests in the registry",
            ids=(episode,),
            at=(place,),
        )
        findings.check(
            8,
            whole.is_served(version),
            f"version {text} is named by no Step that counts",
            ids=(episode,),
            at=(place,),
        )
    for step in whole.steps.lineage:
        known = whole.policies.get(step.version)
        if known is None:
            continue
        text = f"{step.version[0]}/{step.version[1]}"
        places = (
            at(LEARNER_STEPS.name, step.partition, step.offset),
            at(POLICIES.name, *whole.registered[step.version][:2]),
        )
        findings.check(
            8,
            not step.digest or step.digest in known,
            f"Step {text} and the registry differ in the digest",
            at=places,
        )
        ordinal = whole.registered[step.version][2]
        findings.check(
            8,
            ordinal == step.ordinal,
            f"Step {text} is update {step.ordinal}, the registry says {ordinal}",
            at=places,
        )

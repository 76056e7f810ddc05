"""Faults that belong together: histories that single faults hit too seldom, drawn as a whole.

Half the seeds get one scene beside their single faults. A scene names a moment (a record that
lands) and what fails around it; which record, who, and for how long is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.topics import EPISODES, GATE_DECISIONS, GATED, LEARNER_STEPS, POLICIES
from tests.simulation.faults import WRITER, Ack, AckFault, AtRecord, Blow, Fault

_SHARE = 0.5
_RARE = 0.15
_DOWN_MS = (20, 200, 1_500, 4_000)


@dataclass(frozen=True, slots=True)
class Scene:
    """What fails, and what the run must be like for it to matter."""

    faults: tuple[Fault, ...] = ()
    steps_min: int = 0
    """Unit: steps."""
    size_min: int = 1
    """Members of a group. Unit: episodes."""


def draw_scene(seed: int, *, steps: int, roles: Sequence[str]) -> Scene:
    """Return the scene of a seed, or nothing. Its chance is its own: the single faults of a seed
    stay what they are.
    """
    chance = random.Random(f"scene {seed}")
    drawn = chance.random()
    if "learner-0" not in roles:
        # Rollouts alone: what concerns leases, and no steps.
        rollouts = (namesakes, leases_again, parted)
        return chance.choice(rollouts)(chance, steps) if drawn < _SHARE else Scene()
    if drawn >= _SHARE:
        is_rare = drawn < _SHARE + _RARE and "refresh-0" not in roles
        return issued_again(chance, steps) if is_rare else Scene()
    scenes: list[Callable[[random.Random, int], Scene]] = [
        late_copies,
        cut_short_at_the_end,
    ]
    if "refresh-0" in roles:
        scenes = [*scenes, refresh_in_a_rollback, refresh_in_a_rollback]
    else:
        scenes = [*scenes, leases_again, fenced_learner]
    return chance.choice(scenes)(chance, steps)


def late_copies(chance: random.Random, steps: int) -> Scene:  # noqa: ARG001
    """A `gated` record lands when its trajectory was handed over anew, trained, and lies below the
    committed input offset: its first copy was under way for long, or its gate stood still between
    the decision and it.
    """
    nth = chance.choice((0, 0, 1, 1, 2, 3))
    faults: list[Fault] = [
        AckFault(GATED.name, nth, Ack.UNKNOWN_LATE),
        AckFault(GATED.name, nth + 1, chance.choice((Ack.UNKNOWN_LATE, Ack.UNKNOWN_LOST))),
    ]
    if chance.random() < 0.5:
        for_ms = chance.choice((800, 1_500, 3_000, 6_000, 7_500))
        stands = AtRecord(GATE_DECISIONS.name, chance.choice((0, 1)), WRITER, Blow.ZOMBIE, for_ms)
        faults = [stands, *faults[chance.choice((0, 1, 2)) :]]
    if chance.random() < 0.3:
        faults.append(_down("checkpointed", 0, "learner-0", chance, LEARNER_STEPS.name))
    # The run must go on while a copy is under way, so that it could be trained.
    return Scene(tuple(faults), steps_min=6)


def leases_again(chance: random.Random, steps: int) -> Scene:  # noqa: ARG001
    """Leases are in the log twice, and their first environment dies meanwhile."""
    nth = chance.randrange(4)
    again: list[Fault] = [
        AckFault(EPISODES.name, nth + k, Ack.AGAIN, "leased") for k in range(chance.choice((1, 3)))
    ]
    return Scene((*again, _down("leased", nth, "environment-0", chance, EPISODES.name)))


def namesakes(chance: random.Random, steps: int) -> Scene:  # noqa: ARG001
    """An environment stands still in the middle of an attempt, is replaced, and comes back while
    its namesake takes leases, those of its own episodes among them; it may hear of the namesake
    later than of the leases, or never.
    """
    stands = AtRecord(
        EPISODES.name,
        chance.choice((0, 0, 1, 2)),
        "environment-0",
        chance.choice((Blow.ZOMBIE, Blow.DEAF)),
        chance.choice((500, 800, 1_100, 1_500, 2_500, 4_000)),
        "leased",
        chance.choice((0, 60, 200, 500)),
    )
    return Scene((stands,))


def parted(chance: random.Random, steps: int) -> Scene:  # noqa: ARG001
    """An environment and the worker that decodes for it go on together after both were replaced:
    what the one commits lies after the next attempt's Fence, the other hears of neither, and its
    clock still covers the lease.
    """
    nth = chance.randrange(3)
    after_ms = chance.choice((100, 200, 300, 500, 700))
    return Scene(
        (
            AtRecord(
                EPISODES.name,
                nth,
                "environment-0",
                Blow.DEAF,
                chance.choice((500, 700, 900, 1_100)),
                "leased",
                after_ms,
            ),
            AtRecord(
                EPISODES.name,
                nth,
                chance.choice(("inference-0", "inference-1")),
                chance.choice((Blow.STOP, Blow.ZOMBIE)),
                chance.choice((200, 500, 900)),
                "leased",
                after_ms + chance.choice((0, 60, 150)),
            ),
        )
    )


def fenced_learner(chance: random.Random, steps: int) -> Scene:
    """A learner stands still while it trains, is replaced, and goes on without having heard of its
    successor: its Step lands under the lower epoch, between the records of the higher one.
    """
    # A batch of two was admitted just before it: then it trains, or soon will.
    topic, kind, nth = GATED.name, "", 2 * chance.randrange(steps) + chance.choice((1, 1, 3))
    after_ms = chance.choice((60, 100, 140, 180, 240))
    if chance.random() < 0.3:
        topic, kind, nth = LEARNER_STEPS.name, "step", chance.randrange(max(1, steps - 1))
        after_ms = chance.choice((0, 60, 100, 200))
    for_ms = chance.choice((300, 400, 500, 900, 1_500, 3_000))
    stands = AtRecord(topic, nth, "learner-0", Blow.DEAF, for_ms, kind, after_ms)
    return Scene((stands,))


def issued_again(chance: random.Random, steps: int) -> Scene:  # noqa: ARG001
    """An Issued stands twice in the log, seconds apart; a group issued between the two waits for
    its second member when the first is finished, and the gate of their partition is replaced.
    """
    again = AckFault(EPISODES.name, chance.randrange(4), Ack.AGAIN, "issued")
    waits = AckFault(EPISODES.name, chance.choice((0, 1, 2)), Ack.UNKNOWN_LOST, "ended")
    goes = AtRecord(
        GATE_DECISIONS.name,
        0,
        WRITER,
        chance.choice((Blow.KILL, Blow.STOP, Blow.EXPEL)),
        chance.choice(_DOWN_MS),
        "",
        chance.choice((1_500, 2_500, 4_000)),
    )
    return Scene((again, waits, goes), steps_min=4, size_min=2)


def cut_short_at_the_end(chance: random.Random, steps: int) -> Scene:
    """Of the last groups one member's Issued is lost, or their scheduler dies while it writes
    them.
    """
    if chance.random() < 0.6:
        last = 2 * (steps + 2) - chance.choice((1, 1, 2, 3))
        fate = chance.choice((Ack.UNKNOWN_LOST, Ack.UNKNOWN_LOST, Ack.UNKNOWN_LATE))
        return Scene((AckFault(EPISODES.name, last, fate, "issued"),))
    dies = _down(
        "step", steps - 1, chance.choice(("scheduler-0", "scheduler-1")), chance, LEARNER_STEPS.name
    )
    return Scene((dies,))


def refresh_in_a_rollback(chance: random.Random, steps: int) -> Scene:
    """The learner dies between the publication of a version and its checkpoint, and again once it
    has restored an older one; the coordinator or a worker comes back in between.
    """
    nth = chance.randrange(steps)
    faults: list[Fault] = [
        _down("", nth, "learner-0", chance, POLICIES.name),
        AtRecord(
            LEARNER_STEPS.name,
            chance.choice((1, 1, 2)),
            "learner-0",
            chance.choice((Blow.KILL, Blow.PAUSE)),
            chance.choice((1_500, 4_000, 9_000)),
            "restored",
        ),
    ]
    if chance.random() < 0.7:
        faults.append(_down("", nth, "refresh-0", chance, POLICIES.name))
    if chance.random() < 0.7:
        worker = chance.choice(("inference-0", "inference-1"))
        faults.append(_down("restored", 1, worker, chance, LEARNER_STEPS.name))
    return Scene(tuple(faults))


def _down(kind: str, nth: int, who: str, chance: random.Random, topic: str) -> AtRecord:
    """A process is killed soon after a record landed."""
    after_ms = chance.choice((0, 0, 10, 60, 200))
    return AtRecord(topic, nth, who, Blow.KILL, chance.choice(_DOWN_MS), kind, after_ms)

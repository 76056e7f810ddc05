"""Protocol rules broken on purpose, one at a time, to see that the simulation notices.

Each mutant patches the real code while a history runs; the product knows nothing of it. `find`
plays seeds in order until one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import environments.core.episode
import environments.core.episode_tools
import inference.refresh
import inference.wal_writer
import learner.core.consume
from environments.core.attempts import Attempts
from environments.core.tool_calls import AskByKey, GiveUp
from environments.hands import Hands
from environments.tool_log import ToolLogShell
from inference.wal_stream import EpisodeStream
from learner.core.consume import Consumption
from schemas.ports import Acked
from schemas.rules.episodes import EpisodeLife, SchedulerFences
from schemas.rules.lineage import LearnerLog
from schemas.rules.wal import EpisodeWal
from stream_jobs.core.assembly import AssemblerPartition
from stream_jobs.core.gate import GatePartition
from stream_jobs.core.issue import _Look
from stream_jobs.gate import Gate
from stream_jobs.leadership import Leadership
from tests.simulation import broken_judging, broken_rollout, producing
from tests.simulation.history import Case, Played, Profile, case_of, play
from tests.simulation.learning import SimLearner


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is left out."""

    name: str
    rule: str
    """What the rule says, with its section of the design."""
    profile: Profile
    put: Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was caught."""

    mutant: Mutant
    histories: int
    case: Case | None
    """The case that failed; None when none did."""
    played: Played | None


@contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Leave the rule out."""
    with ExitStack() as stack:
        mutant.put(stack)
        yield


def find(mutant: Mutant, *, seeds_max: int) -> Found:
    """Play seeds from 0 until one fails, at most `seeds_max`."""
    with broken(mutant):
        for seed in range(seeds_max):
            case = case_of(seed, mutant.profile)
            played = play(case)
            if played.violations:
                return Found(mutant, seed + 1, case, played)
    return Found(mutant, seeds_max, None, None)


def _put(target: Any, name: str, value: Any) -> Callable[[ExitStack], None]:
    return lambda stack: stack.enter_context(mock.patch.object(target, name, value))


T, J, W = Profile.TOKENS, Profile.JUDGING, Profile.WHOLE
MUTANTS: tuple[Mutant, ...] = (
    Mutant("no fence read", "a new writer reads up to its Fence (5)", T,
           _put(inference.wal_writer, "read_prefix", broken_rollout.no_fence_read)),
    Mutant("expose before ack", "released only after the acknowledgement (5)", T,
           _put(EpisodeStream, "_add", broken_rollout.expose_before_ack)),
    Mutant("a worker takes a fence number itself", "the environment alone names numbers (5)", T,
           broken_rollout.put_takes_a_number),
    Mutant("an environment accepts lower answers", "other pairs are refused (5)", T,
           _put(environments.core.episode, "_is_refused", lambda *_: None)),
    Mutant("WAL fenced before the tools", "the tool log is fenced first (6)", T,
           _put(Hands, "obey", broken_rollout.wal_first)),
    Mutant("Intent not read back", "an external tool runs after its Intent was read back (6)", T,
           _put(ToolLogShell, "is_clear", broken_rollout.clear)),
    Mutant("acknowledged without an offset counts", "only an offset is proof (5)", T,
           _put(producing, "told_without_offset", Acked)),
    Mutant("blind re-produce", "UNKNOWN is settled by a fence only (5)", T,
           _put(EpisodeStream, "_settle", broken_rollout.produces_again)),
    Mutant("accept a lower WAL fence", "an equal or lower Fence is void (5)", T,
           _put(EpisodeWal, "_take_fence", broken_rollout.any_fence)),
    Mutant("a call with only an Intent runs again", "it is given up, as Unknown (6)", T,
           _put(environments.core.episode_tools, "plan", broken_rollout.runs_again(GiveUp))),
    Mutant("a call that can be asked for runs again", "the tool is asked by key (6)", T,
           _put(environments.core.episode_tools, "plan", broken_rollout.runs_again(AskByKey))),
    Mutant("a lease is any process's of its worker", "a lease is for one process (9)", T,
           _put(Attempts, "_is_ours", broken_rollout.any_process)),
    Mutant("a doubled lease is run again", "an attempt is begun once (7)", T,
           _put(Attempts, "take", broken_rollout.forgets_attempts)),
    Mutant("accept a lease of a lower attempt", "attempts rise (7)", J,
           _put(EpisodeLife, "_begin_lease", broken_rollout.any_lease)),
    Mutant("any scheduler counts", "records of another fence are void (9)", J,
           _put(SchedulerFences, "_is_current", lambda *_: True)),
    Mutant("counters not re-seeded", "rebuilt from the topics (9)", J,
           _put(Leadership, "claim", broken_judging.counts_from_zero)),
    Mutant("issues while a learner restores", "v is not decided before Restored (10)", J,
           _put(LearnerLog, "is_restored", property(broken_judging.restored_once))),
    Mutant("a group cut short stays so in the drain", "groups are issued whole (9)", J,
           _put(_Look, "complete", broken_judging.completes_unless_draining)),
    Mutant("sealed before the tokens were read", "what Ended rests on is read first (8)", J,
           _put(AssemblerPartition, "ready", broken_judging.ready_early)),
    Mutant("assembler floors do not agree", "tokens at the oldest unsealed (8)", J,
           _put(AssemblerPartition, "floors", broken_judging.tokens_at_the_end)),
    Mutant("first decision not read back", "only what is read back is followed (8)", J,
           _put(Gate, "_decide", broken_judging.follows_its_own)),
    Mutant("gated only for own decisions", "whoever wrote it (8)", J,
           _put(GatePartition, "owed", broken_judging.only_its_own)),
    Mutant("gate floors do not agree", "episodes at the lowest open group (8)", J,
           _put(GatePartition, "floors", broken_judging.floors_at_the_end)),
    Mutant("a finished group is forgotten by its first Issued", "by its last one (8)", J,
           _put(GatePartition, "_issue", broken_judging.forgets_by_the_first_issued)),
    Mutant("no set of open groups", "a copy of a finished group is superseded (8)", J,
           _put(GatePartition, "take_trajectory", broken_judging.decides_copies)),
    Mutant("an input offset named too early", "gated names the committed one (8)", J,
           _put(Gate, "_gated", broken_judging.names_it_early)),
    Mutant("no W at the learner", "below W is a repeat (8)", J,
           _put(learner.core.consume._Partition, "has", broken_judging.no_w)),
    Mutant("a checkpoint holds the head's W", "W and taken at the position (8)", J,
           _put(Consumption, "to_state", broken_judging.saves_the_head)),
    Mutant("a checkpoint forgets the taken ids", "both are part of it (8)", J,
           _put(Consumption, "from_state", classmethod(broken_judging.forgets_taken))),
    Mutant("Checkpointed before its marker", "files, marker, record (10)", J,
           _put(SimLearner, "keep_files", broken_judging.record_first)),
    Mutant("PolicyVersion before its Step", "files, Step, PolicyVersion (10)", J,
           _put(SimLearner, "_append", broken_judging.announces_first)),
    Mutant("a fenced learner's records count", "lower epochs are void (10)", J,
           _put(LearnerLog, "_take", broken_judging.any_epoch)),
    Mutant("any announced version is served", "only by a Step that counts (10, 11)", W,
           _put(inference.refresh, "newest_servable", broken_judging.newest_announced)),
)  # fmt: skip

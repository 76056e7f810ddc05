"""How many tokens one assembler process takes in and seals a second, from commits of 64 tokens.

Decoding the commits, taking them, sealing the episodes and encoding payloads and trajectories are
measured; the broker is not. Prints a list of {name, value, unit, goal, conditions} as JSON:
`python -m benchmarks.assembler`.
"""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.codec import TOKENS_PER_COMMIT, commits
from benchmarks.figures import interval, median, row
from schemas.codec import Codec
from schemas.enums import (
    EpisodeEventKind,
    Purpose,
    StopCause,
    TokenKind,
    VerdictCode,
    VersionSwitch,
)
from schemas.ids import EpisodeId, GroupId, TaskId, Version, WorkerId
from schemas.packing import Span, crc32c, pack_spans
from schemas.records.episode_event import EpisodeEvent
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.verifier_result import VerifierResult
from schemas.topics import PAYLOADS, TOKENS, TRAJECTORIES
from stream_jobs.core.assembly import BESIDE, AssemblerPartition
from stream_jobs.core.floors import Floors
from stream_jobs.core.sealing import Sealed, SealRules, seal

GOAL = 2_000_000
COMMITS = 16
GROUP = 8
_DIGEST = "ab" * 32
REGISTRY = {Version(1, 7): _DIGEST}
"""The one version that the commits were sampled under, with its digest."""
_SCHEDULER = WorkerId("scheduler-0:a")


def _log(episodes: int) -> list[TokenCommit]:
    """Return the WAL of all episodes, interleaved: a Fence and full commits each."""
    raw = commits(episodes, COMMITS)
    out = [
        replace(one, kind=TokenKind.FENCE, seq=-1, start=0, count=0, token_ids=b"", logprobs=b"",
                spans=b"", sampling=b"", timing=b"", digests=" ".join((_DIGEST,) * 3), crc32c=0)
        for one in raw[:episodes]
    ]  # fmt: skip
    for one in raw:
        seq = one.seq - 1
        start = seq * TOKENS_PER_COMMIT
        spans = pack_spans([Span(start, start + TOKENS_PER_COMMIT, Version(1, 7))])
        crc = crc32c(one.token_ids, one.logprobs, spans)
        out.append(replace(one, seq=seq, start=start, spans=spans, crc32c=crc))
    return out


def _event(kind: EpisodeEventKind, commit: TokenCommit, **fields: Any) -> EpisodeEvent:
    return EpisodeEvent(
        run_id=commit.run_id, episode_id=commit.episode_id, group_id=commit.group_id, kind=kind,
        scheduler_epoch=1, scheduler_id=_SCHEDULER, at_us=1, **fields,
    )  # fmt: skip


def _issued(firsts: list[TokenCommit]) -> list[EpisodeEvent]:
    fence = replace(
        _event(EpisodeEventKind.SCHEDULER_FENCE, firsts[0], writer_id=_SCHEDULER),
        episode_id=EpisodeId(""), group_id=GroupId(""),
    )  # fmt: skip
    events = [fence]
    for commit in firsts:
        worker = WorkerId("environment-0")
        issued = _event(
            EpisodeEventKind.ISSUED, commit, group_size=GROUP, purpose=Purpose.TRAIN,
            writer_id=_SCHEDULER,
        )  # fmt: skip
        leased = _event(
            EpisodeEventKind.LEASED, commit, attempt=1, worker_id=worker, writer_id=_SCHEDULER
        )
        events += [issued, leased]
    return events


def _ended(core: AssemblerPartition, firsts: list[TokenCommit], offset: int, position: int) -> None:
    for place, commit in enumerate(firsts):
        core.take_episode(
            offset + place, 2,
            _event(EpisodeEventKind.ENDED, commit, attempt=1, stop_cause=StopCause.POLICY_STOP,
                   wal_position=position, writer_id=WorkerId("environment-0")),
        )  # fmt: skip
        core.take_verdict(
            place, 2,
            VerifierResult(
                run_id=commit.run_id, episode_id=commit.episode_id, group_id=commit.group_id,
                attempt=1, verifier_digest=_DIGEST, code=VerdictCode.CORRECT, reward=1.0,
                at_us=1, writer_id=WorkerId("verifier-0"),
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An assembler's partition with the episodes of a log issued, and what sealing them takes."""

    core: AssemblerPartition
    log: list[TokenCommit]
    firsts: list[TokenCommit]
    task: Task
    rules: SealRules
    issued: list[EpisodeEvent]
    """A SchedulerFence, then Issued and Leased of every episode."""

    def end(self) -> None:
        """End and judge every episode; what was taken of the log by then is sealed."""
        _ended(self.core, self.firsts, len(self.issued), len(self.log) - 1)

    def sealed(self) -> Iterator[Sealed]:
        """Seal what is ready."""
        for assembly in self.core.ready():
            yield seal(assembly, self.task, registry=REGISTRY, rules=self.rules, at_us=1)


def load(episodes: int) -> Loaded:
    """Return a partition that has issued this many episodes of 16 full commits each."""
    log = _log(episodes)
    firsts = log[:episodes]
    floors = Floors(offset=0, others={topic.name: 0 for topic in BESIDE})
    core = AssemblerPartition(floors, verdict_deadline_ms=1_000)
    rules = SealRules(
        run_id=firsts[0].run_id, worker_id=WorkerId("assembler-0"), fault_reward=0.0,
        switch=VersionSwitch.SPANNING,
    )  # fmt: skip
    task = Task(
        run_id=firsts[0].run_id, task_id=TaskId("t"), group_id=GroupId("g"), ordinal=0,
        purpose=Purpose.TRAIN,
        environment="bench", environment_digest=_DIGEST, verifier_digest=_DIGEST, at_us=1,
        writer_id=WorkerId("task-source-0"),
    )  # fmt: skip
    issued = _issued(firsts)
    for offset, event in enumerate(issued):
        core.take_episode(offset, 1, event)
    return Loaded(core=core, log=log, firsts=firsts, task=task, rules=rules, issued=issued)


def _round(codec: Codec, episodes: int) -> float:
    """Take, seal and encode every episode once; return tokens a second of processor time."""
    loaded = load(episodes)
    core = loaded.core
    frames = [codec.encode(TOKENS, one) for one in loaded.log]
    began = time.process_time()
    for offset, frame in enumerate(frames):
        core.take_commit(offset, codec.decode(TOKENS, frame))
    taken = time.process_time()
    loaded.end()
    resumed = time.process_time()
    count = 0
    for made in loaded.sealed():
        for chunk in made.chunks:
            codec.encode(PAYLOADS, chunk)
        codec.encode(TRAJECTORIES, made.placed([(0, place) for place in range(len(made.chunks))]))
        count += 1
    spent = (taken - began) + (time.process_time() - resumed)
    assert count == episodes
    return episodes * COMMITS * TOKENS_PER_COMMIT / spent


def run(*, rounds: int = 7, episodes: int = 500) -> list[dict[str, Any]]:
    """Measure; the value is the median round."""
    gc.set_threshold(100_000, 50, 100)  # as the assembler does
    codec = Codec.local()
    rates = [_round(codec, episodes) for _ in range(rounds)]
    low, high = interval(rates)
    conditions = (
        f"{episodes} episodes of {COMMITS} commits of {TOKENS_PER_COMMIT} tokens, decoded, sealed "
        f"and encoded, no broker, processor time of one {platform.machine()} core, median of "
        f"{rounds} rounds, 95 % interval {low:.0f} to {high:.0f}"
    )
    value = round(median(rates))
    return [row("assembler_tokens_per_s", value, unit="tokens/s", goal=GOAL, conditions=conditions)]


if __name__ == "__main__":
    print(json.dumps(run()))

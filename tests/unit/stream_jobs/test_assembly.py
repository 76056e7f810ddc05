"""One partition of the assembler, and the Trajectory it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas import topics
from schemas.codec import Codec
from schemas.enums import (
    CutReason,
    EpisodeEventKind,
    RewardSource,
    StopCause,
    Termination,
    TokenKind,
    VerdictCode,
    VersionSwitch,
)
from schemas.ids import EpisodeId, GroupId, Version, WorkerId
from schemas.packing import crc32c, pack_logprobs, unpack_heavy, unpack_ids, unpack_logprobs
from schemas.records.episode_event import EpisodeEvent
from schemas.records.token_commit import TokenCommit
from schemas.records.trajectory import Trajectory
from stream_jobs.core.assembly import BESIDE, AssemblerPartition
from stream_jobs.core.floors import Floors
from stream_jobs.core.sealing import Sealed, SealRules, seal
from tests.support.fake_rollout import DIGEST, RUN, WalWriter, digest_of, ended, task, verdict
from tests.unit.stream_jobs.scheduling import author
from tests.unit.stream_jobs.trajectories import abandoned, issued

RULES = SealRules(
    run_id=RUN,
    worker_id=WorkerId("assembler-0"),
    fault_reward=-1.0,
    switch=VersionSwitch.SPANNING,
)
BEGIN = Floors(offset=0, others={topic.name: 0 for topic in BESIDE})
REGISTRY = {Version(0, 0): digest_of(Version(0, 0)), Version(1, 1): digest_of(Version(1, 1))}
ID = EpisodeId("run-1.0.0")


def lease(ordinal: int = 0, member: int = 0, attempt: int = 1) -> EpisodeEvent:
    return replace(
        issued(ordinal, member),
        kind=EpisodeEventKind.LEASED,
        attempt=attempt,
        worker_id=WorkerId("environment-0"),
        task_frame=b"frame",
    )


class Logs:
    """A partition with the next offset of each of its topics."""

    def __init__(self, floors: Floors = BEGIN) -> None:
        self.core = AssemblerPartition(floors, verdict_deadline_ms=1_000)
        self.at = {topics.EPISODES.name: floors.offset, **floors.others}

    def _offset(self, topic: topics.Topic[Any]) -> int:
        self.at[topic.name] += 1
        return self.at[topic.name] - 1

    def episode(self, *events: EpisodeEvent) -> None:
        for event in events:
            self.core.take_episode(self._offset(topics.EPISODES), 5_000, event)

    def begin(self, ordinal: int = 0) -> None:
        if not self.at[topics.EPISODES.name]:
            self.episode(author(1).fence(at_us=1))
        self.episode(issued(ordinal), lease(ordinal))

    def tokens(self, *commits: TokenCommit) -> int:
        for commit in commits:
            self.core.take_commit(self._offset(topics.TOKENS), commit)
        return self.at[topics.TOKENS.name] - 1

    def end(
        self, position: int, ordinal: int = 0, cause: StopCause = StopCause.POLICY_STOP
    ) -> None:
        self.episode(ended(lease(ordinal), wal_position=position, cause=cause))

    def judge(self, ordinal: int = 0, reward: float = 1.0, attempt: int = 1) -> None:
        result = verdict(lease(ordinal, attempt=attempt), reward)
        self.core.take_verdict(self._offset(topics.VERDICTS), 6_000, result)

    def sealed(self, trajectory: Trajectory) -> None:
        self.core.take_trajectory(self._offset(topics.TRAJECTORIES), trajectory)

    def ready(self) -> list[EpisodeId]:
        return [one.episode_id for one in self.core.ready()]

    def seal(self) -> Sealed:
        (assembly,) = self.core.ready()
        return seal(assembly, task(), registry=REGISTRY, rules=RULES, at_us=9)


def writer(ordinal: int = 0) -> WalWriter:
    return WalWriter(
        episode_id=EpisodeId(f"run-1.{ordinal}.0"), group_id=GroupId(f"run-1.{ordinal}.g")
    )


def whole() -> tuple[Logs, int]:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(
        wal.fence(), wal.prompt(4), wal.action(3), wal.observation(2), wal.action(5, Version(1, 1))
    )
    return logs, position


def test_an_episode_is_sealed_with_its_verdict_and_all_that_explains_it() -> None:
    logs, position = whole()
    logs.end(position)
    assert logs.ready() == []
    logs.judge()
    sealed = logs.seal()
    found = sealed.trajectory
    assert (found.termination, found.reward) == (Termination.SUCCESS, 1.0)
    assert (found.tokens, found.action_tokens, found.prompt_tokens) == (14, 8, 4)
    spans = [(s.start, s.end, s.epoch, s.number) for s in found.spans]
    assert spans == [(4, 7, 0, 0), (9, 14, 1, 1)]
    assert (found.oldest_epoch, found.oldest_number) == (0, 0)
    assert found.policy_digest == digest_of(Version(0, 0))
    assert (found.tokenizer_digest, found.verifier_digest) == (DIGEST, DIGEST)
    assert (found.tokens_first, found.tokens_end) == (0, position)
    (chunk,) = sealed.chunks
    heavy = unpack_heavy(chunk.body)
    assert list(unpack_ids(heavy.token_ids)) == list(range(14))
    assert list(heavy.mask) == [0] * 4 + [1] * 3 + [0] * 2 + [1] * 5
    assert list(unpack_logprobs(heavy.logprobs)) == [0.0] * 4 + [-0.5] * 3 + [0.0] * 2 + [-0.5] * 5
    placed = sealed.placed([(2, 17)])
    assert (placed.chunks[0].offset, placed.chunks[0].crc32c) == (17, crc32c(chunk.body))


def test_what_the_control_plane_carries_does_not_grow_with_the_tokens() -> None:
    sizes = []
    for scale in (1, 100):
        logs = Logs()
        logs.begin()
        wal = writer()
        commits = [wal.fence(), wal.prompt(40), *(wal.action(64) for _ in range(2 * scale))]
        logs.end(logs.tokens(*commits))
        logs.judge()
        sealed = logs.seal()
        placed = sealed.placed([(0, 10**6)] * len(sealed.chunks))
        sizes.append(len(Codec.local().encode(topics.TRAJECTORIES, placed)))
    assert abs(sizes[1] - sizes[0]) <= 0.05 * sizes[0], sizes


def test_a_long_payload_is_cut_into_chunks_that_join_again() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(wal.fence(), *(wal.action(20_000) for _ in range(4)))
    logs.end(position)
    logs.judge()
    sealed = logs.seal()
    assert [len(chunk.body) for chunk in sealed.chunks] == [524_288, 16 + 9 * 80_000 - 524_288]
    joined = b"".join(chunk.body for chunk in sealed.chunks)
    assert sealed.trajectory.payload_crc32c == crc32c(joined)
    assert unpack_heavy(joined).tokens == 80_000


def test_tokens_after_the_position_that_ended_rests_on_are_superseded() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(wal.fence(), wal.prompt(2), wal.action(3))
    logs.tokens(wal.action(6))
    logs.end(position)
    logs.judge()
    found = logs.seal().trajectory
    assert (found.tokens, found.action_tokens, found.superseded_tokens) == (5, 3, 6)


def test_a_fork_keeps_the_cut_tokens_as_a_masked_sibling() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    commits = [wal.fence(), wal.prompt(2), wal.action(4)]
    cut = replace(
        commits[-1], kind=TokenKind.CUT, seq=2, start=3, count=0, token_ids=b"", logprobs=b"",
        spans=b"", cut_reason=CutReason.FORK, crc32c=0,
    )  # fmt: skip
    wal.seq, wal.length = 3, 3
    position = logs.tokens(*commits, cut, wal.action(2, Version(1, 1)))
    logs.end(position)
    logs.judge()
    found = logs.seal().trajectory
    assert (found.tokens, found.action_tokens) == (5, 3)
    assert found.masked == {"sibling_branch": 3}
    assert [(s.start, s.end, s.number) for s in found.spans] == [(2, 3, 0), (3, 5, 1)]


def _bad(action: TokenCommit, **fields: Any) -> TokenCommit:
    changed = replace(action, **fields)
    return replace(changed, crc32c=crc32c(changed.token_ids, changed.logprobs, changed.spans))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([-0.5, float("nan"), -0.5], "invalid_logprob: V4"),
        ([-0.5, float("inf"), -0.5], "invalid_logprob: V4"),
        ([-0.5, 0.25, -0.5], "invalid_logprob: V4"),
        ([float("-inf"), -0.5, -0.5], "invalid_logprob: V4"),
        ([-0.5, -0.5], "invalid_logprob: V5"),
    ],
)
def test_a_bad_logprob_leaves_no_reward_and_says_why(values: list[float], reason: str) -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(
        wal.fence(), wal.prompt(1), _bad(wal.action(3), logprobs=pack_logprobs(values))
    )
    logs.end(position)
    logs.judge()
    found = logs.seal().trajectory
    assert found.reward is None
    assert found.attribution.startswith(reason)


def test_spans_that_do_not_cover_the_action_tokens_are_an_invalid_record() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(wal.fence(), wal.prompt(1), _bad(wal.action(3), spans=b""))
    logs.end(position)
    logs.judge()
    assert logs.seal().trajectory.attribution.startswith("invalid_record: V9")


def test_an_older_version_after_a_newer_one_is_a_mismatch() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    position = logs.tokens(wal.fence(), wal.action(3, Version(1, 1)), wal.action(3))
    logs.end(position)
    logs.judge()
    assert logs.seal().trajectory.attribution.startswith("version_mismatch: V6")


def test_the_verdict_that_counts_is_the_first_of_the_final_attempt() -> None:
    logs, position = whole()
    logs.judge(reward=0.0, attempt=2)
    logs.judge(reward=1.0)
    logs.judge(reward=0.0)
    logs.end(position)
    assert logs.seal().trajectory.reward == 1.0


def test_a_verdict_by_another_verifier_is_not_trusted() -> None:
    logs, position = whole()
    logs.judge()
    logs.end(position)
    (assembly,) = logs.core.ready()
    other = task(verifier_digest="12" * 32)
    found = seal(assembly, other, registry=REGISTRY, rules=RULES, at_us=9).trajectory
    assert (found.reward, found.attribution[:16]) == (None, "version_mismatch")


def test_without_a_verdict_an_episode_waits_for_its_deadline_and_a_read_past_it() -> None:
    logs, position = whole()
    logs.end(position)
    assert not logs.core.overdue(wall_ms=5_999)
    assert logs.core.overdue(wall_ms=6_000)
    logs.core.take_verdicts_end(1, sampled_ms=6_000)
    assert logs.ready() == []
    logs.core.skip(topics.VERDICTS.name, 0)
    assert logs.ready() == [ID]
    found = logs.seal().trajectory
    assert (found.reward, found.verdict_code) == (None, VerdictCode.NONE)


def test_a_fault_of_the_agent_needs_no_verdict() -> None:
    logs, position = whole()
    logs.end(position, cause=StopCause.AGENT_CAUSED_FAULT)
    found = logs.seal().trajectory
    assert (found.reward, found.reward_source) == (-1.0, RewardSource.ATTRIBUTION)


def test_an_episode_waits_for_the_tokens_that_its_ended_rests_on() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    commits = [wal.fence(), wal.prompt(1), wal.action(3)]
    logs.tokens(*commits[:2])
    logs.end(2)
    logs.judge()
    assert logs.ready() == []
    logs.tokens(commits[2])
    assert logs.ready() == [ID]


def test_tokens_may_be_read_before_their_issued() -> None:
    logs = Logs()
    logs.episode(author(1).fence(at_us=1))
    wal = writer()
    position = logs.tokens(wal.fence(), wal.action(3))
    logs.core.take_episodes_end(2)
    logs.begin()
    logs.core.take_episodes_end(3)
    logs.end(position)
    logs.judge()
    assert logs.seal().trajectory.action_tokens == 3


def test_tokens_of_an_episode_closed_below_the_floor_are_forgotten() -> None:
    logs = Logs(Floors(offset=5, others=BEGIN.others))
    wal = writer()
    logs.tokens(wal.fence(), wal.action(3))
    assert logs.core.floors().others[topics.TOKENS.name] == 0
    logs.core.take_episodes_end(5)
    assert not logs.core.has_strangers
    assert logs.core.floors().others[topics.TOKENS.name] == 2


def test_an_abandoned_episode_is_closed_and_its_tokens_are_late() -> None:
    logs, _ = whole()
    logs.episode(abandoned(0))
    assert logs.core.unsealed == 0
    logs.tokens(writer().fence())
    assert logs.core.late == 1


def test_the_first_trajectory_in_the_log_closes_the_episode_whoever_wrote_it() -> None:
    logs, position = whole()
    logs.end(position)
    logs.judge()
    logs.sealed(logs.seal().trajectory)
    assert (logs.ready(), logs.core.unsealed) == ([], 0)


def test_a_damaged_commit_ends_the_right_of_its_writer_and_nothing_else() -> None:
    logs = Logs()
    logs.begin()
    wal = writer()
    logs.tokens(wal.fence(), wal.prompt(2))
    lost = wal.action(3)
    logs.core.take_bad_commit(logs.at[topics.TOKENS.name], lost.episode_id)
    logs.at[topics.TOKENS.name] += 1
    position = logs.tokens(wal.action(4))
    logs.end(position)
    logs.judge()
    found = logs.seal().trajectory
    assert (found.tokens, found.superseded_tokens) == (2, 4)


def test_floors_hold_every_record_of_what_is_unsealed_and_know_what_is_sealed() -> None:
    logs = Logs()
    logs.begin(0)
    first = writer(0)
    logs.tokens(first.fence(), first.action(2))
    logs.begin(1)
    second = writer(1)
    position = logs.tokens(second.fence(), second.action(2))
    logs.end(position, ordinal=1)
    logs.judge(1)
    sealed = logs.seal().trajectory
    logs.sealed(sealed)
    floors = logs.core.floors()
    assert floors.offset == 1
    assert floors.fence == (1, author(1).scheduler_id)
    assert floors.others[topics.TOKENS.name] == 0
    assert floors.others[topics.TRAJECTORIES.name] == 0
    assert floors.others[topics.VERDICTS.name] == 1

    again = Logs(floors)
    again.at[topics.EPISODES.name] = 1
    again.sealed(sealed)
    again.episode(issued(0), lease(0), issued(1), lease(1))
    again.tokens(first.fence(), first.action(2))
    assert again.core.unsealed == 1
    assert again.core.floors().others[topics.TRAJECTORIES.name] == 0

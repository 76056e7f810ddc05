"""Validator rules, rejected-token lists, restore choice, end of stream, phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learner.core.rejected import RejectedIn, RejectedToken, pack_rejected, unpack_rejected
from learner.core.restore import Folder, Record, choose
from learner.core.run_state import RunControl, compare
from learner.core.validate import refuse_heavy, refuse_light
from learner.phases import Phases
from schemas.enums import ControlKind, DropReason, StopCause, Termination, VerdictCode
from schemas.errors import InvariantError, PoisonRecordError, SettingsError
from schemas.ids import EpisodeId, Version, WorkerId
from schemas.packing import HeavyFields
from schemas.records.control_event import ControlEvent
from schemas.records.parts import ChunkRef, PolicySpan, StepRef
from schemas.records.verifier_result import VerifierResult
from stream_jobs.core.outcome import outcome_of
from tests.support.gated_records import RUN, Rollout, heavy_of, trajectory_of

ROLLOUT = Rollout(
    ordinal=0, member=0, prompt=[7, 8], actions=[9, 10, 11], logprobs=[-1.0, -0.5, 0.0], reward=1.0
)
CHUNK = ChunkRef(partition=0, offset=0, length=1, crc32c=0)
GOOD = trajectory_of(ROLLOUT, group_size=4, chunks=[CHUNK])
HEAVY = heavy_of(ROLLOUT)


def span(start: int, end: int, number: int = 0, epoch: int = 0) -> PolicySpan:
    return PolicySpan(start=start, end=end, epoch=epoch, number=number)


def test_a_sound_trajectory_passes() -> None:
    assert refuse_light(GOOD) is None
    assert refuse_heavy(GOOD, HEAVY) is None


@pytest.mark.parametrize(
    ("change", "rule", "named"),
    [
        ({"tokenizer_digest": ""}, "V1", "tokenizer_digest"),
        ({"verifier_digest": "latest"}, "V1", "verifier_digest"),
        ({"policy_digest": "ab"}, "V1", "policy_digest"),
        ({"stop_cause": StopCause.BUDGET_TRUNCATION}, "V2", "budget_truncation"),
        ({"termination": Termination.BUDGET_TRUNCATION}, "V2", "policy_stop"),
        (
            {
                "stop_cause": StopCause.BUDGET_TRUNCATION,
                "termination": Termination.AGENT_CAUSED_FAULT,
            },
            "V2",
            "agent_caused_fault",
        ),
        ({"termination": Termination.ENVIRONMENT_ERROR}, "3.4", "environment_error"),
        ({"reward": None}, "3.4", "reward"),
        ({"reward": float("nan")}, "3.4", "nan"),
        ({"temperature": 0.0}, "R34", "temperature"),
        ({"spans": (span(2, 3), span(4, 5))}, "V9", "cover 2"),
        ({"spans": (span(2, 4), span(3, 5))}, "V9", "overlaps"),
        ({"spans": (span(2, 6),)}, "V9", "leaves"),
        ({"spans": (span(2, 3, 4), span(3, 5, 3))}, "V6", "follows"),
        ({"spans": (span(2, 5, -1),)}, "V8", "no version"),
        ({"oldest_number": 2}, "V9", "oldest"),
        ({"chunks": ()}, "V11", "chunks"),
    ],
)
def test_a_bad_light_field_is_refused_by_rule_and_name(
    change: dict[str, Any], rule: str, named: str
) -> None:
    refusal = refuse_light(replace(GOOD, **change))
    assert refusal is not None
    assert refusal.rule == rule
    assert named in refusal.message


def test_a_fault_of_the_agent_is_terminal_though_a_budget_cut_the_episode() -> None:
    outcome = outcome_of(
        StopCause.BUDGET_TRUNCATION,
        VerifierResult(
            run_id=RUN, episode_id=GOOD.episode_id, group_id=GOOD.group_id, attempt=1,
            verifier_digest="v", code=VerdictCode.TAMPER_DETECTED, at_us=1,
            writer_id=WorkerId("verifier-0"),
        ),
        fault_reward=0.0,
    )  # fmt: skip
    assembled = replace(
        GOOD,
        stop_cause=StopCause.BUDGET_TRUNCATION,
        termination=outcome.termination,
        reward=outcome.reward,
        reward_source=outcome.source,
    )
    assert outcome.termination is Termination.AGENT_CAUSED_FAULT
    assert refuse_light(assembled) is None


def heavy(ids: list[int], logprobs: list[float], mask: list[int]) -> HeavyFields:
    return HeavyFields(
        token_ids=np.array(ids, dtype="<i4").tobytes(),
        logprobs=np.array(logprobs, dtype="<f4").tobytes(),
        mask=bytes(mask),
    )


NONE = [0.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (heavy([7, 8, 9, 10], [*NONE, -1, -1], [0, 0, 1, 1]), DropReason.INVALID_RECORD),
        (heavy([7, 8, 9, 10, -1], [*NONE, -1, -1, -1], [0, 0, 1, 1, 1]), DropReason.INVALID_RECORD),
        (heavy([7, 8, 9, 10, 1], [*NONE, -1, -1, -1], [0, 1, 1, 1, 1]), DropReason.INVALID_RECORD),
        (heavy([7, 8, 9, 10, 1], [*NONE, -1, -1, -1], [0, 0, 1, 0, 1]), DropReason.INVALID_RECORD),
        (
            heavy([7, 8, 9, 10, 1], [*NONE, -1, float("nan"), -1], [0, 0, 1, 1, 1]),
            DropReason.INVALID_LOGPROB,
        ),
        (
            heavy([7, 8, 9, 10, 1], [*NONE, -1, 0.5, -1], [0, 0, 1, 1, 1]),
            DropReason.INVALID_LOGPROB,
        ),
        (heavy([7, 8, 9, 10, 1], [0, -1, -1, -1, 0], [0, 0, 1, 1, 1]), DropReason.INVALID_LOGPROB),
    ],
)
def test_bad_heavy_fields_are_refused_under_their_reason(
    fields: HeavyFields, reason: DropReason
) -> None:
    refusal = refuse_heavy(GOOD, fields)
    assert refusal is not None
    assert refusal.reason is reason


def test_a_rejected_list_comes_back_as_it_was_packed() -> None:
    lists = (
        RejectedIn(
            episode_id="e", task_id="t", environment="arithmetic", lag_steps=2,
            length_bucket="le_16", advantage_sign=-1,
            tokens=(
                RejectedToken(position=3, ratio=0.125, low=True),
                RejectedToken(position=9, ratio=8.0, low=False),
            ),
        ),
    )  # fmt: skip
    assert unpack_rejected(pack_rejected(lists)) == lists
    with pytest.raises(PoisonRecordError):
        unpack_rejected(b"other")


def folder(
    name: str, epoch: int, number: int, damage: str = "", chain: tuple[StepRef, ...] = ()
) -> Folder:
    return Folder(
        name=name, epoch=epoch, version=Version(epoch, number), ordinal=number, chain=chain,
        damage=damage,
    )  # fmt: skip


def restore(records: list[Record], folders: list[Folder], requested: str = "") -> Any:
    return choose(
        records=records, folders=folders, restored_epoch=1, counting_offsets=frozenset({5}),
        requested=requested,
    )  # fmt: skip


def test_without_candidates_the_starting_weights_are_restored() -> None:
    assert restore([], []).folder is None
    assert restore([], [folder("0-9-a", 0, 9)]).folder is None


def test_the_newest_recorded_or_marked_checkpoint_wins() -> None:
    recorded = Record(name="1-5-a", ordinal=5, offset=40)
    old, new = folder("1-5-a", 1, 5), folder("1-7-b", 1, 7)
    assert restore([recorded], [old]).record_offset == 40
    chosen = restore([recorded], [old, new])
    assert chosen.folder == new
    assert chosen.record_offset == -1
    assert [(ref.number, ref.offset) for ref in chosen.adopted] == [(7, -1)]


def test_steps_of_the_folder_that_do_not_count_yet_are_adopted() -> None:
    chain = (
        StepRef(epoch=1, number=6, ordinal=6, offset=5),
        StepRef(epoch=1, number=7, ordinal=7, offset=8),
    )
    chosen = restore([], [folder("1-7-b", 1, 7, chain=chain)])
    assert [ref.offset for ref in chosen.adopted] == [8, -1]


def test_a_damaged_or_missing_newest_checkpoint_refuses_the_start() -> None:
    recorded = [
        Record(name="1-5-a", ordinal=5, offset=40),
        Record(name="1-9-c", ordinal=9, offset=70),
    ]
    old = folder("1-5-a", 1, 5)
    with pytest.raises(SettingsError, match="missing"):
        restore(recorded, [old])
    with pytest.raises(SettingsError, match=r"model\.bin"):
        restore(recorded, [old, folder("1-9-c", 1, 9, damage="model.bin is missing")])
    assert restore(recorded, [old], requested="1-5-a").folder == old
    with pytest.raises(SettingsError, match="not on the lineage"):
        restore(recorded, [old], requested="other")


def control(kind: ControlKind, epoch: int = 1, **counts: int) -> ControlEvent:
    return ControlEvent(
        run_id=RUN, kind=kind, counts=counts, scheduler_epoch=epoch, scheduler_id=WorkerId("s"),
        at_us=1, writer_id=WorkerId("s"),
    )  # fmt: skip


def test_control_of_a_fenced_scheduler_does_not_count() -> None:
    state = RunControl()
    assert not state.take(control(ControlKind.DRAINING))
    state.take(control(ControlKind.SCHEDULER_FENCE))
    assert state.take(control(ControlKind.DRAINING))
    assert state.is_draining
    state.take(control(ControlKind.STOP))
    assert state.is_stopped
    state.take(control(ControlKind.START))
    assert not state.is_stopped


def test_a_wrong_end_count_is_refused_and_a_right_one_names_the_untrained() -> None:
    trained, skipped, waiting = {EpisodeId("a")}, {EpisodeId("b")}, {EpisodeId("c")}
    found = compare(
        control(ControlKind.END_OF_STREAM, admitted=3),
        trained=trained, skipped=skipped, waiting=waiting,
    )  # fmt: skip
    assert found.untrained == ("c",)
    assert found.counts["trained"] == found.counts["skipped"] == found.counts["run_ended"] == 1
    with pytest.raises(InvariantError, match="4 admitted"):
        compare(
            control(ControlKind.END_OF_STREAM, admitted=4),
            trained=trained, skipped=skipped, waiting=waiting,
        )  # fmt: skip


def test_phases_sum_to_the_step_to_the_microsecond() -> None:
    phases = Phases("wait", now_us=100)
    phases.enter("train", now_us=150)
    phases.enter("export", now_us=950)
    phases.split("train", {"forward": 300, "backward": 450, "optimiser": 9_999})
    taken = phases.take(now_us=1_000)
    assert sum(taken.values()) == 900
    assert taken == {
        "wait": 50, "train": 0, "export": 50, "forward": 300, "backward": 450, "optimiser": 50,
    }  # fmt: skip
    assert phases.take(now_us=1_010) == {"export": 10}

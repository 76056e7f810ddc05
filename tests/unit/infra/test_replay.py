"""The story of an episode holds every record of it, and says which count."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.replay import has_bytes, model_of, replay, to_json
from infra.story_view import print_story
from schemas.enums import (
    AbandonReason,
    CutReason,
    EpisodeEventKind,
    FinishReason,
    LearnerEventKind,
    TokenKind,
)
from schemas.errors import SettingsError
from schemas.ids import EpisodeId, WorkerId
from schemas.packing import Timing, pack_timing
from schemas.records.episode_event import EpisodeEvent
from schemas.records.learner_event import LearnerEvent
from schemas.records.task import Task
from schemas.records.token_commit import TokenCommit
from schemas.records.trajectory import Trajectory
from schemas.topics import TASKS, Topic
from tests.support.recorded_run import ABANDONED, DROPPED, RESUMED, TRAINED, RecordedRun
from tests.support.run_records import RUN


async def _story(episode: EpisodeId, change: Any = None) -> Any:
    bus = RecordedRun(change).write()
    return await replay(bus.consumers(), RUN, episode, codec=bus.codec)


async def test_the_story_of_a_trained_episode_goes_from_issue_to_step() -> None:
    story = await _story(RESUMED)
    kinds = [moment.kind for moment in story.moments]
    assert kinds.count("leased") == 2
    for kind in (
        "issued",
        "fence",
        "action",
        "intent",
        "result",
        "ended",
        "verdict",
        "decision",
        "step",
    ):
        assert kind in kinds
    tree = json.loads(json.dumps(to_json(story)))
    assert tree["attempts"] == 2
    assert tree["stop_cause"] == "policy_stop"
    assert tree["tokens"]["accepted"] == 13
    assert tree["tokens"]["sibling"] == 2
    assert [piece["count"] for piece in tree["main_line"]] == [4, 4, 2, 3]
    assert tree["tool_calls"][0]["exit_class"] == "ok"
    assert tree["verdict"]["code"] == "correct"
    assert tree["decision"]["outcome"] == "admit"
    assert tree["step"] == {"version": "1/1", "ordinal": 1, "survives": True}
    assert tree["trained"]["kept_tokens"] == 5
    action = next(c for c in tree["commits"] if c["kind"] == "action")
    assert len(action["token_ids"]) == len(action["logprobs"]) == 6
    assert action["versions"] == [{"start": 4, "end": 10, "version": "0/0"}]
    assert action["verdict"] == "accepted"
    assert "text" not in action


async def test_what_does_not_count_is_shown_and_marked() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        match record:
            case EpisodeEvent(kind=EpisodeEventKind.ENDED):
                return [record, dataclasses.replace(record, writer_id=WorkerId("zombie"))]
            case TokenCommit(kind=TokenKind.FENCE, attempt=2):
                late = dataclasses.replace(record, kind=TokenKind.PROMPT, attempt=1, seq=4)
                return [record, late]
            case Trajectory():
                return [record, record]
        return record

    story = await _story(RESUMED, change)
    void = [(m.topic, m.kind) for m in story.moments if not m.counts]
    assert sorted(void) == [
        ("episodes.v1", "ended"),
        ("tokens.v1", "prompt"),
        ("trajectories.v1", "trajectory"),
    ]


async def test_a_dropped_and_an_abandoned_episode_say_why() -> None:
    dropped = to_json(await _story(DROPPED))
    assert dropped["decision"]["reason"] == "lag"
    assert dropped["step"] is None
    abandoned = to_json(await _story(ABANDONED))
    assert abandoned["abandoned"] == "group_deadline"
    assert abandoned["verdict"] is None


async def test_a_quarantined_episode_shows_each_attempt_and_what_became_of_it() -> None:
    attempts = (
        "attempt 1 on environment-0: environment_error: the container [broke]",
        "attempt 2 on environment-1: lease_expired: last Progress at WAL 5",
    )
    evidence = "; ".join(("lease_expired 1 times in 2 attempts", *attempts))

    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is EpisodeEvent and record.kind is EpisodeEventKind.ABANDONED:
            return dataclasses.replace(
                record, abandon_reason=AbandonReason.POISONED_TASK, detail=evidence
            )
        return record

    story = await _story(ABANDONED, change)
    told = to_json(story)
    assert (told["abandoned"], told["evidence"]) == ("poisoned_task", evidence)
    out = io.StringIO()
    print_story(story, {}, console=Console(file=out, width=200))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    at = lines.index("abandoned: poisoned_task")
    assert lines[at + 2 : at + 4] == list(attempts)


async def test_a_step_of_a_lost_branch_did_not_train_it() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is LearnerEvent and record.kind is LearnerEventKind.CHECKPOINTED:
            again: dict[str, Any] = {"epoch": 2, "number": 0, "ordinal": 0}
            return [
                dataclasses.replace(record, kind=LearnerEventKind.EPOCH_STARTED, **again),
                dataclasses.replace(record, kind=LearnerEventKind.RESTORED, **again),
            ]
        return record

    story = await _story(TRAINED, change)
    assert story.step is None
    tree = to_json(story)
    assert tree["rolled_back"] == [{"version": "1/1", "ordinal": 1, "offset": 2}]
    step = next(m for m in tree["timeline"] if m["kind"] == "step")
    assert step["counts"] is False
    assert step["what"].endswith("rolled back")


async def test_every_token_says_where_it_stands_and_what_it_cost() -> None:
    tree = to_json(await _story(TRAINED))
    first, second = [c for c in tree["commits"] if c["kind"] == "action"]
    assert first["stands"] == ["main"] * 4 + ["sibling"] * 2
    assert second["stands"] == ["main"] * 3
    assert first["timing"] is None


async def test_a_turn_says_how_much_of_its_prompt_was_prefilled_and_how_much_reused() -> None:
    timing = Timing(
        requested_us=1, first_token_us=2, last_token_us=3, prefilled_tokens=7, reused_tokens=96
    )

    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is TokenCommit and record.kind is TokenKind.ACTION:
            return dataclasses.replace(
                record, timing=pack_timing(timing), finish_reason=FinishReason.STOP
            )
        return record

    story = await _story(TRAINED, change)
    told = [c["timing"] for c in to_json(story)["commits"] if c["kind"] == "action"]
    assert {(one["prefilled_tokens"], one["reused_tokens"]) for one in told} == {(7, 96)}
    out = io.StringIO()
    print_story(story, {}, console=Console(file=out, width=200))
    assert "7 prefilled, 96 reused" in out.getvalue()


async def test_a_restore_supersedes_what_it_takes_back() -> None:
    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is TokenCommit and record.kind is TokenKind.CUT:
            return dataclasses.replace(record, cut_reason=CutReason.RESTORE)
        return record

    tree = to_json(await _story(TRAINED, change))
    first = next(c for c in tree["commits"] if c["kind"] == "action")
    assert first["stands"] == ["main"] * 4 + ["superseded"] * 2


async def test_a_row_for_every_token_shows_its_log_prob_version_and_time() -> None:
    story = await _story(TRAINED)
    first = next(c for c in story.commits if c.record.kind is TokenKind.ACTION)
    out = io.StringIO()
    texts = {first.offset: ("he", "[b]", "llo", " ", "a", "b")}
    print_story(story, texts, console=Console(file=out, width=200), each_token=True)
    rows = [[cell.strip() for cell in line.split("│")] for line in out.getvalue().splitlines()]
    row = next(r for r in rows if len(r) == 11 and r[1] == "5")
    assert row[3:8] == ["'[b]'", "-0.5000", "0/0", "action", "main"]


def test_the_model_of_a_run_is_found_where_it_lies_here(tmp_path: Path) -> None:
    settings = json.dumps({"inference": {"model_path": str(tmp_path)}})
    assert model_of(settings) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert model_of(settings) == tmp_path
    assert model_of("") is None
    assert model_of("[]") is None


def test_tokens_are_bytes_only_where_the_scripted_engine_is_told_so() -> None:
    def settings(engine: str, *, told: bool) -> str:
        return json.dumps({"inference": {"engine": engine, "scripted": {"byte_tokenizer": told}}})

    assert has_bytes(settings("scripted", told=True))
    assert not has_bytes(settings("scripted", told=False))
    assert not has_bytes(settings("vllm", told=True))
    assert not has_bytes("")
    assert not has_bytes('{"inference": {"engine": "scripted"}}')


async def test_the_task_is_shown_when_its_frame_is_known() -> None:
    bus = RecordedRun().write()
    task = bus.records(TASKS)[0]

    def change(_: Topic[Any], record: Any) -> Any:
        if type(record) is EpisodeEvent and record.kind is EpisodeEventKind.LEASED:
            return dataclasses.replace(record, task_frame=bus.codec.encode(TASKS, task))
        return record

    story = await _story(TRAINED, change)
    assert type(story.task) is Task
    assert to_json(story)["task"]["environment"] == "counter"


async def test_an_unknown_episode_is_an_error_with_a_next_step() -> None:
    with pytest.raises(SettingsError, match=r"no record of run-1\.77\.0"):
        await _story(EpisodeId("run-1.77.0"))


async def test_the_printed_story_shows_texts_where_they_are_known() -> None:
    story = await _story(TRAINED)
    first = next(c for c in story.commits if c.record.kind is TokenKind.ACTION)
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_story(story, {first.offset: ("he", "[b]", "llo")}, console=console)
    text = out.getvalue()
    assert "he[b]llo" in text
    assert "trained by step 1/1, ordinal 1 (survives)" in text
    assert "version 0/0, mean log-prob -0.500" in text

"""Every task package: its gold check, its digests, its payloads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from environments import registry
from environments.ports import Gold, TaskPackage
from environments.transcripts import from_text, to_text
from schemas.enums import StopCause, VerdictCode
from schemas.errors import SettingsError
from tests.support.task_records import task_of

# Importing reasoning-gym takes seconds, so what needs it runs apart from the quick tests.
HEAVY = {"arithmetic", "reasoning_gym_any"}
LIGHT = [name for name in registry.names() if name != "reasoning_gym_any"]


def golds(name: str) -> list[Gold]:
    return list(registry.load(name).gold())


def check_gold(name: str) -> None:
    package = registry.load(name)
    found = golds(name)
    assert found, "a package needs at least one gold case"
    for gold in found:
        task = task_of(name, gold.payload)
        right = package.rubric.judge(task, gold.right)
        wrong = package.rubric.judge(task, gold.wrong)
        assert (right.code, right.reward) == (VerdictCode.CORRECT, 1.0)
        assert wrong.reward == 0.0
        assert wrong.code in (VerdictCode.WRONG_ANSWER, VerdictCode.INVALID_FORMAT)
        assert all(package.rubric.judge(task, gold.right) == right for _ in range(3))


@pytest.mark.parametrize("name", LIGHT)
def test_gold_scores_one_and_a_stated_wrong_answer_zero(name: str) -> None:
    check_gold(name)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_gold_scores_one_and_a_stated_wrong_answer_zero_for_any_dataset() -> None:
    check_gold("reasoning_gym_any")


@pytest.mark.parametrize("name", registry.names())
def test_the_digest_is_a_sha256_that_changes_with_the_configuration(name: str) -> None:
    package: TaskPackage = registry.load(name)
    assert len(package.digest()) == 64
    assert package.digest({"a": 1}) != package.digest() == package.digest({})
    assert package.verifier_digest() not in ("", package.digest())


@pytest.mark.parametrize("name", [name for name in LIGHT if name not in HEAVY])
def test_the_same_seed_and_index_give_the_same_payload(name: str) -> None:
    package = registry.load(name)
    texts = [package.payload(None, 5, index) for index in range(20)]
    assert texts == [package.payload({}, 5, index) for index in range(20)]
    assert all(isinstance(json.loads(text), dict) for text in texts)
    assert len({*texts, package.payload(None, 6, 0)}) > 1


@pytest.mark.parametrize("name", LIGHT)
def test_an_unknown_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match="nonsense"):
        registry.load(name).payload({"nonsense": 1}, 0, 0)


def test_an_unknown_task_names_its_nearest_neighbour() -> None:
    with pytest.raises(SettingsError, match="arithmetic"):
        registry.load("aritmetic")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_arithmetic_rubric_agrees_with_the_generators_own_scores() -> None:
    from environments.arithmetic.rubric import value_of
    from environments.arithmetic.task import DATASETS, _dataset

    for name in DATASETS:
        data = _dataset(name, 11)
        for index in range(200):
            item = data[index]
            assert data.score_answer(str(value_of(item["metadata"]["expression"])), item) == 1.0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_arithmetic_draws_sums_and_products_half_and_half() -> None:
    package = registry.load("arithmetic")
    payloads = [json.loads(package.payload(None, 3, index)) for index in range(40)]
    assert [payload["dataset"] for payload in payloads] == ["chain_sum", "products"] * 20
    assert "answer" not in payloads[0]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_unknown_dataset_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="no_such_dataset"):
        registry.load("reasoning_gym_any").payload({"dataset": "no_such_dataset"}, 0, 0)


def test_an_answer_that_was_cut_off_earns_nothing_though_its_number_is_right() -> None:
    gold = golds("arithmetic")[0]
    cut = replace(gold.right, stop_cause=StopCause.BUDGET_TRUNCATION)
    task = task_of("arithmetic", gold.payload)
    judgement = registry.load("arithmetic").rubric.judge(task, cut)
    assert judgement.reward == 0.0
    assert judgement.evidence == "the answer was cut off"


def test_a_transcript_that_is_too_long_keeps_its_last_message_longest() -> None:
    gold = golds("arithmetic")[0]
    last = gold.right.transcript[-1]
    messages = [replace(last, role="user", content="é" * 5000) for _ in range(8)] + [last]
    text = to_text(messages, bytes_max=10_000)
    assert len(text.encode()) <= 10_000
    back = from_text(text)
    assert len(back) == 9
    assert back[-1] == last
    assert "[... cut ...]" in back[0].content

"""What vLLM hands out becomes a delta whose log-probs are those of the sampled ids, or too few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.engine import EngineDelta
from inference.vllm_engine import VllmEngine
from schemas.packing import bad_logprob
from tests.support.inference_stand import inference_settings

IDS = (5, 6, 7, 8)


def row(token: int, value: float | None = None) -> dict[int, Any]:
    """One position: vLLM gives the log-prob of the id that was sampled there."""
    return {token: SimpleNamespace(logprob=-token / 10 if value is None else value)}


def delta_of(rows: list[dict[int, Any]] | None) -> EngineDelta:
    one = SimpleNamespace(
        token_ids=list(IDS), logprobs=rows, finish_reason=None, weight_versions=None
    )
    engine = VllmEngine(inference_settings(model_path="none"))
    return engine._delta(SimpleNamespace(outputs=[one], finished=False), 3, 0)


def test_each_sampled_id_has_the_log_prob_of_its_own_position() -> None:
    delta = delta_of([row(token) for token in IDS])
    assert delta.logprobs == (-0.5, -0.6, -0.7, -0.8)
    assert bad_logprob(delta.logprobs, len(IDS)) is None


@pytest.mark.parametrize(
    "rows",
    [
        [row(token) for token in (*IDS[1:], 9)],
        [row(token) for token in (4, *IDS[:-1])],
        [row(token) for token in (6, 5, 7, 8)],
        [row(token) for token in IDS[1:]],
        [row(token) for token in IDS[:-1]],
        [row(5), {}, row(7), row(8)],
        None,
    ],
    ids=["shifted", "shifted back", "swapped", "first lost", "last lost", "one empty", "none"],
)
def test_rows_of_other_positions_leave_too_few_log_probs_which_quarantines_the_call(
    rows: list[dict[int, Any]] | None,
) -> None:
    delta = delta_of(rows)
    assert bad_logprob(delta.logprobs, len(IDS)) is not None

"""What a version's probe says is what its model gives to each id after all before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.probe import score, write_probe
from schemas.probe import PROBE_NAME, parse_probe, probe_ids

VOCABULARY = 19


class Bigrams(torch.nn.Module):
    """Logits that depend on the last id alone, cut off as a causal model of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table_VV = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))
        self.config = SimpleNamespace(vocab_size=VOCABULARY)

    def forward(self, ids_BT: Any, *, logits_to_keep: int) -> Any:
        assert not self.training, "a probe is scored without dropout"
        return SimpleNamespace(logits=self.table_VV[ids_BT][:, -logits_to_keep:])


def expected(model: Bigrams, whole: list[int], at: int) -> float:
    return float(model.table_VV.detach().log_softmax(-1)[whole[at - 1], whole[at]])


def test_each_id_is_scored_after_the_one_before_it() -> None:
    model = Bigrams()
    model.train()
    found = score(model, [4, 9], [1, 1, 17], device="cpu")
    whole = [4, 9, 1, 1, 17]
    assert found == pytest.approx([expected(model, whole, at) for at in (2, 3, 4)], abs=1e-6)
    assert model.training, "it is left as it was"


def test_the_probe_of_a_folder_holds_the_ids_and_what_the_model_says_of_them(
    tmp_path: Path,
) -> None:
    model = Bigrams()
    write_probe(tmp_path, model, device="cpu")
    probe = parse_probe((tmp_path / PROBE_NAME).read_text())
    assert (probe.prompt_ids, probe.ids) == probe_ids(VOCABULARY)
    whole = [*probe.prompt_ids, *probe.ids]
    places = range(len(probe.prompt_ids), len(whole))
    assert probe.logprobs == pytest.approx([expected(model, whole, at) for at in places], abs=1e-6)

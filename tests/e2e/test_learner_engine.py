"""The engine on real DeepSpeed: packing changes nothing, two ranks are one, the loss moves the
weights right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from infra.setup.extensions import learner_environ
from infra.setup.places import find_places
from infra.setup.tiny_model import make_tiny_model
from learner.core.loss_registry import bind
from learner.packed import Member, pack_rows
from learner.policy import ActionPolicy
from learner.ranks import Ranks
from learner.segments import Segments
from learner.settings import LearnerSettings
from learner.weights import load_model, write_weights
from learner.work import SaveWork
from schemas.probe import PROBE_NAME, parse_probe
from tests.support.engine_suite import check_engine, train_work
from tests.support.gated_records import Rollout, heavy_of, random_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    kept = dict(os.environ)
    os.environ.update(learner_environ(find_places(os.environ)))
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", 0, warm_up_steps=0)


def member(index: int, rollout: Rollout, temperature: float = 0.8) -> Member:
    heavy = heavy_of(rollout)
    return Member(
        index=index,
        ids=np.frombuffer(heavy.token_ids, dtype="<i4"),
        logprobs=np.frombuffer(heavy.logprobs, dtype="<f4"),
        mask=np.frombuffer(heavy.mask, dtype=np.uint8),
        advantage=1.0,
        count=1.0,
        temperature=temperature,
    )


def test_a_shared_prefix_gives_the_log_probs_of_each_trajectory_alone(model: Path) -> None:
    rollouts = random_group(3, size=4)
    policy = ActionPolicy(load_model(model))
    together = pack_rows([[member(i, rollout) for i, rollout in enumerate(rollouts)]])
    logp, entropies = policy(together)
    causal = load_model(model)
    for index, rollout in enumerate(rollouts):
        ids = torch.tensor([[*rollout.prompt, *rollout.actions]])
        logits = causal(ids).logits[0, len(rollout.prompt) - 1 : -1].float() / 0.8
        expected = torch.log_softmax(logits, -1)
        sampled = expected.gather(1, torch.tensor(rollout.actions)[:, None])[:, 0]
        mine = torch.from_numpy(together.member_N == index)
        assert torch.allclose(logp[mine], sampled, atol=1e-5)
        entropy = -(expected.exp() * expected).sum(-1)
        assert torch.allclose(entropies[mine], entropy, atol=1e-4)


def test_a_tied_model_is_exported_with_exactly_the_tensors_it_was_read_from(
    model: Path, tmp_path: Path
) -> None:
    causal = load_model(model)
    write_weights(causal, tmp_path / "version")
    with safe_open(model / "model.safetensors", "pt") as before:
        expected = sorted(before.keys())
    with safe_open(tmp_path / "version" / "model.safetensors", "pt") as after:
        assert sorted(after.keys()) == expected
    again = load_model(tmp_path / "version")
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


def test_padding_and_row_order_do_not_change_the_log_probs(model: Path) -> None:
    rollouts = [random_group(ordinal, size=1)[0] for ordinal in range(4)]
    policy = ActionPolicy(load_model(model))
    rows = [[member(i, rollout)] for i, rollout in enumerate(rollouts)]
    tight, _ = policy(pack_rows(rows, pad_to=1))
    loose, _ = policy(pack_rows(rows, pad_to=64))
    assert torch.allclose(tight, loose, atol=1e-5)


async def three_steps(
    model: Path, folder: Path, ranks: int, denominator: str
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    settings = LearnerSettings.model_validate(
        {
            "model_path": str(model),
            "versions_dir": str(folder),
            "checkpoints_dir": str(folder),
            "threads": 1,
            "ranks": ranks,
            # What a processor does best may be bf16, whose sums depend on how rows are cut.
            "precision": "float32",
            "optimiser": {"learning_rate": 1e-3},
            "loss": {"parameters": {"low": 0.3, "high": 3.0}, "denominator": denominator},
        }
    )
    all_ranks = Ranks(settings, bind("dis", settings.loss.parameters))
    segments = Segments(f"ranks-{ranks}")
    told = []
    await all_ranks.start()
    try:
        for ordinal in range(1, 4):
            rollouts = [r for o in range(5) for r in random_group(o, seed=ordinal)]
            work = train_work(rollouts, segments, ranks, ordinal)
            results = await all_ranks.do(work)
            segments.release()
            loss = sum(result.loss_sum for result in results) / work.action_tokens
            told.append((loss, results[0].gradient_norm))
            for one in results:
                # One rank has nobody to talk to; of two each waits for the other in both.
                assert (one.reduce_s > 0, one.gather_s > 0) == (ranks > 1, ranks > 1)
                assert one.reduce_s < one.backward_s
                assert one.gather_s < one.optimiser_s
        weights = await all_ranks.call(
            lambda engine: {n: t.detach().clone() for n, t in engine.model.state_dict().items()}
        )
    finally:
        segments.release()
        await all_ranks.close()
    return told, weights


@pytest.mark.parametrize("denominator", ["action_tokens", "kept_tokens"])
async def test_two_ranks_give_the_losses_gradients_and_weights_of_one(
    model: Path, tmp_path: Path, denominator: str
) -> None:
    alone, weights_alone = await three_steps(model, tmp_path, 1, denominator)
    both, weights_both = await three_steps(model, tmp_path, 2, denominator)
    assert np.allclose(alone, both, rtol=1e-5, atol=1e-5)
    for name, tensor in weights_alone.items():
        assert torch.allclose(tensor, weights_both[name], atol=1e-5), name


async def test_the_real_engine_passes_the_suite_that_the_fake_one_passes(
    model: Path, tmp_path: Path
) -> None:
    settings = LearnerSettings.model_validate(
        {
            "model_path": str(model),
            "versions_dir": str(tmp_path),
            "checkpoints_dir": str(tmp_path),
            "threads": 1,
            "precision": "float32",
            "optimiser": {"learning_rate": 1e-3},
        }
    )
    ranks = Ranks(settings, bind("dis", {"low": 0.05, "high": 20.0}))
    await ranks.start()
    try:
        await check_engine(ranks, tmp_path)
        alone = load_model(model)
        prompts = [[5, 9, 200, 7], [11, 12]]
        await ranks.call(lambda engine: engine.model.load_state_dict(alone.state_dict()))
        found = await ranks.call(lambda engine: engine.logits(prompts))
        for prompt, row in zip(prompts, found, strict=True):
            expected = alone(torch.tensor([prompt])).logits[0, -1].detach().numpy()
            assert np.abs(row - expected).max() < 1e-5
        (tmp_path / "version").mkdir()
        await ranks.call(lambda engine: engine.export(tmp_path / "version"))
        probe = parse_probe((tmp_path / "version" / PROBE_NAME).read_text())
        logits = alone(torch.tensor([[*probe.prompt_ids, *probe.ids]])).logits[0].detach()
        before = logits[len(probe.prompt_ids) - 1 : -1].log_softmax(-1)
        given = before.gather(1, torch.tensor(probe.ids)[:, None])[:, 0].numpy()
        assert np.abs(np.array(probe.logprobs) - given).max() < 1e-4
        (tmp_path / "full" / "state").mkdir(parents=True)
        (tmp_path / "full" / "state" / "mp_rank_00_model_states.pt").symlink_to("/dev/full")
        with pytest.raises((OSError, RuntimeError)):
            await ranks.do(SaveWork(folder=str(tmp_path / "full")))
    finally:
        await ranks.close()

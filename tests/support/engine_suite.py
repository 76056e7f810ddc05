"""What every engine of a learner keeps, the real one and the one of eight numbers alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.core.packing import Item, pack
from learner.segments import Segments
from learner.work import LoadWork, MemberWork, MicroWork, SaveWork, TrainWork
from schemas.ids import episode_id, group_id
from schemas.packing import crc32c, pack_heavy
from tests.support.gated_records import RUN, Rollout, heavy_of, random_group

PROMPTS = ((5, 6, 7), (8, 9), (250, 3, 3, 17))


def train_work(
    rollouts: Sequence[Rollout], segments: Segments, ranks: int, ordinal: int
) -> TrainWork:
    items = [
        Item(
            episode_id=episode_id(RUN, rollout.ordinal, rollout.member),
            group_id=group_id(RUN, rollout.ordinal),
            tokens=len(rollout.prompt) + len(rollout.actions),
            prompt_tokens=len(rollout.prompt),
        )
        for rollout in rollouts
    ]
    plan = pack(
        items, chosen=range(len(items)), tokens_max=64, row_tokens_max=64, ranks=ranks, seed=ordinal
    )
    by_rank = []
    for batches in plan.by_rank:
        share = []
        for batch in batches:
            blobs = [pack_heavy(heavy_of(rollouts[i])) for i in batch.members]
            share.append(
                MicroWork(
                    segment=segments.put(blobs, [crc32c(b) for b in blobs]) if blobs else None,
                    rows=tuple(
                        tuple(
                            MemberWork(
                                index=i,
                                advantage=rollouts[i].reward - 0.5,
                                count=1.0,
                                temperature=1.0,
                            )
                            for i in row.members
                        )
                        for row in batch.rows
                    ),
                )
            )
        by_rank.append(tuple(share))
    tokens = float(sum(len(rollout.actions) for rollout in rollouts))
    return TrainWork(by_rank=tuple(by_rank), ordinal=ordinal, action_tokens=tokens)


async def check_engine(ranks: Any, folder: Path) -> None:
    """Check a started engine: a step moves the weights, an export tells them, and what was saved
    goes on bit for bit.
    """
    segments = Segments(f"suite-{folder.name[-8:]}")

    async def step(ordinal: int) -> tuple[float, float]:
        rollouts = [r for o in range(2) for r in random_group(o, seed=ordinal)]
        try:
            (result,) = await ranks.do(train_work(rollouts, segments, 1, ordinal))
        finally:
            segments.release()
        assert sum(part.member_N.size for part in result.tokens) == sum(
            len(rollout.actions) for rollout in rollouts
        )
        return result.loss_sum, result.gradient_norm

    async def exported(name: str) -> bytes:
        (folder / name).mkdir()
        await ranks.call(lambda engine: engine.export(folder / name))
        content: bytes = (folder / name / "model.safetensors").read_bytes()
        return content

    first = await ranks.call(lambda engine: engine.logits(PROMPTS))
    assert first.shape[0] == len(PROMPTS)
    assert first.dtype == np.float32
    assert np.isfinite(first).all()
    await step(1)
    moved = await ranks.call(lambda engine: engine.logits(PROMPTS))
    assert not np.array_equal(first, moved)
    await ranks.do(SaveWork(folder=str(folder / "saved")))
    saved = await exported("before")
    expected = [await step(2), await step(3)]
    after = await exported("after")
    assert after != saved
    await ranks.do(LoadWork(folder=str(folder / "saved")))
    again = await ranks.call(lambda engine: engine.logits(PROMPTS))
    assert np.array_equal(again, moved)
    assert await exported("restored") == saved
    assert [await step(2), await step(3)] == expected
    assert await exported("again") == after

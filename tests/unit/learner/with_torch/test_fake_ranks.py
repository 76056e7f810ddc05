"""The engine of eight numbers, which stands for the real one where learners are killed."""

from __future__ import annotations

from pathlib import Path

from learner.settings import LearnerSettings
from tests.support.engine_suite import check_engine
from tests.support.fake_ranks import FakeRanks


async def test_the_fake_engine_passes_the_suite_of_the_real_one(tmp_path: Path) -> None:
    settings = LearnerSettings(
        model_path="none", versions_dir=str(tmp_path), checkpoints_dir=str(tmp_path)
    )
    ranks = FakeRanks(settings)
    await ranks.start()
    await check_engine(ranks, tmp_path)

"""Measurements run at tiny sizes on a real broker and find nothing lost; figures are not looked
at.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks import episodes, trajectories, wal
from benchmarks.broker import own_broker
from tests.conftest import require_platform_parts


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_measurements_with_a_broker_finish_and_lose_no_episode(tmp_path: Path) -> None:
    require_platform_parts()
    with own_broker() as broker:
        rows = asyncio.run(wal.measure(broker, pairs=2, records=800, lone=10))
        rows += asyncio.run(trajectories.measure(broker.beside("path"), pairs=2, episodes=64))
        rows += asyncio.run(
            episodes.measure(
                broker.beside("load"), tmp_path / "run", concurrent=8, duration_s=3.0, episode_s=3.0
            )
        )
    found = {row["name"]: row["value"] for row in rows}
    assert found["episodes_lost"] == 0
    assert all(value > 0 for name, value in found.items() if name != "episodes_lost")
    assert found.keys() == {
        "wal_throughput_ratio", "commit_p99_ratio", "trajectories_ratio", "trajectories_per_s",
        "episodes_lost", "control_plane_gib",
    }  # fmt: skip

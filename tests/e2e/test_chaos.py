"""A small campaign of `sluice chaos` on real processes: a learner that dies at its edges, then the
run closes and its log holds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import LocalPlatform
from tests.support.command_line import call, with_topics

KILLS = 5
SETTINGS = {
    "run.steps": 20,
    "training.batch": 4,
    "training.group_size": 4,
    "training.eta": 2,
    "training.checkpoint_every": 1,
}

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(660)]


def test_a_run_whose_learner_dies_at_edges_closes_and_nothing_is_lost_or_trained_twice(
    local_platform: LocalPlatform, tmp_path: Path
) -> None:
    changes = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    done = call(
        with_topics(local_platform), "chaos", "examples/chaos.toml", "--runs", str(tmp_path),
        "--no-broker", "--json", "--act", "edge", "--role", "learner", "--kills", str(KILLS),
        "--every", "1", "--seed", "1", *changes, limit_s=540,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-3000:]}"
    told = json.loads(done.stdout)
    assert told["closed"]
    assert (told["violations"], told["committed_tokens_decoded_twice"]) == (0, 0)
    assert (told["run"]["steps"], told["run"]["pending"]) == (SETTINGS["run.steps"], 0)
    # Who was armed when enough had died dies still.
    assert told["kills_by_role"] == {"learner": told["kills"]}
    assert told["kills"] >= KILLS
    assert told["run"]["process_restarts"] >= KILLS
    # A learner that got on before it died comes from the mould; see DECISIONS 26.
    (folder,) = [path.parent for path in tmp_path.glob("*/start.json")]
    assert (folder / "logs" / "mould-learner.log").exists()

"""Whether the slowest stage is named, and the rate that it allows predicted: four runs, each with
one stage made slow.

Every run is `sluice run` on a broker of its own: real processes, the scripted engine, DeepSpeed
training a tiny model. Slow are in turn: decoding (`inference.scripted.tokens_per_s`), judging (the
counter task's `judge_delay_s`), training (a model of 20 million weights), loading weights
(`inference.scripted.load_ms`). Afterwards the tables of the run are asked. Looked at is the time
from the first update to the last, since a run of a minute is half start: how long each stage worked
in it, as the view `stage_busy` counts for whole runs, is the stage time of formula F1 (requirement
R11); what was trained over the longest of the four is the predicted rate, beside it the measured
one. `throughput` must name the same stage for the whole run, and the waits and phases of the
learner must sum to its wall time (`wait_check`).

`python -m benchmarks.bottlenecks [STAGE ...]` prints the rows, and every stage's time on stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.broker import Broker, own_broker
from benchmarks.figures import row

ROOT = Path(__file__).resolve().parents[1]
RATE_GOAL = 0.15
WAITS_GOAL = 0.02
_RUN_S = 300.0
_ASK_S = 60.0

_COMMON = """
[run]
name = "bottleneck-{stage}"
seed = 1
steps = {steps}
minutes_max = 4
drain_s = 2

[model]
path = "{model}"

[training]
batch = {batch}
group_size = 4
eta = 1
max_lag_steps = 8
checkpoint_every = 1000

[[task_source.streams]]
{stream}

[scheduler]
max_concurrent = {concurrent}

[verifier]
processes = 1

[inference]
engine = "scripted"

[inference.scripted]
byte_tokenizer = true
length_sigma = 0.1
{scripted}
"""
_SHORT = """environment = "digits"
config = {{ prompts = 1000000 }}
tokens_max = {0}
turn_tokens_max = {0}"""
_LARGER = "larger"
_TAKES: Mapping[str, Mapping[str, Any]] = {
    "rollout": {
        "steps": 9, "batch": 8, "concurrent": 4, "stream": _SHORT.format(64),
        "scripted": "tokens_per_s = 8.0\nlength_median_tokens = 24.0",
    },
    "verify": {
        "steps": 9, "batch": 8, "concurrent": 16,
        "stream": 'environment = "counter"\nconfig = { calls = 1, judge_delay_s = 0.8 }\n'
        "turn_tokens_max = 32",
        "scripted": "tokens_per_s = 200.0\nlength_median_tokens = 12.0",
    },
    "learn": {
        "steps": 9, "batch": 16, "concurrent": 32, "stream": _SHORT.format(96),
        "scripted": "tokens_per_s = 400.0\nlength_median_tokens = 80.0", "model": _LARGER,
    },
    "sync": {
        "steps": 7, "batch": 8, "concurrent": 16, "stream": _SHORT.format(32),
        "scripted": "tokens_per_s = 200.0\nlength_median_tokens = 12.0\nload_ms = 10000",
    },
}  # fmt: skip
"""What makes each stage the slowest."""

STAGES = tuple(_TAKES)

_WINDOW = """WITH
  (SELECT min(toUnixTimestamp64Micro(at)) FROM learner_events WHERE kind = 'step') AS low,
  (SELECT max(toUnixTimestamp64Micro(at)) FROM learner_events WHERE kind = 'step') AS high
"""
_BUSY = f"""{_WINDOW}
SELECT stage, avg(us) / 1000000 AS busy_s FROM (
  SELECT 'rollout' AS stage, worker,
    intervalLengthSum(greatest(began, low), least(ended, high)) AS us
  FROM episode_runs WHERE ended > low AND began < high GROUP BY worker
  UNION ALL
  SELECT 'verify', writer_id, intervalLengthSum(
    greatest(toUnixTimestamp64Micro(at) - duration_us, low),
    least(toUnixTimestamp64Micro(at), high))
  FROM verdicts
  WHERE toUnixTimestamp64Micro(at) > low AND toUnixTimestamp64Micro(at) - duration_us < high
  GROUP BY writer_id
  UNION ALL
  SELECT 'sync', worker_id, intervalLengthSum(
    greatest(toUnixTimestamp64Micro(at) - fetch_us - pause_us, low),
    least(toUnixTimestamp64Micro(at), high))
  FROM refreshes
  WHERE fetch_us + pause_us > 0 AND toUnixTimestamp64Micro(at) > low
    AND toUnixTimestamp64Micro(at) - fetch_us - pause_us < high
  GROUP BY worker_id
  UNION ALL
  SELECT 'learn', learner_id, toUInt64(sum(arraySum(mapValues(phases_us)) - phases_us['wait_batch']
    - phases_us['paused'] - phases_us['start']))
  FROM learner_events WHERE kind = 'step' AND toUnixTimestamp64Micro(at) > low GROUP BY learner_id
) GROUP BY stage"""
_TRAINED = f"""{_WINDOW}
SELECT (high - low) / 1000000 AS wall_s, uniqExact(episode_id) AS trajectories
FROM trained_members
WHERE ordinal > (SELECT min(ordinal) FROM learner_events WHERE kind = 'step')"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tables say of one run."""

    stage: str
    """The stage that was made slow."""
    busy_s: dict[str, float]
    """How long each stage worked between the first and the last update."""
    wall_s: float
    trajectories: int
    whole: str
    """The bottleneck that the view `throughput` names."""
    attributed: float
    """Waits and phases over wall time."""

    @property
    def stage_s(self) -> dict[str, float]:
        """Stage times: a worker that is being refreshed holds its episodes up."""
        return self.busy_s | {"rollout": self.busy_s["rollout"] - self.busy_s.get("sync", 0.0)}

    @property
    def named(self) -> str:
        """The stage that took longest."""
        return max(self.stage_s, key=lambda stage: self.stage_s[stage])

    @property
    def predicted_per_s(self) -> float:
        """Trajectories over the longest stage time."""
        return self.trajectories / max(self.stage_s.values())

    @property
    def measured_per_s(self) -> float:
        """Trajectories over the time in which they were trained."""
        return self.trajectories / self.wall_s

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return abs(self.predicted_per_s / self.measured_per_s - 1)


def settings_of(stage: str, larger: Path) -> str:
    """Return the settings file of the run in which this stage is slow.

    larger: folder of a model that takes seconds to train.
    """
    model = str(larger) if _TAKES[stage].get("model") == _LARGER else "tiny"
    return _COMMON.format(**{**_TAKES[stage], "stage": stage, "model": model})


def make_larger_model(folder: Path) -> Path:
    """Make a model of 20 million weights, drawn, with the tiny model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from infra.setup.tiny_model import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return folder


def run(*, stages: Sequence[str] = STAGES) -> list[dict[str, Any]]:
    """Make every stage slow in turn; takes about two minutes for each."""
    with own_broker() as broker, tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        _sluice(broker, "topics", "create")
        found = [_measure(broker, Path(folder), stage) for stage in stages]
    return table(found)


def table(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return the rows: stages named, the worst error of the rate and of the sum of waits."""
    said = "; ".join(
        f"slow {one.stage}: named {one.named} (whole run: {one.whole}), "
        f"{one.predicted_per_s:.2f}/s predicted, {one.measured_per_s:.2f}/s measured over "
        f"{one.wall_s:.0f} s, waits and phases {one.attributed:.4f} of wall time"
        for one in found
    )
    said = f"{os.cpu_count()} cores with broker, scripted engine, DeepSpeed on a tiny model; {said}"
    named = sum(one.stage == one.named == one.whole for one in found)
    rates = max(one.error for one in found)
    waits = max(abs(one.attributed - 1) for one in found)
    return [
        row("bottlenecks_named", named, unit="stages", goal=len(found), conditions=said),
        row("bottleneck_rate_error", round(rates, 3), unit="ratio", goal=RATE_GOAL,
            conditions=f"at most the goal; {said}"),
        row("waits_sum_error", round(waits, 4), unit="ratio", goal=WAITS_GOAL,
            conditions=f"at most the goal; {said}"),
    ]  # fmt: skip


def _measure(broker: Broker, folder: Path, stage: str) -> Found:
    settings = folder / f"{stage}.toml"
    larger = folder / _LARGER
    if stage == "learn":
        make_larger_model(larger)
    settings.write_text(settings_of(stage, larger))
    runs = folder / stage
    done = _sluice(broker, "run", str(settings), "--runs", str(runs), "--json")
    name = json.loads(done)["run_id"]

    def ask(statement: str) -> list[dict[str, Any]]:
        text = _sluice(broker, "sql", statement, "--run", name, "--runs", str(runs), "--json")
        rows: list[dict[str, Any]] = json.loads(text)
        return rows

    (trained,) = ask(_TRAINED)
    (whole,) = ask("SELECT bottleneck FROM throughput")
    (check,) = ask("SELECT attributed_ratio FROM wait_check")
    found = Found(
        stage=stage,
        busy_s={one["stage"]: float(one["busy_s"]) for one in ask(_BUSY)},
        wall_s=float(trained["wall_s"]),
        trajectories=int(trained["trajectories"]),
        whole=whole["bottleneck"],
        attributed=float(check["attributed_ratio"]),
    )
    print(found, file=sys.stderr)
    return found


def _sluice(broker: Broker, *arguments: str) -> str:
    """Return what a command printed; raise CalledProcessError when it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli", *arguments],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
        timeout=_RUN_S if arguments[0] == "run" else _ASK_S,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "SLUICE_BOOTSTRAP": broker.bootstrap,
            "SLUICE_REGISTRY": broker.registry,
        },
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(run(stages=sys.argv[1:] or STAGES), indent=2))

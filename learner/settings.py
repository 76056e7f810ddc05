"""Settings of the learner: frozen, read no environment, import nothing heavy.

`infra` hands in the values that several roles share (`batch`, `steps`, `max_lag_steps`,
`max_age_s`, `seed`).
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Precision(StrEnum):
    """Number format of the forward and backward pass; weights and optimiser state are float32 in
    any case.

    `auto` is bf16 autocast where the device multiplies bf16 in hardware, else float32: a CPU
    without such instructions emulates them at a tenth of the speed.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BF16_AUTOCAST = "bf16_autocast"


class Device(StrEnum):
    """Where the learner computes, and with which collectives."""

    CPU = "cpu"
    CUDA = "cuda"


class Schedule(StrEnum):
    """How the learning rate moves after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"


class LossSettings(BaseModel):
    """Which loss, and what its token mean divides by."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field("dis", description="Loss of the registry: dis, ppo_clip or cispo.")
    parameters: dict[str, float | str] = Field(
        default_factory=dict,
        description="Parameters of the loss, bounds as decimals: low = 0.2 and high = 4.0 for dis.",
    )
    denominator: str = Field(
        "action_tokens",
        pattern="^(action_tokens|kept_tokens)$",
        description="Token mean over action_tokens (rejected ones count as zeros) or kept_tokens.",
    )
    advantage_scaling: str = Field(
        "none",
        pattern="^(none|deviation)$",
        description="Divide the centred reward by the group's standard deviation, or not.",
    )
    single_baseline: float = Field(
        0.0, description="Baseline of tasks rolled out once, which have no siblings. Unit: reward."
    )
    measure_zero_advantage: bool = Field(
        False,
        description="Also run groups whose rewards agree through the model, to measure their "
        "ratios; they add no gradient and count as trained either way.",
    )


class OptimiserSettings(BaseModel):
    """AdamW and its schedule; defaults are those of the reference run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    learning_rate: float = Field(2e-5, gt=0, le=1, description="Peak learning rate. Unit: ratio.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment. Unit: ratio.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of the second moment. Unit: ratio.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Decoupled decay. Unit: ratio.")
    gradient_clip: float = Field(1.0, gt=0, description="Bound of the global gradient norm.")
    reset_on_publish: bool = Field(
        False, description="Forget the moments after each published version; off unless compared."
    )
    warmup_steps: int = Field(0, ge=0, description="Linear rise of the rate. Unit: updates.")
    schedule: Schedule = Field(
        Schedule.CONSTANT, description="constant, or linear down to 0 at the step budget."
    )


class LearnerSettings(BaseModel):
    """Everything the learner can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model_path: str = Field(description="Folder of the starting weights with its tokenizer.")
    versions_dir: str = Field(description="Folder of published versions, seen by all workers.")
    checkpoints_dir: str = Field(description="Folder of checkpoints.")
    batch: int = Field(
        64,
        ge=1,
        le=500,
        description="Size of one step; a Step names its trajectories itself, which its record "
        "holds for 500 at most. Unit: trajectories.",
    )
    steps: int = Field(
        20, ge=0, description="Budget: ordinal at which the run is over; 0: none. Unit: updates."
    )
    whole_groups: bool = Field(
        True, description="Prefer whole groups in a step; nothing ever waits for a group."
    )
    loss: LossSettings = Field(
        default_factory=lambda: LossSettings.model_validate({}), description="The loss."
    )
    optimiser: OptimiserSettings = Field(
        default_factory=lambda: OptimiserSettings.model_validate({}), description="The optimiser."
    )
    max_lag_steps: int = Field(
        4, ge=0, description="Bound of lag at consumption, inclusive. Unit: updates."
    )
    max_age_s: float = Field(
        600.0, gt=0, description="Bound of age at consumption, inclusive. Unit: s."
    )
    lag_rule: str = Field(
        "drop",
        pattern="^(drop|down_weight)$",
        description="Inside the bound: full weight, or lag_decay to the power of the lag.",
    )
    lag_decay: float = Field(
        1.0, gt=0, le=1, description="Weight per update of lag under down_weight. Unit: ratio."
    )
    publish_every: int = Field(1, ge=1, description="Steps between two versions. Unit: updates.")
    checkpoint_every: int = Field(
        5, ge=1, description="Steps between two checkpoints. Unit: updates."
    )
    checkpoints_kept: int = Field(2, ge=1, le=100, description="Newest checkpoints kept.")
    restore_from: str = Field(
        "", description="Name of an older checkpoint to start from; empty: the newest."
    )
    canary: bool = Field(
        True,
        description="Try a restored learner on fixed tasks before it trains on; a difference "
        "refuses the start.",
    )
    canary_tolerance: float = Field(
        1e-3, ge=0, description="Largest difference of two logits that passes. Unit: logits."
    )
    canary_s: float = Field(
        120.0, gt=0, description="Bound of making the canary's tasks at the start. Unit: s."
    )
    peak_tflops: float = Field(
        0.0,
        ge=0,
        description="What one rank's hardware can do in the precision in use, for mfu_ratio; "
        "0: unknown. Unit: 10^12 operations/s.",
    )
    device: Device = Field(Device.CPU, description="cpu (gloo) or cuda (NCCL).")
    precision: Precision = Field(
        Precision.AUTO,
        description="float32, bf16_autocast, or auto: what the device does best.",
    )
    ranks: int = Field(1, ge=1, le=1024, description="Processes of the learner on this host.")
    threads: int = Field(2, ge=1, le=256, description="Threads of each rank on a CPU.")
    micro_batch_tokens: int = Field(
        2048, ge=16, description="Tokens of one forward pass, padding included. Unit: tokens."
    )
    row_tokens_max: int = Field(
        512, ge=16, description="Tokens of one row, which members of a group share. Unit: tokens."
    )
    seed: int = Field(0, ge=0, description="Seed of every draw in the learner.")
    buffer_max: int = Field(
        4096,
        ge=1,
        description="Trajectories held back until they are consumed. Unit: trajectories.",
    )
    silence_s: float = Field(
        900.0,
        gt=0,
        description="No trajectory for so long is a fault, said by name. Unit: s.",
    )
    send_s: float = Field(60.0, gt=0, description="Bound of one acknowledgement. Unit: s.")
    fetch_s: float = Field(60.0, gt=0, description="Bound of one payload fetch. Unit: s.")
    start_s: float = Field(
        600.0, gt=0, description="Bound of reading the log at the start. Unit: s."
    )

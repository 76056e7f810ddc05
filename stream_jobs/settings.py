"""Settings of task source, scheduler, assembler and gate; those of the lag and age jobs and the
sink stand beside them.

Frozen, read no environment and import nothing heavy. Values that several roles share (`batch`,
`eta`, `group_size`, `max_lag_steps`, `max_age_s`, `steps`, `seed`) are handed to each by `infra`,
so that no two knobs disagree.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class StreamSettings(BaseModel):
    """One component of the task mixture."""

    model_config = _FROZEN
    environment: str = Field(min_length=1, description="Environment package that runs its tasks.")
    name: str = Field(
        default="",
        max_length=60,
        description="Name in records and reports; empty: the environment's.",
    )
    weight: int = Field(
        default=1, ge=1, le=1000, description="Exact share of the mixture, relative. Unit: tasks."
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Given to the environment package as it is."
    )
    tokens_max: int | None = Field(
        default=None,
        ge=1,
        description="Action tokens per episode; default: the package's. Unit: tokens.",
    )
    turn_tokens_max: int | None = Field(
        default=None,
        ge=1,
        description="Action tokens per turn; default: the package's. Unit: tokens.",
    )
    turns_max: int | None = Field(
        default=None, ge=1, description="Turns per episode; default: the package's. Unit: turns."
    )
    seconds_max: float | None = Field(
        default=None, gt=0, description="Wall clock per episode; default: the package's. Unit: s."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Sampling temperature; default: the package's. Unit: ratio.",
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Nucleus share; default: the package's. Unit: ratio."
    )
    top_k: int | None = Field(
        default=None, ge=0, description="Top-k, 0 is off; default: the package's. Unit: tokens."
    )

    @property
    def label(self) -> str:
        """Name in records and reports."""
        return self.name or self.environment


class TaskSourceSettings(BaseModel):
    """What work is offered, and how far ahead."""

    model_config = _FROZEN
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of the mixture and of every task."
    )
    group_size: int = Field(
        default=4, ge=1, le=4096, description="G, rollouts that share a baseline. Unit: episodes."
    )
    streams: tuple[StreamSettings, ...] = Field(
        min_length=1, max_length=64, description="Components of the mixture."
    )
    look_ahead_tasks: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Tasks offered and not yet issued, at most. Unit: tasks.",
    )
    evaluate_every: int = Field(
        default=0,
        ge=0,
        description="Every n-th task is held out for evaluation; 0: none. Unit: tasks.",
    )
    evaluate_group_size: int = Field(
        default=1, ge=1, le=64, description="Rollouts of an evaluation task. Unit: episodes."
    )
    held_out_first: int = Field(
        default=1_000_000_000, ge=1, lt=2**40,
        description="First index held out; training uses only indices below it. Unit: tasks.",
    )  # fmt: skip
    held_out_count: int = Field(
        default=64, ge=1, le=1_000_000, description="Held-out tasks per component. Unit: tasks."
    )
    poll_s: float = Field(
        default=0.2, gt=0, le=10, description="Wait for news in one look. Unit: s."
    )
    send_deadline_s: float = Field(
        default=60.0, gt=0, description="Longest wait for an acknowledgement. Unit: s."
    )

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        labels = [stream.label for stream in self.streams]
        if len(set(labels)) != len(labels):
            raise ValueError(f"two components of the mixture share a name: {sorted(labels)}")
        return self


class SchedulerSettings(BaseModel):
    """The admission bound, leases, retries and the end of the run."""

    model_config = _FROZEN
    batch: int = Field(
        default=64, ge=1, description="B, trajectories in one optimiser update. Unit: trajectories."
    )
    eta: int = Field(
        default=1, ge=0, description="Updates ahead that work is issued. Unit: updates."
    )
    group_size: int = Field(default=4, ge=1, description="G, rollouts in a group. Unit: episodes.")
    max_concurrent: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Episodes that hold a lease at once. Unit: episodes.",
    )
    steps: int = Field(default=20, ge=1, description="Budget of the run. Unit: updates.")
    drain_s: float = Field(
        default=10.0, ge=0, description="How long running episodes may finish at the end. Unit: s."
    )
    lease_ms: int = Field(default=60_000, ge=30_000, description="Length of a lease. Unit: ms.")
    request_deadline_s: float = Field(
        default=600.0, gt=0, description="How long waiting at the gateway extends a lease. Unit: s."
    )
    call_max_s: float = Field(
        default=3_600.0, gt=0, description="Longest announced call that extends a lease. Unit: s."
    )
    group_deadline_s: float = Field(
        default=3_600.0,
        gt=0,
        description="Members without a final Ended are abandoned then. Unit: s.",
    )
    environment_errors_max: int = Field(
        default=3,
        ge=0,
        description="Attempts that may end so before the episode is given up. Unit: times.",
    )
    infrastructure_errors_max: int = Field(
        default=5,
        ge=0,
        description="Attempts that may end so before the episode is given up. Unit: times.",
    )
    expired_leases_max: int = Field(
        default=4,
        ge=0,
        description="Leases that may expire before the task is quarantined. Unit: times.",
    )
    lost_workers_max: int = Field(
        default=10,
        ge=0,
        description="Workers that may die under it, then quarantine. Unit: times.",
    )
    retry_delay_s: float = Field(
        default=0.5, ge=0, description="Wait before the first retry; it doubles with each. Unit: s."
    )
    pause_iterations_max: int = Field(
        default=5,
        ge=1,
        description="A paused episode resumes within so many updates. Unit: updates.",
    )
    worker_gone_s: float = Field(
        default=20.0, gt=0, description="A worker not renewed for so long counts as gone. Unit: s."
    )
    partial_share: Decimal = Field(
        default=Decimal(1),
        gt=0,
        le=1,
        description="Share of a batch's episodes that ends it; the rest pauses; 1: off (F12).",
    )
    snapshot_s: float = Field(
        default=60.0,
        gt=0,
        description="Time between two snapshots, from which a restart reads on. Unit: s.",
    )
    closed_deadline_s: float = Field(
        default=600.0,
        gt=0,
        description="Longest wait for the learner's Closed at the end. Unit: s.",
    )
    end_deadline_s: float = Field(
        default=600.0, gt=0, description="Longest wait for the last decisions at the end. Unit: s."
    )
    stall_deadline_s: float = Field(
        default=1_800.0,
        gt=0,
        description="Standing still for so long, with work pending, is a fault. Unit: s.",
    )
    poll_s: float = Field(
        default=0.05, gt=0, le=1, description="Longest wait for news in one look. Unit: s."
    )
    bus_deadline_s: float = Field(
        default=60.0, gt=0, description="Longest wait for one answer of the bus. Unit: s."
    )

    @model_validator(mode="after")
    def _group_fits(self) -> Self:
        if self.group_size > (self.eta + 1) * self.batch:
            raise ValueError(
                f"a group of {self.group_size} can never be issued: it exceeds (eta + 1) * batch = "
                f"{(self.eta + 1) * self.batch}; lower group_size, or raise batch or eta"
            )
        if self.group_size > self.max_concurrent:
            raise ValueError(
                f"a group of {self.group_size} can never be issued: only {self.max_concurrent} "
                "episodes may run at once; raise max_concurrent"
            )
        if self.eta == 0 and self.batch % self.group_size:
            raise ValueError(
                f"with eta 0 no more than a batch is open, and groups of {self.group_size} never "
                f"fill {self.batch}; make batch a multiple of group_size, or raise eta"
            )
        return self


class AssemblerSettings(BaseModel):
    """How episodes are sealed."""

    model_config = _FROZEN
    verdict_deadline_s: float = Field(
        default=300.0, gt=0, description="Wait for a verdict after the final Ended. Unit: s."
    )
    fault_reward: float = Field(
        default=0.0,
        description="Reward of a fault that the agent caused, by attribution. Unit: reward.",
    )
    pinned: bool = Field(
        default=False, description="Refuse episodes that span policy versions (switch `pinned`)."
    )
    seals_max: int = Field(
        default=64, ge=1, le=1024, description="Episodes being written at once. Unit: episodes."
    )
    records_max: int = Field(
        default=2_000, ge=1, description="Records taken in one look. Unit: records."
    )
    commit_interval_s: float = Field(
        default=2.0, gt=0, description="Time between two commits of the floors. Unit: s."
    )
    poll_s: float = Field(default=0.05, gt=0, le=1, description="Longest wait for news. Unit: s.")
    bus_deadline_s: float = Field(
        default=60.0, gt=0, description="Longest wait for one answer of the bus. Unit: s."
    )


class GroupRule(StrEnum):
    """What becomes of a group some of whose members are not valid."""

    REPAIR = "repair"
    """More than half valid: repeat valid ones to fill the group; else drop it (F8)."""
    WHOLE = "whole"
    """All valid, or the group is dropped."""
    KEEP = "keep"
    """Valid members are admitted as they are."""


class LagWeight(StrEnum):
    """How a loss weight falls with lag inside the bound."""

    CONSTANT = "constant"
    """1 at every lag."""
    INVERSE = "inverse"
    """1 / (1 + rate * lag)."""
    EXPONENTIAL = "exponential"
    """exp(-rate * lag)."""


class GateSettings(BaseModel):
    """What the learner may see."""

    model_config = _FROZEN
    max_lag_steps: int = Field(
        default=4, ge=0, description="Largest lag, inclusive. Unit: updates."
    )
    max_age_s: float = Field(default=600.0, gt=0, description="Largest age, inclusive. Unit: s.")
    group_rule: GroupRule = Field(
        default=GroupRule.REPAIR,
        description="repair (F8), whole or keep: what becomes of broken groups.",
    )
    lag_weight: LagWeight = Field(
        default=LagWeight.CONSTANT, description="constant, inverse or exponential: weight by lag."
    )
    lag_weight_rate: float = Field(
        default=0.25, ge=0, description="How fast the weight falls. Unit: 1 per update."
    )
    records_max: int = Field(
        default=500, ge=1, description="Records taken in one look. Unit: records."
    )
    commit_interval_s: float = Field(
        default=2.0, gt=0, description="Time between two commits of the floors. Unit: s."
    )
    poll_s: float = Field(default=0.05, gt=0, le=1, description="Longest wait for news. Unit: s.")
    bus_deadline_s: float = Field(
        default=60.0, gt=0, description="Longest wait for one answer of the bus. Unit: s."
    )

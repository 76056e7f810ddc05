"""One optimiser step: from chosen trajectories to what the Step record says.

Metadata decides order and packing; heavy fields go from the bus into shared memory just before use,
are checked when they are read, and are released when the step is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from learner.core.advantage import Scaling, group_advantage
from learner.core.consume import Chosen
from learner.core.flops import step_operations
from learner.core.loss_registry import BoundLoss
from learner.core.packing import Item, MicroBatch, pack
from learner.core.step_record import Account, Tokens, Weighted, account
from learner.core.validate import Refusal, refuse_heavy
from learner.engine import RankResult, TokenResult
from learner.payloads import Lost, PayloadFetcher
from learner.phases import Phases
from learner.ranks import Ranks
from learner.segments import Segments
from learner.settings import LearnerSettings
from learner.work import MemberWork, MicroWork, TrainWork
from schemas.crash_points import CrashPoint, reach
from schemas.deadline import Deadline
from schemas.enums import DropReason
from schemas.errors import InvariantError, PoisonRecordError
from schemas.ids import EpisodeId
from schemas.packing import crc32c, unpack_heavy


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A chosen trajectory whose heavy fields cannot be trained."""

    chosen: Chosen
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one optimiser step did."""

    account: Account
    loss: float
    """Token mean over all ranks."""
    gradient_norm: float
    learning_rate: float
    computed_tokens: int
    """Tokens run through the model, padding included. Unit: tokens."""
    bytes_shared: int
    """Heavy fields held in shared memory. Unit: bytes."""
    operations: float
    """Floating-point operations of forward and backward over all ranks. Unit: operations."""
    model_s: float
    """Time of forward and backward on rank 0. Unit: s."""


class Stepper:
    """Runs optimiser steps on all ranks."""

    def __init__(
        self,
        settings: LearnerSettings,
        loss: BoundLoss,
        ranks: Ranks,
        fetcher: PayloadFetcher,
        segments: Segments,
        *,
        phases: Phases,
        now_us: Callable[[], int],
    ) -> None:
        self._settings, self._loss, self._ranks = settings, loss, ranks
        self._fetcher, self._segments = fetcher, segments
        self._phases, self._now_us = phases, now_us

    async def load(
        self, chosen: Sequence[Chosen], *, deadline: Deadline
    ) -> tuple[dict[EpisodeId, bytes], tuple[Refused, ...]]:
        """Fetch the payloads and check them; return those that may be trained, and the refused."""
        self._phases.enter("fetch", now_us=self._now_us())
        found = await self._fetcher.fetch(
            [one.waiting.trajectory for one in chosen], deadline=deadline
        )
        good: dict[EpisodeId, bytes] = {}
        refused = []
        for one in chosen:
            payload = found[one.waiting.episode_id]
            refusal = _refuse(one, payload)
            if refusal is not None:
                refused.append(Refused(chosen=one, refusal=refusal))
            elif isinstance(payload, bytes):
                good[one.waiting.episode_id] = payload
        self._phases.enter("other", now_us=self._now_us())
        return good, tuple(refused)

    async def step(
        self, chosen: Sequence[Chosen], payloads: dict[EpisodeId, bytes], *, ordinal: int
    ) -> Outcome:
        """Make one optimiser step that turns the weights into those of `ordinal`."""
        weighted = [self._weigh(one, payloads[one.waiting.episode_id]) for one in chosen]
        self._phases.enter("pack", now_us=self._now_us())
        work, computed = self._plan(weighted, payloads, ordinal)
        held = self._segments.bytes_held
        try:
            self._phases.enter("train", now_us=self._now_us())
            results = await self._ranks.do(work)
            reach(CrashPoint.AFTER_OPTIMISER_STEP)
            self._phases.enter("other", now_us=self._now_us())
        finally:
            self._segments.release()
        first = results[0]
        spent_s = {
            "forward": first.forward_s,
            "backward": first.backward_s - first.reduce_s,
            "optimiser": first.optimiser_s - first.gather_s,
            "communication": first.reduce_s + first.gather_s,
        }
        self._phases.split("train", {name: int(1e6 * s) for name, s in spent_s.items()})
        norm = results[0].gradient_norm
        if not np.isfinite(norm):
            raise InvariantError(
                f"the gradient norm of update {ordinal} is {norm}",
                hint="the weights in memory are lost; the next start goes on from the checkpoint",
            )
        told = account(weighted, _joined(results))
        return Outcome(
            account=told,
            loss=self._mean_loss(results, work, told),
            gradient_norm=norm,
            learning_rate=results[0].learning_rate,
            computed_tokens=computed,
            bytes_shared=held,
            operations=step_operations(
                results[0].shape, tokens=computed, row_tokens=_mean_row(weighted)
            ),
            model_s=results[0].forward_s + results[0].backward_s,
        )

    def _mean_loss(self, results: Sequence[RankResult], work: TrainWork, told: Account) -> float:
        count = work.action_tokens
        if self._settings.loss.denominator == "kept_tokens":
            count = float(sum(m.kept_tokens * m.repeat for m in told.members))
        return sum(result.loss_sum for result in results) / count if count > 0.0 else 0.0

    def _weigh(self, one: Chosen, payload: bytes) -> Weighted:
        gated, trajectory = one.waiting.gated, one.waiting.trajectory
        assert trajectory.reward is not None, "a trajectory without reward was refused before"
        advantage = group_advantage(
            trajectory.reward,
            mean=gated.group_mean,
            deviation=gated.group_deviation,
            count=gated.group_count,
            group_size=trajectory.group_size,
            scaling=Scaling(self._settings.loss.advantage_scaling),
            single_baseline=self._settings.loss.single_baseline,
        )
        return Weighted(
            chosen=one,
            advantage=advantage,
            # The gate weighed an earlier, smaller lag; the weight never rises on the way.
            weight=min(gated.weight, one.staleness.weight),
            repeat=max(1, gated.repeat),
            trained_tokens=sum(unpack_heavy(payload).mask),
        )

    def _plan(
        self, weighted: Sequence[Weighted], payloads: dict[EpisodeId, bytes], ordinal: int
    ) -> tuple[TrainWork, int]:
        settings = self._settings
        items = [
            Item(
                episode_id=one.chosen.waiting.episode_id,
                group_id=one.chosen.waiting.gated.group_id,
                tokens=one.chosen.waiting.trajectory.tokens,
                prompt_tokens=one.chosen.waiting.trajectory.spans[0].start,
            )
            for one in weighted
        ]
        runs_all = settings.loss.measure_zero_advantage or (
            not self._loss.spec.vanishes_without_advantage
        )
        plan = pack(
            items,
            chosen=[i for i, one in enumerate(weighted) if runs_all or one.advantage * one.weight],
            tokens_max=settings.micro_batch_tokens,
            row_tokens_max=settings.row_tokens_max,
            ranks=settings.ranks,
            seed=settings.seed + ordinal,
        )
        by_rank = tuple(
            tuple(self._micro(batch, weighted, payloads) for batch in batches)
            # Every rank takes part in every step, also when there is nothing to learn.
            or (MicroWork(segment=None, rows=()),)
            for batches in plan.by_rank
        )
        tokens = float(sum(one.trained_tokens * one.repeat for one in weighted))
        # The version before this update was published, so its push is what the reset follows.
        published = ordinal > 1 and (ordinal - 1) % settings.publish_every == 0
        work = TrainWork(
            by_rank=by_rank,
            ordinal=ordinal,
            action_tokens=tokens,
            reset_optimiser=settings.optimiser.reset_on_publish and published,
        )
        return work, plan.tokens_computed

    def _micro(
        self, batch: MicroBatch, weighted: Sequence[Weighted], payloads: dict[EpisodeId, bytes]
    ) -> MicroWork:
        if not batch.rows:
            return MicroWork(segment=None, rows=())
        bodies = [payloads[weighted[i].chosen.waiting.episode_id] for i in batch.members]
        segment = self._segments.put(bodies, [crc32c(body) for body in bodies])
        return MicroWork(
            segment=segment,
            rows=tuple(
                tuple(_member_work(index, weighted[index]) for index in row.members)
                for row in batch.rows
            ),
        )


def _member_work(index: int, one: Weighted) -> MemberWork:
    return MemberWork(
        index=index,
        advantage=one.advantage * one.weight * one.repeat,
        count=float(one.repeat),
        temperature=one.chosen.waiting.trajectory.temperature,
    )


def _mean_row(weighted: Sequence[Weighted]) -> float:
    """Tokens that one token can see at most, over trajectories. Unit: tokens."""
    return sum(one.chosen.waiting.trajectory.tokens for one in weighted) / max(1, len(weighted))


def _refuse(one: Chosen, payload: bytes | Lost) -> Refusal | None:
    if isinstance(payload, Lost):
        return Refusal(reason=DropReason.PAYLOAD_LOST, rule="V11", message=payload.why)
    try:
        return refuse_heavy(one.waiting.trajectory, unpack_heavy(payload))
    except PoisonRecordError as error:
        return Refusal(reason=DropReason.INVALID_RECORD, rule="V5", message=str(error))


def _joined(results: Sequence[RankResult]) -> Tokens:
    parts: list[TokenResult] = [part for result in results for part in result.tokens]

    def whole(name: str, dtype: type) -> np.ndarray:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)

    return Tokens(
        member_N=whole("member_N", np.int64),
        at_N=whole("at_N", np.int64),
        logp_N=whole("logp_N", np.float32),
        behaviour_N=whole("behaviour_N", np.float32),
        entropy_N=whole("entropy_N", np.float32),
        ratio_N=whole("ratio_N", np.float32),
        kept_N=whole("kept_N", np.bool_),
        low_N=whole("low_N", np.bool_),
        high_N=whole("high_N", np.bool_),
    )

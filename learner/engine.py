"""The one shell around DeepSpeed: ZeRO 2 over float32 weights, one optimiser step from any number
of micro-batches.

Every rank holds one engine. Losses are sums over tokens; they are divided by the global token count
and multiplied by the number of ranks, since ZeRO averages gradients over ranks, so the step is the
global token mean (F16) on any number of ranks. All calls must come from one thread: the number of
intra-op threads is a property of the thread.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from learner.collectives import Collectives
from learner.core.flops import Shape
from learner.core.loss_registry import BoundLoss
from learner.core.losses import Denominator, LossInputs
from learner.libraries import import_libraries
from learner.packed import Member, pack_rows
from learner.policy import ActionPolicy
from learner.probe import write_probe
from learner.settings import Device, LearnerSettings, Precision, Schedule
from learner.weights import load_model, shape_of, write_weights
from schemas.errors import Boundary, InvariantError

Rows: TypeAlias = Sequence[Sequence[Member]]
Loader: TypeAlias = Callable[[], Rows]
_REDUCE_BUCKET_ELEMENTS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenResult:
    """What one micro-batch says of its action tokens, flat [N]."""

    member_N: NDArray[np.int64]
    at_N: NDArray[np.int64]
    logp_N: NDArray[np.float32]
    behaviour_N: NDArray[np.float32]
    entropy_N: NDArray[np.float32]
    ratio_N: NDArray[np.float32]
    kept_N: NDArray[np.bool_]
    low_N: NDArray[np.bool_]
    high_N: NDArray[np.bool_]
    coefficient_N: NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class RankResult:
    """What one rank says of a step."""

    tokens: list[TokenResult] = field(default_factory=list)
    loss_sum: float = 0.0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimiser_s: float = 0.0
    reduce_s: float = 0.0
    """Part of `backward_s` that went to collectives: gradients are reduced as they come."""
    gather_s: float = 0.0
    """Part of `optimiser_s` that went to collectives: norms, and weights from all ranks."""
    shape: Shape = field(default_factory=lambda: Shape(parameters=0))
    """Of the model, for the arithmetic of the step."""


def bf16_in_hardware(device: Device) -> bool:
    """Whether the device multiplies bf16 itself."""
    if device is Device.CUDA:
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def resolve_precision(settings: LearnerSettings) -> Precision:
    """Return the precision that `auto` stands for on this machine."""
    if settings.precision is not Precision.AUTO:
        return settings.precision
    fits = bf16_in_hardware(settings.device)
    return Precision.BF16_AUTOCAST if fits else Precision.FLOAT32


def _configuration(settings: LearnerSettings) -> dict[str, Any]:
    optimiser = settings.optimiser
    return {
        # DeepSpeed wants a batch size; ours varies, and every step() is its own boundary.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimiser.gradient_clip,
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": False,
            # The buffer is allocated for every backward pass: the default of 5e8 elements costs a
            # second each.
            "reduce_bucket_size": _REDUCE_BUCKET_ELEMENTS,
        },
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimiser.learning_rate,
                "betas": [optimiser.beta1, optimiser.beta2],
                "eps": optimiser.epsilon,
                "weight_decay": optimiser.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


def learning_rate(settings: LearnerSettings, ordinal: int) -> float:
    """Return the rate of the update that makes `ordinal`, from 1."""
    optimiser = settings.optimiser
    rate = optimiser.learning_rate
    if ordinal <= optimiser.warmup_steps:
        return rate * ordinal / optimiser.warmup_steps
    if optimiser.schedule is Schedule.LINEAR and settings.steps > optimiser.warmup_steps:
        left = (settings.steps + 1 - ordinal) / (settings.steps + 1 - optimiser.warmup_steps)
        return rate * max(0.0, min(1.0, left))
    return rate


class Engine:
    """One rank's model, optimiser and process group."""

    def __init__(
        self,
        settings: LearnerSettings,
        loss: BoundLoss,
        *,
        rank: int,
        port: int,
        model_path: Path | None = None,
    ) -> None:
        """Join the process group at `port` on loopback and build the engine; blocks until all ranks
        are there.
        """
        self.settings, self.loss, self.rank = settings, loss, rank
        self.precision = resolve_precision(settings)
        self.device = f"cuda:{rank}" if settings.device is Device.CUDA else "cpu"
        import_libraries(settings.device)
        import deepspeed

        _set_process(settings, rank=rank, port=port)
        model = load_model(model_path or Path(settings.model_path))
        model.train()
        backend = "nccl" if settings.device is Device.CUDA else "gloo"
        if not torch.distributed.is_initialized():
            deepspeed.init_distributed(dist_backend=backend, verbose=False)
        self.group = torch.distributed.new_group(backend="gloo")
        self._collectives = Collectives(are_timed=settings.ranks > 1)
        policy = ActionPolicy(model)
        self._engine, *_ = deepspeed.initialize(
            model=policy, model_parameters=policy.parameters(), config=_configuration(settings)
        )
        self.model = model
        self.shape = shape_of(model)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank. Metadata and names only: heavy fields go through
        shared memory.
        """
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on rank 0, in rank order; an empty list elsewhere."""
        size = self.settings.ranks
        out: list[Any] | None = [None] * size if self.rank == 0 else None
        torch.distributed.gather_object(value, out, dst=0, group=self.group)
        return out or []

    def train(
        self, micro_batches: Sequence[Loader], *, ordinal: int, action_tokens: float
    ) -> RankResult:
        """Run forward and backward over this rank's micro-batches, then one optimiser step with all
        ranks.

        `action_tokens` is the global count of action tokens, repeats included. Every rank passes as
        many micro-batches, each loaded just before its use; an empty one only keeps the collectives
        in step.
        """
        result = RankResult(shape=self.shape)
        denominator = action_tokens
        if self.settings.loss.denominator == Denominator.KEPT_TOKENS:
            denominator = self._kept(micro_batches)
        scale = self.settings.ranks / denominator if denominator > 0.0 else 0.0
        for load in micro_batches:
            self._pass(load(), scale, result)
        rate = learning_rate(self.settings, ordinal)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        started = self._settled_s()
        self._engine.step()
        result.optimiser_s = self._settled_s() - started
        result.gather_s = self._collectives.take_s()
        result.learning_rate = rate
        result.gradient_norm = float(self._engine.get_global_grad_norm() or 0.0)
        return result

    def _pass(self, rows: Rows, scale: float, result: RankResult) -> None:
        started = self._settled_s()
        members = list(rows) or [_nothing()]
        packed = pack_rows(members).to(self.device)
        with self._autocast():
            logp_N, entropy_N = self._engine(packed)
        inputs = LossInputs(
            logp_N=logp_N,
            behaviour_N=packed.behaviour_N,
            mask_N=torch.ones_like(packed.target_N, dtype=torch.bool),
            advantage_N=packed.advantage_N,
            old_N=logp_N.detach(),
        )
        outcome = self.loss(inputs)
        between = self._settled_s()
        self._collectives.take_s()
        self._engine.backward(outcome.loss * scale)
        result.forward_s += between - started
        result.backward_s += self._settled_s() - between
        result.reduce_s += self._collectives.take_s()
        if not rows:
            return
        result.loss_sum += float(outcome.loss.detach())
        result.tokens.append(
            TokenResult(
                member_N=packed.member_N,
                at_N=packed.at_N,
                logp_N=_array(logp_N),
                behaviour_N=_array(packed.behaviour_N),
                entropy_N=_array(entropy_N),
                ratio_N=_array(outcome.ratio_N),
                kept_N=_array(outcome.kept_N),
                low_N=_array(outcome.low_N),
                high_N=_array(outcome.high_N),
                coefficient_N=_array(outcome.coefficient_N),
            )
        )

    def _settled_s(self) -> float:
        """Return the time once the device has done what it was given, not merely been told."""
        if self.settings.device is Device.CUDA:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _kept(self, micro_batches: Sequence[Loader]) -> float:
        """Return the global count of kept tokens: one pass without gradients, since the count
        scales the gradient.
        """
        kept = 0.0
        with torch.no_grad():
            for load in micro_batches:
                rows = load()
                if not rows:
                    continue
                packed = pack_rows(rows).to(self.device)
                with self._autocast():
                    logp_N, _ = self._engine.module(packed)
                outcome = self.loss(
                    LossInputs(
                        logp_N=logp_N,
                        behaviour_N=packed.behaviour_N,
                        mask_N=torch.ones_like(packed.target_N, dtype=torch.bool),
                        advantage_N=packed.advantage_N,
                        old_N=logp_N,
                    )
                )
                kept += float(packed.count_N[outcome.kept_N].sum())
        total = torch.tensor([kept], dtype=torch.float64)
        torch.distributed.all_reduce(total, group=self.group)
        return float(total[0])

    def _autocast(self) -> Any:
        enabled = self.precision is Precision.BF16_AUTOCAST
        return torch.autocast(
            self.device.split(":")[0], dtype=torch.bfloat16, enabled=enabled, cache_enabled=True
        )

    def logits(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the logits after the last id of each prompt, float32 [prompts, vocabulary], each
        prompt computed alone; no other rank takes part.
        """
        rows = []
        self.model.eval()
        with torch.no_grad(), self._autocast():
            for prompt in prompts:
                ids_BT = torch.tensor([list(prompt)], device=self.device)
                rows.append(self.model(ids_BT, logits_to_keep=1).logits[0, -1].float().cpu())
        self.model.train()
        return torch.stack(rows).numpy()

    def export(self, folder: Path) -> None:
        """Write the weights as bf16 safetensors with the model's configuration and the probe that
        an inference worker holds them against; rank 0 only.
        """
        write_weights(self.model, folder)
        with self._autocast():
            write_probe(folder, self.model, device=self.device)

    def save(self, folder: Path) -> None:
        """Write weights, optimiser and random states of every rank under `folder`."""
        state = {"random": _random_states()}
        self._engine.save_checkpoint(
            str(folder), tag="state", client_state=state, save_latest=False
        )

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit; raise InvariantError when DeepSpeed finds nothing
        there.
        """
        path, state = self._engine.load_checkpoint(str(folder), tag="state")
        if path is None or state is None:
            raise InvariantError(
                f"DeepSpeed restored nothing from {folder}", boundary=Boundary.STORE
            )
        _set_random_states(state["random"])

    def reset_optimiser(self) -> None:
        """Forget the moments of every parameter, for runs that reset the optimiser on a push."""
        for state in self._engine.optimizer.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    state[name].zero_()

    def close(self) -> None:
        """Leave the process group."""
        import deepspeed.comm

        if torch.distributed.is_initialized():
            # DeepSpeed keeps groups of its own, which it forgets only when it ends them itself.
            deepspeed.comm.destroy_process_group()


def _array(tensor: Any) -> Any:
    return tensor.detach().to("cpu").numpy()


def _nothing() -> list[Member]:
    """A row without action tokens: it takes part in the collectives and adds a gradient of exactly
    0.
    """
    return [
        Member(
            index=-1,
            ids=np.zeros(2, dtype=np.int32),
            logprobs=np.zeros(2, dtype=np.float32),
            mask=np.zeros(2, dtype=np.uint8),
            advantage=0.0,
            count=0.0,
            temperature=1.0,
        )
    ]


def _set_process(settings: LearnerSettings, *, rank: int, port: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(settings.ranks)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed + rank)
    # Sums whose order depends on threads would make two runs of the same log differ in the last
    # bit.
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  torch declares no attribute


def _random_states() -> dict[str, Any]:
    # Plain lists, since checkpoints are loaded without arbitrary objects.
    name, keys, position, has_gauss, cached = np.random.get_state()
    version, values, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": (name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
        "python": (version, list(values), gauss),
    }


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"].cpu())
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, values, gauss = states["python"]
    random.setstate((version, tuple(values), gauss))

"""Tiny models, a float32 reference for their log-probs, and one engine for all tests that ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.engine import Engine, EngineDelta, GenerateRequest
from inference.settings import InferenceSettings
from inference.vllm_settings import VllmSettings
from schemas.ids import Version

CONTEXT_MAX = 1024
PROMPT = tuple(range(5, 325))
"""Longer than two blocks of the KV cache (128 tokens each), so that a prefix can be reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Several versions of one tiny model, and what each of them says in float32."""

    folders: tuple[Path, ...]
    references: tuple[Any, ...]

    def logprobs(
        self, which: int, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        """Return the log-probs of `ids` after `prompt` by a full float32 pass of transformers."""
        import torch

        with torch.no_grad():
            logits = self.references[which](input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
        table = torch.log_softmax(logits.float() / temperature, dim=-1)
        start = len(prompt) - 1
        return [float(table[start + k, token]) for k, token in enumerate(ids)]

    def error(
        self,
        which: int,
        prompt: Sequence[int],
        ids: Sequence[int],
        found: Sequence[float],
        temperature: float = 1.0,
    ) -> float:
        """Return the largest difference between found log-probs and the reference's."""
        expected = self.logprobs(which, prompt, ids, temperature)
        return max(abs(a - b) for a, b in zip(expected, found, strict=True))


def make_models(folder: Path, *, tied: bool, versions: int = 3) -> Models:
    """Draw `versions` tiny models that differ in every weight."""
    import torch
    from transformers import AutoModelForCausalLM

    from infra.setup.tiny_model import make_tiny_model

    folders = tuple(
        make_tiny_model(folder / str(seed), 10 + seed, tied=tied, warm_up_steps=0)
        for seed in range(versions)
    )
    return Models(
        folders=folders,
        references=tuple(
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in folders
        ),
    )


def engine_settings(model: Path, *, dtype: str, stats: bool = False) -> InferenceSettings:
    """Return settings for a small engine on a model folder; stats: vLLM counts its own work."""
    return InferenceSettings(
        model_path=str(model),
        context_max=CONTEXT_MAX,
        dtype=dtype,
        kv_cache_gib=0.25,
        inflight_max=16,
        vllm=VllmSettings(stats=stats),
    )


@dataclass(slots=True, kw_only=True)
class Said:
    """Everything that one request gave."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    """One per token, as stamped on the deltas."""
    last: EngineDelta | None = None
    deltas: int = 0

    @property
    def end(self) -> EngineDelta:
        """The last delta."""
        assert self.last is not None, "the stream ended without one"
        return self.last

    @property
    def attested(self) -> list[Version]:
        """One version per token, by the engine's own spans."""
        assert self.end.spans is not None, "the engine gave no account"
        return [version for version, start, end in self.end.spans for _ in range(start, end)]


_numbers = iter(range(1_000_000))


async def say(
    engine: Engine,
    prompt: Sequence[int],
    tokens_max: int,
    *,
    temperature: float = 1.0,
    stop_ids: tuple[int, ...] = (),
    request_id: str = "",
    started: asyncio.Event | None = None,
    after_tokens: int = 1,
) -> Said:
    """Run one request to its end; `started` is set once it has `after_tokens` tokens."""
    said = Said()
    request = GenerateRequest(
        request_id=request_id or f"test-{next(_numbers)}",
        prompt_ids=prompt,
        tokens_max=tokens_max,
        temperature=temperature,
        stop_ids=stop_ids,
    )
    async for delta in engine.generate(request):
        said.ids += delta.token_ids
        said.logprobs += delta.logprobs
        said.versions += [delta.version] * len(delta.token_ids)
        said.deltas += 1
        said.last = delta
        if started is not None and len(said.ids) >= after_tokens:
            started.set()
    return said

"""Writes what the weights in memory say of a version's probe, beside the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from schemas.probe import PROBE_NAME, Probe, probe_ids, render_probe


def score(model: Any, prompt: Sequence[int], ids: Sequence[int], *, device: str) -> list[float]:
    """Return the log-prob of each of `ids` after all before it. [len(ids)], nats.

    model: a causal language model of transformers; it is left in the mode that it was in.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            ids_BT = torch.tensor([[*prompt, *ids]], device=device)
            # The logits at a place are of the id after it, so the last ones are of none.
            logits_TV = model(ids_BT, logits_to_keep=len(ids) + 1).logits[0, :-1]
            logp_TV = logits_TV.float().log_softmax(-1)
            target_T1 = torch.tensor(list(ids), device=device)[:, None]
            return [float(value) for value in logp_TV.gather(1, target_T1)[:, 0].cpu()]
    finally:
        model.train(was_training)


def write_probe(folder: Path, model: Any, *, device: str) -> None:
    """Put the probe of a model into a folder; raises OSError."""
    prompt, ids = probe_ids(int(model.config.vocab_size))
    logprobs = score(model, prompt, ids, device=device)
    probe = Probe(prompt_ids=prompt, ids=ids, logprobs=tuple(logprobs))
    (folder / PROBE_NAME).write_text(render_probe(probe))

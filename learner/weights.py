"""The model's weights between files and memory: float32 to train, bf16 to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from learner.core.flops import Shape
from schemas.errors import Boundary, SettingsError


def load_model(path: Path) -> Any:
    """Return the model in float32; raise SettingsError when the folder holds none."""
    from transformers import AutoModelForCausalLM

    if not (path / "config.json").is_file():
        raise SettingsError(
            f"no model in {path}: config.json is missing",
            boundary=Boundary.STORE,
            hint="run `make setup`, or correct learner.model_path",
        )
    try:
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise SettingsError(
            f"the model in {path} cannot be loaded: {error}",
            boundary=Boundary.STORE,
            hint="the folder is damaged; make it anew",
        ) from error


def shape_of(model: Any) -> Shape:
    """Return what the arithmetic of a model depends on. A tied output head counts: tokens are
    multiplied with it, while an embedding that is no head is only looked up.
    """
    total = sum(parameter.numel() for parameter in model.parameters())
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    text = model.config
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=total if is_tied else total - embedding.weight.numel(),
        layers=text.num_hidden_layers,
        width=text.num_attention_heads * width,
    )


def write_weights(model: Any, folder: Path) -> None:
    """Write a model's weights as bf16 safetensors, with its configuration.

    Tied tensors stay one tensor, so that `save_pretrained` writes them once, as it read them.
    """
    converted: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in converted:
            converted[tensor.data_ptr()] = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        state[name] = converted[tensor.data_ptr()]
    kept = model.config.dtype
    model.config.dtype = torch.bfloat16
    try:
        model.save_pretrained(folder, state_dict=state, safe_serialization=True)
    finally:
        model.config.dtype = kept

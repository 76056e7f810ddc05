"""What vLLM's worker process must do beyond vLLM: load a policy version whole.

vLLM mixes this class into its worker by name (`worker_extension_cls`). Invariants: after
`load_policy` the head computes with the new matrix, also where a CPU keeps a packed copy of it, and
tied weights are one again; if that cannot be shown the call raises, and the engine must not sample.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.config import set_current_vllm_config

import inference.vllm_patient  # noqa: F401  the worker waits as the engine core does

# The kernel gives a process the tiles of AMX only when it asks. vLLM's attention for bf16 uses them
# wherever the processor has them and leaves it to others to ask: some models' layers do, small ones
# do not, and the worker dies of an illegal instruction.
if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
    raise RuntimeError(
        "the kernel refuses AMX, which vLLM would use for bf16: set inference.dtype = float32"
    )

EXTENSION = "inference.vllm_extension.PolicyLoader"
_ROWS = 4
_TOLERANCE = 0.02
"""Largest relative error of the head on a probe; bf16 rounding stays below 0.005."""


class PolicyLoader:
    """Methods that `collective_rpc` reaches in every worker process of the engine."""

    model_runner: Any
    vllm_config: Any

    def load_policy(self, folder: str) -> dict[str, float]:
        """Load the safetensors of `folder` into the running model.

        Returns load_us and the head's relative error on a probe. Raises RuntimeError when the head
        does not compute with the loaded matrix.
        """
        began = time.monotonic()
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_path=folder)
            error = self._repack_head()
        if not error <= _TOLERANCE:
            raise RuntimeError(
                f"the output head is off by {error:.3g} of its own matrix after loading {folder}"
            )
        return {"load_us": (time.monotonic() - began) * 1e6, "head_error": error}

    @torch.inference_mode()
    def _repack_head(self) -> float:
        """Pack the head again and return its relative error against its unpacked matrix.

        A tied head is no parameter of its own, so `reload_weights` passes it by: the call succeeds,
        the body is new and the packed head is old.
        """
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if head is None or method is None:
            return 0.0
        config = self.vllm_config.model_config.hf_config
        if getattr(config, "tie_word_embeddings", False):
            embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
            if embedding is not None and head.weight.data_ptr() != embedding.weight.data_ptr():
                head.weight = embedding.weight
        method.process_weights_after_loading(head)
        weight = head.weight
        if weight.numel() == 0 or weight.ndim != 2:
            # The unpacked matrix was given up: an untied head is packed anew by the load itself.
            return 0.0
        draw = torch.Generator(device="cpu").manual_seed(0)
        probe = torch.randn(_ROWS, weight.shape[1], generator=draw).to(weight)
        expected = torch.nn.functional.linear(probe.float(), weight.float())
        found = method.apply(head, probe).float()
        return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-6))

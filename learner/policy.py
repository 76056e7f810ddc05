"""The policy in training: log-probs of sampled tokens, computed at action positions only.

Shape letters: R rows, T positions of a row, N action tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learner.packed import Packed


class ActionPolicy(nn.Module):
    """A causal language model that answers with log-probs and entropies of the action tokens."""

    def __init__(self, model: Any, *, measure_entropy: bool = True) -> None:
        super().__init__()
        self.model = model
        self.measure_entropy = measure_entropy

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Return log pi of the sampled tokens, float32 [N], with gradient, and their entropies,
        float32 [N], without.

        Logits exist only at the N positions that predict an action. The head runs in float32, since
        log-probs that differ from the engine's by rounding alone would already move ratios.
        Temperature is applied as the engine did.
        """
        hidden_RTH = self.model.model(
            input_ids=packed.ids_RT,
            attention_mask=packed.allowed_RTT[:, None],
            position_ids=packed.position_RT,
            use_cache=False,
        ).last_hidden_state
        hidden_NH = hidden_RTH.flatten(0, 1).index_select(0, packed.source_N)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            head = self.model.get_output_embeddings()
            logits_NV = nn.functional.linear(hidden_NH.float(), head.weight.float(), head.bias)
            scaled_NV = logits_NV / packed.temperature_N[:, None]
            logp_NV = torch.log_softmax(scaled_NV, dim=-1)
        logp_N = logp_NV.gather(1, packed.target_N[:, None]).squeeze(1)
        with torch.no_grad():
            if self.measure_entropy:
                entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
            else:
                entropy_N = torch.zeros_like(logp_N)
        return logp_N, entropy_N

"""How much arithmetic a step is, and which share of the hardware's it used (requirements R84).

Formula: a forward pass multiplies and adds once with every weight for every token, 2 P operations a
token, and the backward pass twice that; attention adds 2 L H T operations a token and pass for the
scores and as many for the mixture over T positions, thrice in all again. Source: arXiv 2204.02311,
appendix B. Padding counts: it is computed. The head runs at action positions only, so that what is
said here is an upper bound by the head's share of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the arithmetic of a model depends on."""

    parameters: int
    """Weights that every token is multiplied with. Unit: weights."""
    layers: int = 0
    width: int = 0
    """Width of the attention: heads times their size. Unit: elements."""


def step_operations(shape: Shape, *, tokens: int, row_tokens: float) -> float:
    """Return the floating-point operations of forward and backward over `tokens`, in rows of
    `row_tokens`. Unit: operations.
    """
    attention = 4.0 * shape.layers * shape.width * row_tokens
    return 3.0 * tokens * (2.0 * shape.parameters + attention)


def utilisation(operations: float, *, seconds: float, peak_per_s: float) -> float:
    """Return the share of the peak that was used (MFU); 0 where either is unknown. Unit: ratio."""
    if seconds <= 0.0 or peak_per_s <= 0.0:
        return 0.0
    return operations / seconds / peak_per_s

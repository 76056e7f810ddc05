"""Divergence estimates, sample sizes, quantiles and buckets."""

from __future__ import annotations

import pytest
import torch

from learner.core.diagnostics import bucket, effective_sample_size, mismatch_kl, quantiles


def test_the_kl_estimate_is_within_three_standard_errors_of_the_exact_value() -> None:
    generator = torch.Generator().manual_seed(11)
    mu = torch.log_softmax(torch.randn(64, generator=generator, dtype=torch.float64), 0)
    pi = torch.log_softmax(mu + 0.3 * torch.randn(64, generator=generator).double(), 0)
    exact = float((mu.exp() * (mu - pi)).sum())
    drawn = torch.multinomial(mu.exp(), 20_000, replacement=True, generator=generator)
    found = mismatch_kl(pi[drawn], mu[drawn])
    error = float(found.std() / len(drawn) ** 0.5)
    assert abs(float(found.mean()) - exact) < 3 * error
    assert bool((found >= 0).all())


def test_the_effective_sample_size_of_equal_weights_is_their_number() -> None:
    assert effective_sample_size(torch.full((5,), 0.3)) == pytest.approx(5.0)
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(1.0)
    assert effective_sample_size(torch.zeros(0)) == 0.0


def test_quantiles_are_nearest_rank_and_buckets_are_closed_above() -> None:
    assert quantiles([float(n) for n in range(1, 101)]) == [50.0, 95.0, 99.0]
    assert bucket(16, (16, 64)) == "le_16"
    assert bucket(65, (16, 64)) == "gt_64"

"""The probe of a policy version: a few ids and the log-probs that its learner gives them.

The learner writes it beside the weights, so that the manifest's digest covers it; an inference
worker scores the same ids once it has loaded them. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import Boundary, TransientError

PROBE_NAME = "probe.json"
"""Its file in the folder of a version."""
_FORMAT = "sluice-probe-1"
_PROMPT_TOKENS, _TOKENS = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ids and what a version says of them."""

    prompt_ids: tuple[int, ...]
    """What comes before. [n]"""
    ids: tuple[int, ...]
    """What is scored. [k]"""
    logprobs: tuple[float, ...]
    """Log-prob of each of `ids` after all before it, at temperature 1. float [k], nats."""


def probe_ids(vocabulary: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return prompt and scored ids of a vocabulary: fixed, spread over it, no text."""
    ids = tuple((101 + 53 * i * i) % vocabulary for i in range(_PROMPT_TOKENS + _TOKENS))
    return ids[:_PROMPT_TOKENS], ids[_PROMPT_TOKENS:]


def render_probe(probe: Probe) -> str:
    """Return the text of the file."""
    return (
        json.dumps(
            {
                "format": _FORMAT,
                "prompt_ids": probe.prompt_ids,
                "ids": probe.ids,
                "logprobs": probe.logprobs,
            }
        )
        + "\n"
    )


def parse_probe(text: str) -> Probe:
    """Return the probe of a file's text; raise TransientError (store) when it is none."""
    try:
        whole = json.loads(text)
        probe = Probe(
            prompt_ids=tuple(map(int, whole["prompt_ids"])),
            ids=tuple(map(int, whole["ids"])),
            logprobs=tuple(map(float, whole["logprobs"])),
        )
        if whole["format"] != _FORMAT or not probe.ids:
            raise ValueError("not this format")
        if len(probe.ids) != len(probe.logprobs) or not all(map(math.isfinite, probe.logprobs)):
            raise ValueError("not one finite log-prob per id")
    except (ValueError, TypeError, KeyError) as error:
        raise TransientError(
            f"{PROBE_NAME} cannot be read: {error}",
            boundary=Boundary.STORE,
            hint="the version was not written whole; take another version",
        ) from error
    return probe


def largest_difference(probe: Probe, found: Sequence[float]) -> float:
    """Return the largest difference of found log-probs to the reference; infinite when they are not
    as many, or one is not finite. Unit: nats.
    """
    if len(found) != len(probe.logprobs) or not all(map(math.isfinite, found)):
        return math.inf
    return max(abs(a - b) for a, b in zip(probe.logprobs, found, strict=True))

"""The one registry of losses: name to function, parameters and declared inputs.

A loss that needs what the records cannot supply is refused at start-up, by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias

from learner.core.losses import (
    Anchor,
    CispoParameters,
    ClipParameters,
    DisParameters,
    LossInputs,
    LossResult,
    clipped_importance_sampling,
    clipped_surrogate,
    direct_importance_sampling,
)
from schemas.errors import SettingsError

Bound: TypeAlias = Callable[[LossInputs], LossResult]


class LossInput(StrEnum):
    """What a loss may ask for besides the log-probs of the policy in training."""

    BEHAVIOUR_LOGPROBS = "behaviour_logprobs"
    OLD_LOGPROBS = "old_logprobs"
    ADVANTAGES = "advantages"


# Old log-probs are those of the policy in training at the start of the update, so the learner
# always has them.
SUPPLIED: frozenset[LossInput] = frozenset(LossInput)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """One entry of the registry."""

    name: str
    function: Callable[[LossInputs, Any], LossResult]
    parameters: type[Any]
    inputs: frozenset[LossInput]
    vanishes_without_advantage: bool
    """Whether a token of advantage 0 adds nothing to the gradient, so that its forward pass may be
    left out.
    """
    meaning: str


_BOTH = frozenset({LossInput.BEHAVIOUR_LOGPROBS, LossInput.ADVANTAGES})

LOSSES: Mapping[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec(
            name="dis",
            function=direct_importance_sampling,
            parameters=DisParameters,
            inputs=_BOTH,
            vanishes_without_advantage=True,
            meaning="double-sided importance sampling with a detached weight and an open band",
        ),
        LossSpec(
            name="ppo_clip",
            function=clipped_surrogate,
            parameters=ClipParameters,
            inputs=_BOTH,
            vanishes_without_advantage=True,
            meaning="PPO and GRPO clip",
        ),
        LossSpec(
            name="cispo",
            function=clipped_importance_sampling,
            parameters=CispoParameters,
            inputs=_BOTH,
            vanishes_without_advantage=True,
            meaning="clipped importance weight, detached, on every token",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLoss:
    """A loss with its parameters, ready to be called."""

    spec: LossSpec
    parameters: Any

    def __call__(self, inputs: LossInputs) -> LossResult:
        return self.spec.function(inputs, self.parameters)


def _nearest(word: str, words: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(words))}"


def bind(
    name: str,
    parameters: Mapping[str, float | str],
    *,
    supplied: Collection[LossInput] = SUPPLIED,
) -> BoundLoss:
    """Return the loss of that name with its parameters.

    Raises SettingsError for an unknown name, an unknown or bad parameter, or an input that is not
    supplied.
    """
    spec = LOSSES.get(name)
    if spec is None:
        raise SettingsError(f"no loss is called {name!r}", hint=_nearest(name, LOSSES))
    known = {field.name for field in fields(spec.parameters)}
    for key in parameters:
        if key not in known:
            raise SettingsError(f"loss {name} has no parameter {key!r}", hint=_nearest(key, known))
    values: dict[str, Any] = dict(parameters)
    try:
        if "anchor" in values:
            values["anchor"] = Anchor(values["anchor"])
        bound = spec.parameters(**values)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"loss {name}: {error}", hint="see its parameters") from error
    needed = set(spec.inputs)
    if getattr(bound, "anchor", None) is Anchor.OLD:
        needed = (needed - {LossInput.BEHAVIOUR_LOGPROBS}) | {LossInput.OLD_LOGPROBS}
    missing = sorted(needed - set(supplied))
    if missing:
        raise SettingsError(
            f"loss {name} needs {', '.join(missing)}, which the records do not supply",
            hint="choose another loss or anchor",
        )
    return BoundLoss(spec=spec, parameters=bound)

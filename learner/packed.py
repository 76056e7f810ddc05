"""One micro-batch as tensors: rows of branches that share a prefix, and where each action token is
predicted.

Shape letters: R rows, T positions of a row, N action tokens. A row holds a prefix that its members
share and then each member's own tokens; a token sees the prefix and the earlier tokens of its own
branch only, and its position counts from the start of its own trajectory, so every member is
computed as if it stood alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The heavy fields of one trajectory of a row, as views."""

    index: int
    """Index of the trajectory in the step."""
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    mask: NDArray[np.uint8]
    advantage: float
    """Times weight and repeat. Unit: reward."""
    count: float
    """How often its tokens count in the denominator."""
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Tensors of one micro-batch."""

    ids_RT: Tensor
    """int64"""
    position_RT: Tensor
    """int64"""
    allowed_RTT: Tensor
    """bool; true where the query (second letter) may see the key (third)."""
    source_N: Tensor
    """int64; flat index into R*T of the position that predicts each action token."""
    target_N: Tensor
    """int64; the sampled token."""
    behaviour_N: Tensor
    """float32"""
    advantage_N: Tensor
    """float32"""
    count_N: Tensor
    """float32"""
    temperature_N: Tensor
    """float32"""
    member_N: NDArray[np.int64]
    """Index of the trajectory in the step."""
    at_N: NDArray[np.int64]
    """Index of the token in its episode."""

    def to(self, device: str) -> Packed:
        """Return the same on a device."""
        moved = {
            name: value.to(device)
            for name in self.__slots__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        return replace(self, **moved)  # type: ignore[arg-type]  # every tensor keeps its field


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a member's own tokens stand in its row."""

    member: Member
    shared: int
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.member.ids) - self.shared


def _shared_prefix(members: Sequence[Member]) -> int:
    """Tokens that all members share and none of them sampled."""
    if len(members) == 1:
        return 0
    first = members[0]
    limit = min(min(len(member.ids) - 1, _first_action(member)) for member in members)
    for member in members[1:]:
        differs = np.flatnonzero(first.ids[:limit] != member.ids[:limit])
        if differs.size:
            limit = int(differs[0])
    return limit


def _first_action(member: Member) -> int:
    found = np.flatnonzero(member.mask)
    return int(found[0]) if found.size else len(member.ids) - 1


def _place(members: Sequence[Member]) -> list[_Placed]:
    shared = _shared_prefix(members)
    placed: list[_Placed] = []
    at = shared
    for member in members:
        placed.append(_Placed(member, shared, at))
        at = placed[-1].end
    return placed


def pack_rows(rows: Sequence[Sequence[Member]], *, pad_to: int = 8) -> Packed:
    """Return the tensors of a micro-batch of at least one row; row length is rounded up to
    `pad_to`.

    Padding sees only itself and predicts nothing.
    """
    layouts = [_place(members) for members in rows]
    length = max(layout[-1].end for layout in layouts)
    length = -(-length // pad_to) * pad_to
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions = np.zeros((len(rows), length), dtype=np.int64)
    allowed = np.zeros((len(rows), length, length), dtype=np.bool_)
    allowed[:, np.arange(length), np.arange(length)] = True
    flat: dict[str, list[NDArray[np.float64 | np.int64 | np.int32 | np.float32]]] = {
        name: [] for name in ("source", "target", "logprob", "member", "at")
    }
    per_member: list[tuple[int, Member]] = []
    for row, layout in enumerate(layouts):
        shared = layout[0].shared
        ids[row, :shared] = layout[0].member.ids[:shared]
        positions[row, :shared] = np.arange(shared)
        causal = np.tri(length, dtype=np.bool_)
        allowed[row, :shared, :shared] = causal[:shared, :shared]
        for placed in layout:
            member, start, end = placed.member, placed.start, placed.end
            ids[row, start:end] = member.ids[shared:]
            positions[row, start:end] = np.arange(shared, len(member.ids))
            allowed[row, start:end, :shared] = True
            allowed[row, start:end, start:end] = causal[: end - start, : end - start]
            at = np.flatnonzero(member.mask)
            # The token before an action predicts it; before the branch's first own token stands the
            # shared prefix.
            before = at - 1
            source = np.where(before < shared, before, before - shared + start)
            flat["source"].append(source + row * length)
            flat["target"].append(member.ids[at])
            flat["logprob"].append(member.logprobs[at])
            flat["member"].append(np.full(at.size, member.index, dtype=np.int64))
            flat["at"].append(at)
            per_member.append((at.size, member))
    sizes = np.array([size for size, _ in per_member])
    return Packed(
        ids_RT=torch.from_numpy(ids),
        position_RT=torch.from_numpy(positions),
        allowed_RTT=torch.from_numpy(allowed),
        source_N=torch.from_numpy(np.concatenate(flat["source"]).astype(np.int64)),
        target_N=torch.from_numpy(np.concatenate(flat["target"]).astype(np.int64)),
        behaviour_N=torch.from_numpy(np.concatenate(flat["logprob"]).astype(np.float32)),
        advantage_N=_repeated([m.advantage for _, m in per_member], sizes),
        count_N=_repeated([m.count for _, m in per_member], sizes),
        temperature_N=_repeated([m.temperature for _, m in per_member], sizes),
        member_N=np.concatenate(flat["member"]).astype(np.int64),
        at_N=np.concatenate(flat["at"]).astype(np.int64),
    )


def _repeated(values: Sequence[float], sizes: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), sizes))

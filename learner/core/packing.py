"""Which trajectories share a row, a micro-batch and a rank: decided from metadata and a seed, never
from tokens.

Members of one group share their prompt, so they share a row: the prompt stands once, the
continuations branch from it. Rows of like length share a micro-batch, which holds at most
`tokens_max` tokens, padding included. Every rank gets as many micro-batches as the others, since
their collectives must meet; empty ones fill up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import SettingsError
from schemas.ids import EpisodeId, GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What packing may know of one trajectory."""

    episode_id: EpisodeId
    group_id: GroupId
    tokens: int
    """All tokens of its main line. Unit: tokens."""
    prompt_tokens: int
    """Tokens before its first action token, as far as it may share them. Unit: tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """Trajectories (indices into the items) that share one row of a micro-batch."""

    members: tuple[int, ...]
    tokens: int
    """Expected length. Unit: tokens."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that one forward and backward pass takes together; empty on a rank that has nothing left
    to do.
    """

    rows: tuple[Row, ...]

    @property
    def cost(self) -> int:
        """Tokens computed, padding included."""
        return len(self.rows) * max((row.tokens for row in self.rows), default=0)

    @property
    def members(self) -> tuple[int, ...]:
        """Indices of its trajectories, row by row."""
        return tuple(index for row in self.rows for index in row.members)


@dataclass(frozen=True, slots=True)
class Plan:
    """Micro-batches by rank, in the order in which they run."""

    by_rank: tuple[tuple[MicroBatch, ...], ...]

    @property
    def tokens_computed(self) -> int:
        """Tokens in all micro-batches, padding included. Unit: tokens."""
        return sum(batch.cost for batches in self.by_rank for batch in batches)


def _draw(seed: int, *names: object) -> bytes:
    # A keyed digest is chance that any process can repeat from the seed and the metadata alone.
    return hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()


def _rows(items: Sequence[Item], chosen: Sequence[int], tokens_max: int) -> list[Row]:
    groups: dict[GroupId, list[int]] = {}
    for index in chosen:
        groups.setdefault(items[index].group_id, []).append(index)
    rows: list[Row] = []
    for members in groups.values():
        open_members: list[int] = []
        length = 0
        for index in sorted(members, key=lambda index: items[index].episode_id):
            item = items[index]
            added = item.tokens - min(item.prompt_tokens, item.tokens)
            if open_members and length + added > tokens_max:
                rows.append(Row(tuple(open_members), length))
                open_members, length = [], 0
            length += added if open_members else item.tokens
            open_members.append(index)
        rows.append(Row(tuple(open_members), length))
    return rows


def _micro_batches(rows: list[Row], tokens_max: int) -> list[MicroBatch]:
    batches: list[MicroBatch] = []
    open_rows: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row.tokens, row.members)):
        longest = open_rows[0].tokens if open_rows else row.tokens
        if open_rows and longest * (len(open_rows) + 1) > tokens_max:
            batches.append(MicroBatch(tuple(open_rows)))
            open_rows = []
        open_rows.append(row)
    if open_rows:
        batches.append(MicroBatch(tuple(open_rows)))
    return batches


def pack(
    items: Sequence[Item],
    *,
    chosen: Sequence[int],
    tokens_max: int,
    row_tokens_max: int,
    ranks: int,
    seed: int,
) -> Plan:
    """Return the plan for the chosen items. The same seed and metadata give the same plan.

    A single trajectory longer than `tokens_max` runs alone. Raises SettingsError for a budget or
    rank count below 1.
    """
    if tokens_max < 1 or row_tokens_max < 1 or ranks < 1:
        raise SettingsError("token budgets and ranks are at least 1", hint="see learner settings")
    rows = _rows(items, chosen, min(tokens_max, row_tokens_max))
    batches = _micro_batches(rows, tokens_max)
    loads = [0] * ranks
    by_rank: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for batch in sorted(batches, key=lambda batch: (-batch.cost, batch.members)):
        rank = min(range(ranks), key=lambda rank: (len(by_rank[rank]), loads[rank], rank))
        by_rank[rank].append(batch)
        loads[rank] += batch.cost
    rounds = max((len(share) for share in by_rank), default=0)
    for rank, share in enumerate(by_rank):
        share.sort(key=lambda batch: _draw(seed, rank, *batch.members))
        share.extend([MicroBatch(())] * (rounds - len(share)))
    return Plan(tuple(tuple(share) for share in by_rank))


def shuffled(episodes: Sequence[EpisodeId], *, seed: int) -> list[EpisodeId]:
    """Return the episodes in a global order drawn from the seed and their ids alone."""
    return sorted(episodes, key=lambda episode: _draw(seed, episode))

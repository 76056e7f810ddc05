"""Sums the reports of several chaos runs: what was hit in all, by engine and by edge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from infra.chaos.others import Sums, ratio

REPORT_NAME = "chaos.json"
_OTHERS = ("others_throughput_ratio", "others_turn_speed_ratio")


def reports_in(directory: Path) -> list[Mapping[str, Any]]:
    """Return the chaos reports of all run folders in a directory, oldest first; one that cannot be
    read, or is none, is passed over.
    """
    found: list[Mapping[str, Any]] = []
    for path in sorted(directory.glob(f"*/{REPORT_NAME}")):
        try:
            one = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue
        if isinstance(one, dict) and "kills_by_edge" in one:
            found.append(one)
    return found


def totals(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over campaigns: JSON values, described in `docs/chaos.md`."""
    kills: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    others: dict[str, dict[str, list[Sums]]] = {name: defaultdict(list) for name in _OTHERS}
    sums: Counter[str] = Counter(
        campaigns=0, not_closed=0, violations=0, committed_tokens_decoded_twice=0
    )
    for one in reports:
        engine = str(one.get("engine", "unknown"))
        kills[engine] += one["kills"]
        for name, by_engine in others.items():
            by_engine[engine] += [_sums(row) for row in one.get(name, {}).get("moments", ())]
        edges.update(one["kills_by_edge"])
        acts.update(one["kills_by_act"])
        sums["campaigns"] += 1
        sums["not_closed"] += not one["closed"]
        sums["violations"] += one["violations"]
        sums["committed_tokens_decoded_twice"] += one["committed_tokens_decoded_twice"]
    return {
        **sums,
        "kills": kills.total(),
        "kills_by_engine": dict(kills.most_common()),
        "kills_by_act": dict(acts.most_common()),
        "kills_by_edge": dict(edges.most_common()),
        **{
            name: {engine: asdict(ratio(rows)) for engine, rows in by_engine.items() if rows}
            for name, by_engine in others.items()
        },
    }


def _sums(row: Sequence[int]) -> Sums:
    before_tokens, before_ms, after_tokens, after_ms = row
    return Sums(
        before_tokens=before_tokens, before_ms=before_ms, after_tokens=after_tokens,
        after_ms=after_ms,
    )  # fmt: skip

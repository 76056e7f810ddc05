"""Sums the reports of several chaos runs: what was hit in all, by engine and by edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

REPORT_NAME = "chaos.json"


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
    sums: Counter[str] = Counter(
        campaigns=0, not_closed=0, violations=0, committed_tokens_decoded_twice=0
    )
    for one in reports:
        kills[str(one.get("engine", "unknown"))] += one["kills"]
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
    }

"""Compares the versions stamped on a turn's commits with the engine's own account (design 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.ids import Version


def merged(spans: Iterable[tuple[Version, int, int]]) -> tuple[tuple[Version, int, int], ...]:
    """Join neighbouring spans of one version and leave out empty ones."""
    out: list[tuple[Version, int, int]] = []
    for version, start, end in spans:
        if end <= start:
            continue
        if out and out[-1][0] == version and out[-1][2] == start:
            out[-1] = (version, out[-1][1], end)
        else:
            out.append((version, start, end))
    return tuple(out)


def mismatch(
    stamped: Sequence[tuple[Version, int, int]],
    attested: Sequence[tuple[Version, int, int]] | None,
) -> str | None:
    """Say how stamped and attested spans of one engine request differ, or None when they are equal.

    Both count from the request's first generated token. An engine that attests nothing is a
    mismatch.
    """
    if attested is None:
        return "the engine gave no account of its versions"
    ours, theirs = merged(stamped), merged(attested)
    if ours == theirs:
        return None
    return f"stamped {_text(ours)}, the engine says {_text(theirs)}"


def _text(spans: Sequence[tuple[Version, int, int]]) -> str:
    return ", ".join(f"{version} {start}-{end}" for version, start, end in spans) or "no tokens"

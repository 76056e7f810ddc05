"""The processes that a worker has started: its engine's, which may die while the worker lives."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, nearest first; empty when it is gone."""
    found: list[int] = []
    waiting = _children(pid)
    while waiting:
        found += waiting
        waiting = [child for one in waiting for child in _children(one)]
    return found


def engine_processes(pid: int) -> list[int]:
    """Return vLLM's living processes below a worker; it names them `VLLM::...`. One that has died
    and was not waited for yet keeps its name and is left out.
    """
    return [one for one in descendants(pid) if _name(one).startswith("VLLM") and not _is_dead(one)]


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in (_PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _is_dead(pid: int) -> bool:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return True
    # The name before it, in brackets, may hold anything.
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")

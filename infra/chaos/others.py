"""Whether the workers that a death did not touch went on as before.

A pure core. Deaths that follow one another within a window are one moment; before it and after it
lies a window each. A worker is looked at when it neither died nor stood still in either, and was
back for a window before them. What others do is told in two ways: all their tokens, new turns and
those of the dead worker included, and the speed of the turns that they had in hand, which does not
depend on how much work there was. Both are ratios of sums, so that a window without tokens counts
like any other; the interval resamples moments, since what lies around one moment belongs together.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.run.history import Interval

WINDOW_MS = 2_000
"""How long before and after a moment is looked at. Unit: ms."""
_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """A time in which a worker could not work; of everybody when it names none."""

    worker_id: str
    from_ms: int
    to_ms: float
    """Unit: ms; infinite for one that never came back."""

    def touches(self, worker_id: str, since_ms: float, to_ms: float) -> bool:
        """Whether a worker was hindered between two times, or had only just come back."""
        is_its = self.worker_id in ("", worker_id)
        return is_its and self.from_ms < to_ms and self.to_ms + WINDOW_MS > since_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Deaths that lie within a window of one another."""

    from_ms: int
    to_ms: int

    @property
    def since_ms(self) -> int:
        """Where the window before it begins."""
        return self.from_ms - WINDOW_MS

    @property
    def until_ms(self) -> int:
        """Where the window after it ends."""
        return self.to_ms + WINDOW_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Tokens and time before and after one moment, over all that was looked at around it."""

    before_tokens: int
    before_ms: int
    after_tokens: int
    after_ms: int

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            before_tokens=self.before_tokens + other.before_tokens,
            before_ms=self.before_ms + other.before_ms,
            after_tokens=self.after_tokens + other.after_tokens,
            after_ms=self.after_ms + other.after_ms,
        )


NOTHING = Sums(before_tokens=0, before_ms=0, after_tokens=0, after_ms=0)


class Written(Protocol):
    """An accepted commit of one episode."""

    @property
    def at_ms(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def writer(self) -> tuple[str, str]: ...
    @property
    def is_action(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def ends_turn(self) -> bool: ...


def moments(deaths_ms: Iterable[int]) -> Iterator[Moment]:
    """Yield the moments of deaths, in their order."""
    times = sorted(deaths_ms)
    begin = 0
    for at, time_ms in enumerate(times):
        if at + 1 == len(times) or times[at + 1] - time_ms > WINDOW_MS:
            yield Moment(from_ms=times[begin], to_ms=time_ms)
            begin = at + 1


def untouched(
    workers: Iterable[str], moment: Moment, standstills: Sequence[Standstill]
) -> frozenset[str]:
    """Return the workers that nothing hindered in the windows around a moment."""
    return frozenset(
        worker
        for worker in workers
        if not any(one.touches(worker, moment.since_ms, moment.until_ms) for one in standstills)
    )


def throughput(
    written: Sequence[tuple[int, str, int]], moment: Moment, workers: frozenset[str]
) -> Sums:
    """Sum what workers committed in the windows around a moment. written: time, worker, tokens, in
    the order of time.
    """
    before = after = 0
    begin = bisect_right(written, moment.since_ms, key=lambda one: one[0])
    end = bisect_right(written, moment.until_ms, key=lambda one: one[0])
    for at_ms, worker, count in written[begin:end]:
        if worker in workers:
            before += count if at_ms <= moment.from_ms else 0
            after += count if at_ms > moment.to_ms else 0
    spent_ms = WINDOW_MS * len(workers)
    return Sums(
        before_tokens=before, before_ms=spent_ms, after_tokens=after, after_ms=spent_ms
    )  # fmt: skip


def speed(commits: Sequence[Written], moment: Moment, workers: frozenset[str]) -> Sums:
    """Return the tokens of the turn that one of the workers had in hand, in an episode's commits,
    and how long they took; nothing where there was none, or it was taken away later.
    """
    at = bisect_right(commits, moment.from_ms, key=lambda one: one.at_ms)
    last = commits[at - 1] if at else None
    if last is None or last.ends_turn or last.writer[0] not in workers:
        return NOTHING
    held: list[Written] = []
    for one in reversed(commits[:at]):
        if one.writer != last.writer or one.ends_turn or not one.is_action:
            break
        if one.at_ms < moment.since_ms:
            break
        held.append(one)
    before_ms = last.at_ms - held[-1].at_ms if held else 0
    after = _after(commits[at:], last, moment)
    if before_ms <= 0 or after is None:
        return NOTHING
    return Sums(
        before_tokens=sum(one.count for one in held[:-1]),
        before_ms=before_ms,
        after_tokens=after[0],
        after_ms=after[1],
    )


def _after(later: Sequence[Written], last: Written, moment: Moment) -> tuple[int, int] | None:
    """Return tokens and time from a turn's last commit before a moment to where the window after it
    ends: at a commit, or without one if none comes in time. None when the turn was taken away.
    """
    tokens = 0
    for one in later:
        if one.attempt != last.attempt or not one.is_action:
            # Its environment is gone, or asked for something else: that says nothing of the worker.
            return None
        if one.writer != last.writer or one.at_ms > moment.until_ms + WINDOW_MS:
            return tokens, moment.until_ms - last.at_ms
        tokens += one.count
        if one.ends_turn or one.at_ms >= moment.until_ms:
            return tokens, one.at_ms - last.at_ms
    return None


def ratio(sums: Iterable[Sums]) -> Interval:
    """Return the rate after moments over the rate before them, with its 95 % interval: the middle
    of the same over moments drawn anew, with replacement. n: moments with anything around them.
    """
    kept = [one for one in sums if one.before_tokens or one.after_tokens]
    found = _ratio(kept)
    if found is None or len(kept) < 2:
        return Interval(mean=found, low=None, high=None, n=len(kept))
    chance = random.Random(0)
    drawn = sorted(
        one
        for _ in range(_RESAMPLES)
        if (one := _ratio(chance.choices(kept, k=len(kept)))) is not None
    )
    low, high = (drawn[int(share * (len(drawn) - 1))] for share in (0.025, 0.975))
    return Interval(mean=found, low=low, high=high, n=len(kept))


def _ratio(sums: Sequence[Sums]) -> float | None:
    before = sum(one.before_tokens for one in sums) * sum(one.after_ms for one in sums)
    after = sum(one.after_tokens for one in sums) * sum(one.before_ms for one in sums)
    return after / before if before else None

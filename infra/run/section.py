"""What a section of the report is: a plot, tables, sentences, or why there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.errors import RejectedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as people read them."""

    heads: Sequence[str]
    """The columns' names; one that begins with `#` holds numbers, which stand to the right."""
    rows: Sequence[Sequence[str]]
    sum: Sequence[str] = ()
    """The last row, set off from the others; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the report; every text is plain, the template escapes it."""

    title: str
    how: str
    """A sentence on how to read it."""
    svg: str = ""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    """Sentences that say what was found."""
    alarms: Sequence[str] = ()
    """Sentences on what should not be; they stand at the head of the report too."""
    absent: str = ""
    """Why there is nothing to show; empty when there is."""


def told(title: str, how: str, make: Callable[[], Section]) -> Section:
    """Return a section, or why it has nothing to show: `make` raises RejectedError with the
    reason when the tables of the run did not answer.
    """
    try:
        return make()
    except RejectedError as error:
        absent = f"The tables of the run told nothing: {error.message}."
        return Section(title=title, how=how, absent=absent)


def seconds(value: float) -> str:
    """Return a length of time to the millisecond."""
    return f"{value:,.3f} s"


def share(part: float, whole: float) -> str:
    """Return a share in percent; a dash where there is no whole."""
    return f"{part / whole:.1%}" if whole else "-"


def figure(value: float | None) -> str:
    """Return a measured number that has no unit, or `-`."""
    return "-" if value is None else f"{value:.4g}"

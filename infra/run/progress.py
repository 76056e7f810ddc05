"""Live progress of a run on stderr: a table that is redrawn on a terminal, a line every ten seconds
elsewhere.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.figures import readable
from infra.run.history import History, Quantiles, quantiles

_LINE_EVERY_S = 10.0
_RECENT_STEPS = 5


def _three(q: Quantiles, unit: str) -> str:
    if q.p50 is None or q.p95 is None or q.p99 is None:
        return "-"
    return f"{readable(q.p50)} / {readable(q.p95)} / {readable(q.p99)} {unit} (n {q.n})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


class Progress:
    """Shows what a run does and what it waits for."""

    def __init__(self, *, steps_budget: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._budget = steps_budget
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._last_line_s = -_LINE_EVERY_S
        self._messages: list[str] = []

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(self, history: History, *, now_s: float, began_s: float, waiting_for: str) -> None:
        """Redraw, or print a line when it is time."""
        rows = self._rows(history, elapsed_s=now_s - began_s, waiting_for=waiting_for)
        if self._console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for name, value in rows:
                table.add_row(Text(name, style="dim"), Text(value))
            self._live.update(Panel(Group(table), title="sluice run", border_style="dim"))
        elif now_s - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now_s
            self.say("  ".join(f"{name}: {value}" for name, value in rows if value != "-"))

    def _rows(
        self, history: History, *, elapsed_s: float, waiting_for: str
    ) -> list[tuple[str, str]]:
        steps = history.ordered_steps()
        members = [member for row in steps for member in row.event.trained]
        recent = history.rewards(steps[-_RECENT_STEPS:])
        spread = "-"
        if recent.mean is not None:
            low, high = _share(recent.low), _share(recent.high)
            last = min(len(steps), _RECENT_STEPS)
            spread = f"{recent.mean:.2f} [{low}, {high}] over the last {last} steps"
        kept = sum(m.kept_tokens for m in members)
        rate = (
            f"{history.action_tokens / elapsed_s:.0f} raw, {kept / elapsed_s:.0f} effective"
            if elapsed_s > 0
            else "-"
        )
        return [
            ("time", f"{elapsed_s:.0f} s"),
            ("step", f"{len(steps)} of {self._budget}"),
            ("reward", spread),
            ("tokens/s", rate),
            ("lag p50/p95/p99", _three(quantiles(m.lag_steps for m in members), "updates")),
            ("age p50/p95/p99", _three(quantiles(m.age_ms / 1e3 for m in members), "s")),
            ("episodes", self._episodes(history)),
            ("serving", ", ".join(sorted(set(history.serving.values()))) or "-"),
            ("waiting for", waiting_for),
        ]

    @staticmethod
    def _episodes(history: History) -> str:
        running = len(history.leased)
        parts = [
            f"issued {len(history.issued)}",
            f"running {running}",
            f"ended {len(history.finished)}",
        ]
        parts.append(f"assembled {len(history.trajectories)}")
        dropped = sum(history.dropped.values()) + sum(history.skipped.values())
        if dropped:
            parts.append(f"dropped {dropped}")
        if history.gone:
            parts.append(f"abandoned {len(history.gone)}")
        return ", ".join(parts)


def what_it_waits_for(history: History, *, alive: set[str], batch: int) -> str:
    """Name what the run waits for now, from the outside in."""
    if not history.epoch:
        return "the learner to start"
    if not history.versions:
        return "the starting weights to be published"
    if not history.serving and not history.writers:
        return "an inference worker to serve"
    if not history.issued:
        return "the scheduler to issue work"
    if not history.leased and len(history.finished) < len(history.issued):
        return "an environment worker to take a lease"
    if len(history.finished) < batch * (len(history.steps) + 1):
        return "episodes to fill a batch"
    if len(history.trajectories) < len(history.finished):
        return "verdicts and assembly"
    return "the learner's step" if "learner-0" in alive else "the learner to come back"

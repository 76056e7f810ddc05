"""The sections of a run's report that its topics tell: learning, lag, use of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.ticker import FuncFormatter, NullFormatter

from infra.run.drawing import COLOURS, ROW_IN, axes_of, by_update, legend, lines, svg
from infra.run.history import History, StepRow, quantiles
from infra.run.section import Section, figure, seconds
from schemas.records.parts import TrainedMember

_SMALLEST_MS = 1e-3
"""Zero has no place on a logarithmic axis."""
_NO_UPDATE = "The learner has made no update yet."
_MFU = (
    "Model FLOPs utilisation: 3 · tokens · (2 · parameters + 4 · layers · width · row tokens) "
    "operations of forward and backward, padding included, over their seconds times the peak of "
    "all ranks (learner.peak_tflops · learner.ranks)."
)


def of_topics(history: History) -> dict[str, Section]:
    """Return the sections by name."""
    steps = history.ordered_steps()
    trained = [row for row in steps if row.event.trained]
    timed = [row for row in steps if row.event.phases_us]
    return {
        "reward": _of_steps(
            "Reward",
            "Mean of each update's trajectories; the band is the 95 % interval over groups.",
            trained,
            draw=lambda: _reward(history, trained),
            say=lambda row: f"mean reward {figure(history.rewards([row]).mean)}",
        ),
        "lag": _of_members(
            "Policy lag at consumption",
            "Optimiser updates between the version of the oldest token and the consuming one.",
            trained,
            "updates",
            lambda member: float(member.lag_steps),
        ),
        "kl": _of_members(
            "KL at consumption",
            "Mean KL estimate (k3) of the behaviour and the consuming policy over the action "
            "tokens of each trajectory, in nats.",
            trained,
            "nats",
            lambda member: member.kl,
        ),
        "age": _of_members(
            "Buffer age at consumption",
            "From the Trajectory's broker time to its use.",
            trained,
            "seconds",
            lambda member: member.age_ms / 1e3,
        ),
        "latencies": _latencies(history),
        "phases": _of_steps(
            "Where the learner's time goes",
            "Phases of each update; together they are the time from one update to the next.",
            timed,
            draw=lambda: _phases(timed),
            say=lambda row: ", ".join(
                f"{name} {seconds(us / 1e6)}" for name, us in sorted(row.event.phases_us.items())
            ),
        ),
        "mfu": _mfu(steps),
    }


def _of_steps(
    title: str, how: str, steps: Sequence[StepRow], *, draw: Callable[[], str],
    say: Callable[[StepRow], str],
) -> Section:  # fmt: skip
    """One update is a sentence: a curve takes two."""
    if not steps:
        return Section(title=title, how=how, absent=_NO_UPDATE)
    if len(steps) == 1:
        return Section(title=title, how=how, absent=f"One update so far: {say(steps[0])}.")
    return Section(title=title, how=how, svg=draw())


def _of_members(
    title: str, how: str, steps: Sequence[StepRow], unit: str,
    value: Callable[[TrainedMember], float],
) -> Section:  # fmt: skip
    def say(row: StepRow) -> str:
        q = quantiles(value(member) for member in row.event.trained)
        three = ", ".join(f"{name} {figure(getattr(q, name))}" for name in ("p50", "p95", "p99"))
        return f"{three} {unit} over {q.n:,} trajectories"

    return _of_steps(title, how, steps, draw=lambda: _per_step(steps, unit, value), say=say)


def _mfu(steps: Sequence[StepRow]) -> Section:
    title = "Use of the hardware (MFU)"
    found = [(row.ordinal, row.event.metrics.get("mfu_ratio", 0.0)) for row in steps]
    if not found:
        return Section(title=title, how=_MFU, absent=_NO_UPDATE)
    kept = [(ordinal, ratio) for ordinal, ratio in found if ratio > 0.0]
    if not kept:
        absent = "Not known: learner.peak_tflops is not set, so that no peak can be divided by."
        return Section(title=title, how=_MFU, absent=absent)
    q = quantiles(ratio for _, ratio in kept)
    assert q.p50 is not None
    assert q.max is not None
    drawn = lines([("", [x for x, _ in kept], [y for _, y in kept])], "ratio")
    return Section(
        title=title, how=_MFU, svg=drawn if q.n > 1 else "",
        notes=[f"p50 {q.p50:.1%}, max {q.max:.1%}, n {q.n:,} updates."],
    )  # fmt: skip


def _reward(history: History, steps: Sequence[StepRow]) -> str:
    drawing, axes = axes_of(2.7)
    names = sorted({member.environment for row in steps for member in row.event.trained})
    for name in (None, *(names if len(names) > 1 else ())):
        rows = [(row.ordinal, history.rewards([row], name)) for row in steps]
        kept = [(x, found, found.mean) for x, found in rows if found.mean is not None]
        xs = [x for x, _, _ in kept]
        means = [mean for _, _, mean in kept]
        only = names[0] if len(names) == 1 else "all"
        axes.plot(xs, means, label=name or only, lw=2.2 if name is None else 1.1, marker=".")
        if name is None:
            low = [mean if found.low is None else found.low for _, found, mean in kept]
            high = [mean if found.high is None else found.high for _, found, mean in kept]
            axes.fill_between(xs, low, high, alpha=0.18)
    by_update(axes, "mean reward")
    legend(axes)
    return svg(drawing)


def _per_step(steps: Sequence[StepRow], unit: str, value: Callable[[TrainedMember], float]) -> str:
    drawing, axes = axes_of(2.0)
    rows = [(row.ordinal, quantiles(value(m) for m in row.event.trained)) for row in steps]
    kept = [(x, q) for x, q in rows if q.n]
    # The widest line is drawn first, so that equal percentiles stay visible beside one another.
    for name, width in (("p99", 3.6), ("p95", 2.2), ("p50", 1.0)):
        axes.plot(
            [x for x, _ in kept],
            [getattr(q, name) for _, q in kept],
            label=name,
            lw=width,
            drawstyle="steps-mid",
            color=COLOURS[("p50", "p95", "p99").index(name)],
        )
    by_update(axes, unit)
    legend(axes)
    return svg(drawing)


def _latencies(history: History) -> Section:
    title, how = "Stage latencies", "Box: quartiles; whiskers: p5 and p95; logarithmic."
    stages = [
        ("first token", history.ttft_ms),
        ("commit", history.commit_ms),
        ("verify", history.verify_ms),
        ("environment reset", history.reset_ms),
        ("environment step", history.step_ms),
        ("refresh pause", history.refresh_ms),
        *((f"learner: {name}", rows) for name, rows in sorted(history.phases_ms.items())),
    ]
    filled = [(name, [max(v, _SMALLEST_MS) for v in rows]) for name, rows in stages if rows]
    if not filled:
        return Section(title=title, how=how, absent="Nothing has been measured yet.")
    drawing, axes = axes_of(0.7 + ROW_IN * max(3, len(filled)))
    axes.boxplot(
        [rows for _, rows in filled],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": COLOURS[0] + "55", "edgecolor": COLOURS[0]},
        whiskerprops={"color": COLOURS[0]},
        capprops={"color": COLOURS[0]},
        medianprops={"color": COLOURS[1], "linewidth": 1.6},
    )
    axes.set_yticks(
        range(1, len(filled) + 1), [f"{name} (n {len(rows):,})" for name, rows in filled]
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: _time(ms)))
    axes.grid(visible=False, axis="y")
    return Section(title=title, how=how, svg=svg(drawing))


def _time(ms: float) -> str:
    if ms < 1.0:
        return f"{ms * 1e3:g} µs"
    return f"{ms:g} ms" if ms < 1_000 else f"{ms / 1e3:g} s"


def _phases(steps: Sequence[StepRow]) -> str:
    drawing, axes = axes_of(2.6)
    names = sorted({name for row in steps for name in row.event.phases_us})
    largest = sorted(names, key=lambda n: -sum(r.event.phases_us.get(n, 0) for r in steps))
    shown, rest = largest[: len(COLOURS) - 1], largest[len(COLOURS) - 1 :]
    floor = [0.0] * len(steps)
    for name in (*shown, "the rest") if rest else shown:
        parts = rest if name == "the rest" else [name]
        height = [sum(row.event.phases_us.get(p, 0) for p in parts) / 1e6 for row in steps]
        axes.bar([row.ordinal for row in steps], height, bottom=floor, label=name, width=0.8)
        floor = [low + high for low, high in zip(floor, height, strict=True)]
    by_update(axes, "seconds")
    legend(axes)
    return svg(drawing)

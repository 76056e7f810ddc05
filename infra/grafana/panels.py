"""Panels: one canned query, one quantity, or one exported metric each, with unit and definition.

Invariant: a panel of percentiles shows p50, p95 and p99 beside the number of samples, and says in
its description what is measured and which canned query it asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import barchart, stat, table, timeseries, trend
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models.common import (
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue, Threshold, ThresholdsMode

from infra.exporter import catalogue
from infra.grafana.asking import CLICKHOUSE, PROMETHEUS, expression, statement
from infra.tables.quantities import QUANTITIES
from infra.tables.questions import BY_NAME

HALF, THIRD, WHOLE = 12, 8, 24
"""Widths, in columns of Grafana's grid."""
_HEIGHT = 8
_MINUTE = "1m"
"""The tables' own resolution: nothing finer is asked of them."""
_UNITS = {"s": "s", "ms": "ms", "ratio": "none", "reward": "none", "share": "percentunit"}
_QUANTITIES = {one.name: one for one in QUANTITIES}
_EXPORTED = {f"sluice_{one.name}": one.text for one in catalogue.ALL}
_CUTS = (0.5, 0.95, 0.99)

Properties = list[DynamicConfigValue]


def unit_of(unit: str) -> str:
    """Return Grafana's id of a unit; one that it has no name for follows the figure."""
    return _UNITS.get(unit, f"suffix: {unit}")


def limits(warn: float | None, fail: float | None = None) -> ThresholdsConfig:
    """Return thresholds: green below `warn`, then yellow, red from `fail` on."""
    steps = [Threshold(value=None, color="green")]
    if warn is not None:
        steps.append(Threshold(value=warn, color="yellow"))
    if fail is not None:
        steps.append(Threshold(value=fail, color="red"))
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _aside(unit: str) -> Properties:
    """Return how a count is drawn beside figures: faint bars on an axis of its own."""
    return [
        DynamicConfigValue(id_val="custom.axisPlacement", value="right"),
        DynamicConfigValue(id_val="custom.drawStyle", value="bars"),
        DynamicConfigValue(id_val="custom.fillOpacity", value=12),
        DynamicConfigValue(id_val="custom.lineWidth", value=0),
        DynamicConfigValue(id_val="unit", value=unit_of(unit)),
        DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "text"}),
    ]


_DASHED: Properties = [
    DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 6]}),
    DynamicConfigValue(id_val="custom.lineWidth", value=1),
]


def _legend() -> VizLegendOptions:
    return (
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _tooltip() -> VizTooltipOptions:
    return VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)


def over_time(
    name: str, title: str, *, unit: str = "", width: int = HALF, stacked: bool = False,
    warn: float | None = None, fail: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a panel of a canned query over time; a column `n` is drawn aside."""
    one = BY_NAME[name]
    panel = _lines(title, f"{one.answers} Canned query: {name}.", unit or one.unit, width)
    panel = panel.datasource(CLICKHOUSE).interval(_MINUTE).with_target(statement(one))
    panel = panel.override_by_name("n", _aside("samples")).override_by_name("max", _DASHED)
    if stacked:
        stacks = StackingConfig().mode(StackingMode.NORMAL).group("A")
        panel = panel.fill_opacity(60).stacking(stacks)
    return _limited(panel, warn, fail)


def quantity(
    name: str, title: str = "", *, width: int = HALF,
    warn: float | None = None, fail: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a panel of the percentiles of one quantity over time."""
    one = _QUANTITIES[name]
    meaning = f"{one.definition[0].upper()}{one.definition[1:]}."
    told = f"{meaning} Percentiles of all samples, from {one.source.record} records. "
    panel = _lines(
        title or name, f"{told}Canned query: quantity_over_time ({name}).", one.unit, width
    )
    asked = statement(BY_NAME["quantity_over_time"], {"quantity": name})
    panel = panel.datasource(CLICKHOUSE).interval(_MINUTE).with_target(asked)
    panel = panel.override_by_name("n", _aside("samples")).override_by_name("max", _DASHED)
    panel = panel.override_by_name("bad", _aside("not finite"))
    return _limited(panel, warn, fail)


def _lines(title: str, description: str, unit: str, width: int) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit_of(unit))
        .span(width)
        .height(_HEIGHT)
        .line_width(2)
        .show_points(VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(_tooltip())
        .no_value("no samples in this range")
    )


def _limited(panel: timeseries.Panel, warn: float | None, fail: float | None) -> timeseries.Panel:
    if warn is None:
        return panel
    drawn = GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return panel.thresholds(limits(warn, fail)).thresholds_style(drawn)


def by_step(
    name: str, title: str, *, unit: str = "", width: int = HALF,
    warn: float | None = None, fail: float | None = None,
) -> trend.Panel:  # fmt: skip
    """Return a panel of a canned query by update; a column `n` is drawn aside."""
    one = BY_NAME[name]
    panel = (
        trend.Panel()
        .title(title)
        .description(f"{one.answers} By update of the learner. Canned query: {name}.")
        .unit(unit_of(unit or one.unit))
        .span(width)
        .height(_HEIGHT)
        .datasource(CLICKHOUSE)
        .with_target(statement(one))
        .x_field("ordinal")
        .line_width(2)
        .show_points(VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(_tooltip())
        .override_by_name("n", _aside("samples"))
        .override_by_name("max", _DASHED)
        .override_by_name("ordinal", [DynamicConfigValue(id_val="unit", value="none")])
        .no_value("no update in this range")
    )
    if warn is None:
        return panel
    drawn = GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return panel.thresholds(limits(warn, fail)).thresholds_style(drawn)


def rows(
    name: str, title: str, *, width: int = HALF, height: int = _HEIGHT,
    units: Mapping[str, str] | None = None, more: Mapping[str, Properties] | None = None,
) -> table.Panel:  # fmt: skip
    """Return a table of a canned query; `units` names those of columns."""
    one = BY_NAME[name]
    panel = (
        table.Panel()
        .title(title)
        .description(f"{one.answers} Unit: {one.unit}. Canned query: {name}.")
        .span(width)
        .height(height)
        .datasource(CLICKHOUSE)
        .with_target(statement(one))
        .no_value("none")
    )
    for column, unit in (units or {}).items():
        panel = panel.override_by_name(
            column, [DynamicConfigValue(id_val="unit", value=unit_of(unit))]
        )
    for column, properties in (more or {}).items():
        panel = panel.override_by_name(column, properties)
    return panel


def bars(name: str, title: str, x_field: str, *, width: int = HALF) -> barchart.Panel:
    """Return bars of a canned query, one a row, named by the column `x_field`."""
    one = BY_NAME[name]
    return (
        barchart.Panel()
        .title(title)
        .description(f"{one.answers} Canned query: {name}.")
        .unit(unit_of(one.unit))
        .span(width)
        .height(_HEIGHT)
        .datasource(CLICKHOUSE)
        .with_target(statement(one))
        .x_field(x_field)
        .orientation(VizOrientation.HORIZONTAL)
        .show_value(VisibilityMode.AUTO)
        .legend(VizLegendOptions().show_legend(False).display_mode(LegendDisplayMode.HIDDEN)
                .placement(LegendPlacement.BOTTOM).calcs([]))
        .tooltip(_tooltip())
        .no_value("nothing yet")
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of a row of tiles."""

    column: str
    title: str
    unit: str


def tiles(name: str, title: str, shown: Sequence[Tile], *, width: int = WHOLE) -> stat.Panel:
    """Return figures of the only row of a canned query, side by side."""
    one = BY_NAME[name]
    names = "|".join(tile.column for tile in shown)
    panel = (
        stat.Panel()
        .title(title)
        .description(f"{one.answers} Canned query: {name}.")
        .span(width)
        .height(4)
        .datasource(CLICKHOUSE)
        .with_target(statement(one))
        .reduce_options(
            ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields(f"/^({names})$/")
        )
        .no_value("-")
    )
    for tile in shown:
        panel = panel.override_by_name(
            tile.column,
            [
                DynamicConfigValue(id_val="displayName", value=tile.title),
                DynamicConfigValue(id_val="unit", value=unit_of(tile.unit)),
            ],
        )
    return panel


def live(
    title: str, metric: str, unit: str, asked: Sequence[tuple[str, str]], *, width: int = HALF,
    warn: float | None = None, fail: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a panel on Prometheus: pairs of legend and expression on one exported metric."""
    panel = _lines(title, f"{_EXPORTED[metric]} From Prometheus ({metric}).", unit, width)
    panel = panel.datasource(PROMETHEUS)
    for place, (legend, promql) in enumerate(asked):
        panel = panel.with_target(expression(promql, legend, chr(ord("A") + place)))
    return _limited(panel.override_by_name("n", _aside("samples")), warn, fail)


def recorded(
    title: str, rule: str, meaning: str, unit: str, *, width: int = HALF,
    warn: float | None = None, fail: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return a panel of one recording rule of infra/prometheus."""
    panel = _lines(title, f"{meaning} From Prometheus (rule {rule}).", unit, width)
    asked = expression(f'{rule}{{run="$run_id"}}', rule.rpartition(":")[2], "A")
    return _limited(panel.datasource(PROMETHEUS).with_target(asked), warn, fail)


def firing() -> timeseries.Panel:
    """Return a panel of the alerts of infra/prometheus that fire for the run."""
    told = "Alerts of infra/prometheus that fire, by name. From Prometheus (ALERTS)."
    promql = 'count by (alertname) (ALERTS{alertstate="firing", run="$run_id"})'
    panel = _lines("Alerts that fire", told, "alerts", HALF).datasource(PROMETHEUS)
    return panel.with_target(expression(promql, "{{alertname}}", "A")).no_value("none fires")


def distribution(
    title: str, metric: str, where: str = "", *, width: int = HALF,
    warn: float | None = None, fail: float | None = None,
) -> timeseries.Panel:  # fmt: skip
    """Return p50, p95, p99 and n of an exported histogram of seconds, by its buckets."""
    chosen = f'{{run="$run_id"{where}}}'
    asked = [
        (
            f"p{round(cut * 100)}",
            f"histogram_quantile({cut}, sum by (le) (rate({metric}_bucket{chosen}"
            "[$__rate_interval])))",
        )
        for cut in _CUTS
    ]
    asked.append(("n", f"sum(increase({metric}_count{chosen}[$__rate_interval]))"))
    return live(title, metric, "s", asked, width=width, warn=warn, fail=fail)

"""What panels ask: statements for Grafana's ClickHouse source, expressions for its Prometheus one.

Source: grafana/clickhouse-datasource, src/types/sql.ts, for the model of a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.runtime import DataqueryConfig, Runtime
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from infra.tables.canned import Canned, Shape, in_grafana

CLICKHOUSE_TYPE = "grafana-clickhouse-datasource"
CLICKHOUSE = DataSourceRef(type_val=CLICKHOUSE_TYPE, uid="${clickhouse}")
PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${prometheus}")
"""Both are chosen on the dashboard, so that it can be imported anywhere."""

_TIME_SERIES, _TABLE = 0, 1
_MODEL = "4.0.0"
"""Of the plugin, whose query model this is; a later one reads it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Dataquery, Builder[Dataquery]):
    """One statement for the ClickHouse source."""

    sql: str
    is_over_time: bool
    ref_id: str = "A"

    def build(self) -> Dataquery:
        """Return itself: it is whole from the start."""
        return self

    def to_json(self) -> dict[str, object]:
        """Return what Grafana stores."""
        return {
            "datasource": CLICKHOUSE.to_json(),
            "editorType": "sql",
            "format": _TIME_SERIES if self.is_over_time else _TABLE,
            "pluginVersion": _MODEL,
            "queryType": "timeseries" if self.is_over_time else "table",
            "rawSql": self.sql,
            "refId": self.ref_id,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statement:
        """Return what was stored; raise KeyError when it is no statement of ours."""
        return cls(
            sql=data["rawSql"], is_over_time=data["format"] == _TIME_SERIES, ref_id=data["refId"]
        )


def know_statements() -> None:
    """Tell the SDK how a statement is read back; it knows the sources of Grafana itself."""
    Runtime().register_dataquery_variant(
        DataqueryConfig(identifier=CLICKHOUSE_TYPE, from_json_hook=Statement.from_json)
    )


def statement(one: Canned, values: Mapping[str, str] | None = None, ref_id: str = "A") -> Statement:
    """Return what a panel asks for a canned query; `values` are fixed by the panel."""
    return Statement(
        sql=in_grafana(one, values), is_over_time=one.shape is Shape.OVER_TIME, ref_id=ref_id
    )


def expression(promql: str, legend: str, ref_id: str) -> PrometheusQuery:
    """Return what a panel asks Prometheus over its range."""
    return (
        PrometheusQuery()
        .expr(promql)
        .legend_format(legend)
        .range()
        .ref_id(ref_id)
        .datasource(PROMETHEUS)
    )

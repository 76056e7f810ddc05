"""What Grafana does to a statement before ClickHouse sees it, for the cases that we use.

Source: grafana/clickhouse-datasource, pkg/macros (the macros), and Grafana's `sqlstring` format of
a variable: quoted, a quote within it doubled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\{(\w+):sqlstring\}")


def expand(
    statement: str, *, values: Mapping[str, str], from_s: int, to_s: int, interval_s: int
) -> str:
    """Return the statement with variables and macros replaced; raise ValueError if one is left."""

    def filtered(found: re.Match[str]) -> str:
        column = found[1]
        return f"{column} >= toDateTime({from_s}) AND {column} <= toDateTime({to_s})"

    def quoted(found: re.Match[str]) -> str:
        return "'" + values[found[1]].replace("'", "''") + "'"

    text = _VARIABLE.sub(quoted, statement)
    text = re.sub(r"\$__timeFilter\((\w+)\)", filtered, text)
    text = re.sub(
        r"\$__timeInterval\((\w+)\)",
        rf"toStartOfInterval(toDateTime(\1), INTERVAL {interval_s} second)",
        text,
    )
    text = text.replace("$__interval_s", str(interval_s))
    if "$" in text or "{" in text:
        raise ValueError(f"something is left that Grafana does not replace: {text}")
    return text

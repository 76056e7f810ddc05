"""The dashboards of `infra/grafana` as they lie on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from infra.docs import ROOT

FOLDER = ROOT / "infra" / "grafana"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*"))
}


def panels(*, asking: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every panel that is no heading, with its dashboard; all, or of one kind of source."""
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            if panel["type"] != "row" and (not asking or panel["datasource"]["type"] == asking):
                yield name, panel

"""Writes the dashboards: `python -m infra.grafana.write`, or `make docs`.

Invariant: the files under `infra/grafana/dashboards` are what this writes, which a test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from infra.grafana.boards import BOARDS

FOLDER = Path(__file__).parent / "dashboards"


def dashboards() -> dict[Path, str]:
    """Return every dashboard by the file that it goes to."""
    made = {}
    for name, make in BOARDS.items():
        board = make().build()
        _finish(board)
        text = json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        made[FOLDER / f"{name}.json"] = text
    return made


def _finish(board: Dashboard) -> None:
    """Give panels ids in their order: links to one panel and alerts name it by that.

    What the SDK presets of intervals is taken from variables that are none: Grafana's own schema
    has it on no other kind.
    """
    for place, panel in enumerate(board.panels or (), start=1):
        panel.id_val = place
    for variable in (board.templating.list_val or ()) if board.templating else ():
        variable.auto = variable.auto_min = variable.auto_count = None


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in dashboards().items():
        path.write_text(text)
        sys.stderr.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()

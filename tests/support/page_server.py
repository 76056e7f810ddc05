"""The live page's server over the tables of the runs that its tests show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import page_run, selected_runs, small_run
from tests.support.browser import Page
from tests.support.table_process import ROOT, Tables

SELECTED = selected_runs.NO_LONG
SELECTED_AT_MS = (small_run.T0 - 2 * 86_400) * 1000
"""Before the other runs of the page."""

Open = Callable[..., Page]
"""Opens a page: what follows its address, then width and dark by name."""


@contextmanager
def serving(folder: Path, model: Path) -> Iterator[str]:
    """Fill tables in an empty folder and serve the page over them; yields its address.

    model: an empty folder for the tokenizer.
    """
    tables = Tables(folder)
    page_run.fill(tables, page_run.rows())
    selected_runs.fill(tables, SELECTED, at_ms=SELECTED_AT_MS)
    tables.roll()
    tables.close()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.page_process", str(folder), str(model)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.stdin.close()
    server.wait(20)

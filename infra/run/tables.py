"""The tables of a run that is over: those of its folder, or of the server that it wrote to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infra.run.folder import RunFolder, is_conducted
from infra.settings import read_resolved
from schemas.errors import Boundary, SettingsError, TransientError

if TYPE_CHECKING:
    from stream_jobs.sink_engines import Engine

MEMORY_BYTES_MAX = 2_000_000_000


def require_tables(folder: RunFolder) -> None:
    """Raise SettingsError when a run has no tables anywhere, TransientError while another process
    conducts it: a folder is opened once, so that who looked while the run's sink starts would keep
    that out.
    """
    if (folder.tables.is_dir() or not _server(folder)) and is_conducted(folder):
        raise TransientError(
            f"the run {folder.root.name} goes on, but its sink does not answer",
            boundary=Boundary.STORE,
            hint="ask again in a moment: it starts, or is started again; if it stays so, "
            f"{folder.logs}/sink-0.log says why",
        )
    if not folder.tables.is_dir() and not _server(folder):
        raise SettingsError(
            f"{folder.root} has neither a sink that runs nor tables",
            hint="the sink writes them while the run goes on; was it ever started?",
        )


def open_tables(folder: RunFolder, *, seconds_max: float, rows_max: int) -> Engine:
    """Return what answers, within limits for one query, on the thread that will ask.

    Nobody else may have the folder open meanwhile. Raises SettingsError without tables,
    RejectedError when another process holds them, TransientError when the server is away.
    """
    from stream_jobs.sink_engines import EmbeddedEngine, Limits, ServerEngine

    require_tables(folder)
    # Nobody runs beside it, so that a query may have all processors.
    limits = Limits(
        seconds_max=seconds_max, rows_max=rows_max, memory_bytes_max=MEMORY_BYTES_MAX,
        threads_max=os.cpu_count() or 1,
    )  # fmt: skip
    if folder.tables.is_dir():
        return EmbeddedEngine(folder.tables, limits)
    return ServerEngine(_server(folder), limits)


def _server(folder: RunFolder) -> str:
    return read_resolved(folder.settings).sink.server_url if folder.settings.exists() else ""

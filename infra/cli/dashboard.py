"""`sluice dashboard`: where the live page of a run is; serves it here once the run is over."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import httpx
import orjson

from infra.cli.output import json_option, run_argument, runs_option, show_json
from infra.run.folder import RunFolder, find, read_start
from infra.run.naming import LAST
from infra.run.tables import open_tables, require_tables
from infra.settings import read_resolved
from schemas.errors import Boundary, BusUnreachableError, SettingsError

if TYPE_CHECKING:
    from stream_jobs.sink_http import Endpoint

_PING_S = 3.0
_SECONDS_MAX = 20.0
_ROWS_MAX = 100_000


@click.command()
@run_argument(default=LAST)
@runs_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True,
    help="Port for a run that is over; 0: a free one. A living run's sink has its own.",
)  # fmt: skip
@json_option
def dashboard(name: str, directory: Path, port: int, as_json: bool) -> None:
    """Print the address of the live page of RUN.

    While the run goes on its sink serves the page; afterwards this command does, until Ctrl-C.
    """
    folder = find(name, directory)
    living = _living(folder)
    if living:
        _tell(living, as_json=as_json)
        return
    require_tables(folder)
    asyncio.run(_serve(folder, port, as_json=as_json))


def _tell(url: str, *, as_json: bool) -> None:
    page = f"{url}/dashboard/"
    if as_json:
        show_json({"url": page}, lines=True)
    else:
        click.echo(page)


def _living(folder: RunFolder) -> str:
    try:
        url: str = orjson.loads(folder.sink_address.read_bytes())["url"]
        httpx.get(f"{url}/ping", timeout=_PING_S).raise_for_status()
    except (FileNotFoundError, KeyError, ValueError, httpx.HTTPError):
        return ""
    return url


async def _serve(folder: RunFolder, port: int, *, as_json: bool) -> None:
    from functools import partial

    from infra.dashboard.site import page_files, story_of
    from infra.replay import has_bytes
    from infra.run.bus import Doors, find_bus
    from infra.run.worker import codec_of
    from stream_jobs.sink_http import Endpoint
    from stream_jobs.sink_pages import Pages
    from stream_jobs.sink_store import Store

    settings, start = read_resolved(folder.settings), read_start(folder)
    doors = None
    try:
        doors = Doors(find_bus(start.bootstrap, start.registry, prefix=start.prefix))
        story = partial(
            story_of, consumers=doors.consumers, run_id=start.run_id, starts=start.starts,
            codec=codec_of(folder), model=Path(settings.model.path),
            has_bytes=has_bytes(settings.model_dump_json()),
        )  # fmt: skip
    except BusUnreachableError as error:
        click.echo(f"no stories of episodes: {error}", err=True)
        story = None
    store = await Store.open(
        lambda: open_tables(folder, seconds_max=_SECONDS_MAX, rows_max=_ROWS_MAX)
    )
    # The engine opens a folder once: `sluice sql` and `top` find the page's server by this file.
    listening = settings.sink.model_copy(
        update={"listen_port": port, "address_file": str(folder.sink_address)}
    )
    endpoint = Endpoint(store, listening, Pages(files=page_files(), story=story))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await _listen(endpoint)
        _tell(endpoint.url, as_json=as_json)
        await stop.wait()
    finally:
        await endpoint.stop()
        await store.close()
        if doors is not None:
            await doors.close()


async def _listen(endpoint: Endpoint) -> None:
    try:
        await endpoint.start()
    except SettingsError as error:
        if error.boundary is Boundary.STORE:
            raise
        # The endpoint is that of a sink and knows its setting only.
        raise SettingsError(
            error.message, hint="give another --port, or none for a free one"
        ) from error

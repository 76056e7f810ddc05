"""One role in this process: doors, context, signals, and the translation of its end into an exit
code.

Waits for: the broker (bounded by the consumers' settings) and for the role's own work. Unblocked
by: SIGTERM or SIGINT, which set `context.stop`; a second one ends the process at once. A supervised
process also stops when its parent is gone, so that a killed supervisor leaves nothing behind that
nobody watches.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry

from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.chaos.crash import arm_from
from infra.clock import MachineClock
from infra.exporter import catalogue as of
from infra.exporter.doors import MeteredConsumers, MeteredProducer
from infra.exporter.instruments import Instruments
from infra.exporter.serve import exporting
from infra.reach import patience_s
from infra.run.folder import RunFolder, RunStart, read_start
from infra.run.processes import EXIT_OVER, take_signals
from infra.run.roles import RoleSpec, spec_of
from infra.settings import RunSettings, read_resolved
from infra.topic_admin import count_brokers
from producers.kafka import KafkaProducer
from producers.settings import ProducerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.errors import SettingsError
from schemas.ids import RunId, WorkerId
from schemas.ports import Consumers, Context, Producer

if TYPE_CHECKING:
    from learner.core.canary import Surroundings
    from stream_jobs.sink_pages import Pages

_CLOSE_MS = 10_000
_PARENT_CHECK_S = 1.0
_LOG = logging.getLogger("sluice.worker")
_CHATTY = ("httpx", "httpx2", "httpcore", "aiokafka", "aiohttp.access")


def worker_id(role: str, index: int, run_id: str) -> WorkerId:
    """Return the id of a worker: role, place among its equals, and the end of the run's id, since
    the topic of workers is shared by runs.
    """
    return WorkerId(f"{role}-{index}@{run_id[-6:]}")


async def serve(role: str, *, index: int, folder: RunFolder, supervised: bool) -> int:
    """Run one role of the run in `folder` until it is done or asked to stop; return the exit code.

    It is 0, or `EXIT_OVER` for a supervised role that ended without being asked to: its supervisor
    cannot tell otherwise whether the run is over for it or somebody took its machine away.
    """
    spec = spec_of(role)
    arm_from(os.environ, f"{spec.name}-{index}")
    settings: RunSettings = read_resolved(folder.settings)
    start = read_start(folder)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop)
    take_signals()
    with exported(spec.name, index, folder, settings, start.run_id) as instruments:
        await _work(spec, index, folder, settings, start, stop, instruments, supervised)
    return EXIT_OVER if supervised and not stop.is_set() else 0


@contextmanager
def exported(
    role: str, index: int, folder: RunFolder, settings: RunSettings, run_id: RunId,
    *, registry: CollectorRegistry = REGISTRY,
) -> Iterator[Instruments]:  # fmt: skip
    """Export this process, and what alerts hold against it: the disks, and the bound of the lag."""
    with exporting(
        settings.metrics, targets=folder.targets, role=role, index=index, run_id=run_id,
        registry=registry,
    ) as instruments:  # fmt: skip
        instruments.watch_disk({"run": folder.root, "versions": folder.versions})
        instruments.add(of.LAG_BOUND, settings.training.max_lag_steps)
        yield instruments


async def _work(
    spec: RoleSpec, index: int, folder: RunFolder, settings: RunSettings, start: RunStart,
    stop: asyncio.Event, instruments: Instruments, supervised: bool,
) -> None:  # fmt: skip
    if not supervised:
        # Somebody waits at the terminal; who is supervised has more patience, and is tried again.
        count_brokers(start.bootstrap, limit_s=patience_s())
    clock = MachineClock()
    codec = codec_of(folder)
    me = worker_id(spec.name, index, start.run_id)
    written = ProducerSettings(bootstrap=start.bootstrap, prefix=start.prefix, client_id=me)
    producer: Producer = KafkaProducer(written, codec, clock)
    read = ConsumerSettings(
        bootstrap=start.bootstrap, prefix=start.prefix, client_id=me,
        topic_ids=dict(start.topic_ids),
    )  # fmt: skip
    door = KafkaConsumers(read, codec)
    consumers: Consumers = door
    watches = [asyncio.create_task(_watch_parent(stop))] if supervised else []
    if settings.metrics.enabled:
        producer = MeteredProducer(producer, instruments, clock)
        consumers = metered = MeteredConsumers(door, instruments)
        watches.append(asyncio.create_task(metered.watch_lag()))
    context = Context(
        run_id=start.run_id,
        worker_id=me,
        incarnation=uuid.uuid4().hex,
        producer=producer,
        consumers=consumers,
        clock=clock,
        starts=start.starts,
        secret=folder.secret.read_bytes(),
        stop=stop,
    )
    given = {
        "codec": codec,
        "bootstrap": start.bootstrap,
        "prefix": start.prefix,
        "migrations": table_definitions(),
        "observe": partial(_surroundings, settings, start.run_id),
        "instruments": instruments,
        "folder": folder.root,
    }
    if "pages" in spec.extras:
        given["pages"] = _pages(settings, context, codec)
    extra = {name: given[name] for name in spec.extras}
    try:
        await spec.function()(context, getattr(settings, spec.section), **extra)
    finally:
        for watch in watches:
            watch.cancel()
        left = await producer.close(
            deadline=Deadline.after(
                _CLOSE_MS, now_ms=clock.monotonic_ms(), waiting_for="the last acknowledgements"
            )
        )
        if left:
            _LOG.warning("%d records stay unknown; their readers settle them by fence", left)
        await door.close()


def _surroundings(settings: RunSettings, run_id: RunId) -> Surroundings:
    # Imported by the one role that asks: it brings the tokenizer and the tasks.
    from infra.canary import surroundings

    return surroundings(settings, run_id)


def _pages(settings: RunSettings, context: Context, codec: Codec) -> Pages:
    # Imported by the one role that serves them.
    from infra.dashboard.site import page_files, story_of
    from infra.replay import has_bytes
    from stream_jobs.sink_pages import Pages

    tell = partial(
        story_of,
        consumers=context.consumers,
        run_id=context.run_id,
        starts=context.starts,
        codec=codec,
        model=Path(settings.model.path),
        has_bytes=has_bytes(settings.model_dump_json()),
    )
    return Pages(files=page_files(), story=tell)


def codec_of(folder: RunFolder) -> Codec:
    """Return the codec of a run: the ids were resolved once, when it began, so that its processes
    start without the registry.

    Raises SettingsError when they are not there, as after a start that broke off.
    """
    try:
        kept = json.loads(folder.schemas.read_bytes())
        writers = {int(number): text for number, text in kept["writers"].items()}
        return Codec(ids=kept["ids"], writers=writers)
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise SettingsError(
            f"{folder.schemas} is missing or damaged: {error}",
            hint="the run never began, or its folder was changed; start a new one",
        ) from error


def table_definitions() -> tuple[str, ...]:
    """Return the text of every table definition under infra/clickhouse, in order."""
    folder = Path(__file__).resolve().parents[1] / "clickhouse"
    return tuple(path.read_text() for path in sorted(folder.glob("*.sql")))


def _ask_to_stop(stop: asyncio.Event) -> None:
    if stop.is_set():
        _LOG.warning("asked twice to stop: ending at once")
        os._exit(1)
    stop.set()


async def _watch_parent(stop: asyncio.Event) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_CHECK_S)
    _LOG.warning("the supervisor is gone: stopping")
    stop.set()


def configure_log() -> None:
    """Send the log of this process to stderr, one line a record."""
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("SLUICE_LOG", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)

"""The address at which Prometheus asks a process, and the file that tells Prometheus of it.

Each process listens on a port of its own that the kernel picks, since a run has a dozen processes
and runs share a machine; a folder beside the runs names them in the form that Prometheus reads by
itself (`file_sd_configs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

from infra.exporter.instruments import Instruments
from infra.exporter.records import AT_START
from infra.settings import MetricsSection
from schemas.errors import Boundary, SettingsError


@contextmanager
def exporting(
    settings: MetricsSection,
    *,
    targets: Path,
    role: str,
    index: int,
    run_id: str,
    registry: CollectorRegistry = REGISTRY,
) -> Iterator[Instruments]:
    """Serve `/metrics` until the block ends, and name the address in a file under `targets`.

    The default registry also holds what libraries count, such as vLLM where it is told to. Raises
    SettingsError when the host is none of this machine.
    """
    instruments = Instruments(registry)
    instruments.take(AT_START.get(role, ()))
    if not settings.enabled:
        yield instruments
        return
    try:
        server, thread = start_http_server(0, addr=settings.host, registry=registry)
    except OSError as error:
        raise SettingsError(
            f"metrics.host {settings.host} cannot be listened on: {error}",
            boundary=Boundary.PLATFORM,
            hint="name an address of this machine, or set metrics.enabled = false",
        ) from error
    place = targets / f"{run_id}-{role}-{index}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    labels = {"run": run_id, "role": role, "index": str(index)}
    address = f"{settings.host}:{server.server_port}"
    draft = place.with_suffix(".draft")
    draft.write_bytes(orjson.dumps([{"targets": [address], "labels": labels}]))
    draft.replace(place)
    try:
        yield instruments
    finally:
        place.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)

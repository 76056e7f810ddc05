"""The schema registry: register what is released, and resolve ids for the codec.

Invariants: schemas are registered by `sluice topics create` and CI only; each subject is held to
FULL_TRANSITIVE; ids that were resolved once are kept on disk, so that a start does not need the
registry when it is down. Source of the wire form: Confluent, magic 0 and a 4-byte id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

# The client takes whichever HTTP library is installed; its errors are named there only.
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from infra.reach import patience_s, within
from infra.setup.places import find_places
from infra.setup.steps import write_atomically
from schemas.codec import Codec, schema_text
from schemas.errors import Boundary, BusUnreachableError, SettingsError
from schemas.topics import ALL, Topic

LEVEL = "FULL_TRANSITIVE"
TIMEOUT_S = 5
_PARALLEL = 8
_NOT_FOUND = 404
_CONFLICT = 409
_HISTORY = Path(__file__).resolve().parent.parent / "schemas" / "avro" / "history"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the codec needs: the id of each topic's record, and the text of every id."""

    ids: Mapping[str, int]
    """By logical topic name."""
    writers: Mapping[int, str]
    """Every registered version of every subject, ours included."""


def register_all(url: str, *, prefix: str) -> int:
    """Register every released version of every schema in order; return the number of subjects.

    Safe to repeat. Raises SettingsError when the registry refuses a schema as incompatible,
    BusUnreachableError when it does not answer.
    """
    _reach(url, prefix=prefix)
    client = _client(url)
    with _translated(url):
        client.set_compatibility(level=LEVEL)
        for topic in ALL:
            subject = topic.subject(prefix)
            for text in released(topic):
                register(client, subject, text)
            client.set_compatibility(subject_name=subject, level=LEVEL)
    return len(ALL)


def unregistered(url: str, *, prefix: str) -> list[str]:
    """Return the subjects under which today's schema is not registered; changes nothing.

    Raises BusUnreachableError when the registry does not answer.
    """
    _reach(url, prefix=prefix)
    client = _client(url)
    with _translated(url), ThreadPoolExecutor(_PARALLEL) as pool:
        own = list(pool.map(lambda topic: _own_id(client, topic, prefix), ALL))
    return [topic.subject(prefix) for topic, one in zip(ALL, own, strict=True) if one is None]


def register(client: SchemaRegistryClient, subject: str, text: str) -> int:
    """Register one version and return its id; SettingsError when it breaks an earlier one."""
    try:
        return int(client.register_schema(subject, Schema(text, "AVRO")))
    except SchemaRegistryError as error:
        if error.http_status_code != _CONFLICT:
            raise
        raise SettingsError(
            f"the registry refuses the schema of {subject}: {error}",
            boundary=Boundary.REGISTRY,
            hint="change schemas by adding fields with defaults only",
        ) from error


def released(topic: Topic[Any]) -> list[str]:
    """Return the texts of all released versions of a topic's schema, oldest first, then today's."""
    files = sorted(
        _HISTORY.glob(f"{topic.schema}.v*.avsc"),
        key=lambda path: int(path.name.rsplit(".v", 1)[1].removesuffix(".avsc")),
    )
    texts = [path.read_text() for path in files]
    today = schema_text(topic.schema)
    return texts if texts and _same(texts[-1], today) else [*texts, today]


def resolve_codec(url: str, *, prefix: str) -> Codec:
    """Return the codec of this code's schemas under the registry's ids.

    When the registry does not answer, the ids of the last successful start are used. Raises
    BusUnreachableError when there was none, SettingsError when a schema is not registered.
    """
    cache = _cache_file(url, prefix)
    try:
        found = resolve(url, prefix=prefix)
    except BusUnreachableError as error:
        kept = _read(cache)
        if kept is None:
            raise
        _log.warning("%s; going on with the ids of an earlier start", error.message)
        found = kept
    else:
        _keep(cache, found)
    return Codec(ids=found.ids, writers=found.writers)


def resolve(url: str, *, prefix: str) -> Resolved:
    """Ask the registry for all ids; see `resolve_codec` for the errors."""
    _reach(url, prefix=prefix)
    client = _client(url)
    with _translated(url), ThreadPoolExecutor(_PARALLEL) as pool:
        own = list(pool.map(lambda topic: _own_id(client, topic, prefix), ALL))
        versions = list(pool.map(lambda topic: _versions(client, topic.subject(prefix)), ALL))
    ids = {topic.name: one for topic, one in zip(ALL, own, strict=True) if one is not None}
    writers = {number: text for one in versions for number, text in one.items()}
    missing = [topic.subject(prefix) for topic in ALL if topic.name not in ids]
    if missing:
        raise SettingsError(
            f"schemas are not registered: {', '.join(missing)}",
            boundary=Boundary.REGISTRY,
            hint="`sluice topics create` registers them",
        )
    return Resolved(ids=ids, writers=writers)


def _own_id(client: SchemaRegistryClient, topic: Topic[Any], prefix: str) -> int | None:
    # The registry looks, since it keeps a text in a form of its own.
    schema = Schema(schema_text(topic.schema), "AVRO")
    try:
        return client.lookup_schema(topic.subject(prefix), schema).schema_id
    except SchemaRegistryError as error:
        if error.http_status_code != _NOT_FOUND:
            raise
        return None


def _versions(client: SchemaRegistryClient, subject: str) -> dict[int, str]:
    """Return the text of each version of a subject by id; empty when there is no such subject."""
    try:
        numbers = client.get_versions(subject)
    except SchemaRegistryError as error:
        if error.http_status_code != _NOT_FOUND:
            raise
        return {}
    found = [client.get_version(subject, number) for number in numbers]
    return {
        one.schema_id: one.schema.schema_str
        for one in found
        if one.schema_id is not None and one.schema.schema_str is not None
    }


def _reach(url: str, *, prefix: str) -> None:
    """Ask one thing, so that a wrong address is told after one wait and not after one a subject.

    Raises BusUnreachableError, or SettingsError for what is no address.
    """
    limit_s = patience_s()
    client = _client(url, timeout_s=limit_s, retries=0)
    with _translated(url):
        within(limit_s, lambda: _own_id(client, ALL[0], prefix))


def _client(url: str, *, timeout_s: float = TIMEOUT_S, retries: int = 1) -> SchemaRegistryClient:
    # Without a timeout a registry that hangs would hang every process that starts.
    try:
        return SchemaRegistryClient({"url": url, "timeout": timeout_s, "max.retries": retries})
    except ValueError as error:
        raise SettingsError(
            f"{url!r} is no address of a schema registry: {error}",
            boundary=Boundary.REGISTRY,
            hint="for example http://127.0.0.1:18081/apis/ccompat/v7",
        ) from error


class _translated:  # noqa: N801  reads as a word at its only place, `with _translated(url)`
    """Turns errors of the client library into ours."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SchemaRegistryError | httpx.HTTPError | OSError):
            raise BusUnreachableError(
                f"the schema registry at {self._url} does not answer as it should: {error}",
                boundary=Boundary.REGISTRY,
                hint="`sluice status` shows the local one; the URL often ends in /apis/ccompat/v7",
            ) from error


def _same(one: str, other: str) -> bool:
    return bool(json.loads(one) == json.loads(other))


def _cache_file(url: str, prefix: str) -> Path:
    texts = "\n".join(schema_text(topic.schema) for topic in ALL)
    name = hashlib.sha256(f"{url}\n{prefix}\n{texts}".encode()).hexdigest()[:24]
    return find_places(os.environ).home / "schema-ids" / f"{name}.json"


def _keep(cache: Path, found: Resolved) -> None:
    text = json.dumps({"ids": dict(found.ids), "writers": dict(found.writers)}, sort_keys=True)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache, text)
    except OSError as error:
        _log.warning("the resolved ids could not be kept in %s: %s", cache, error)


def _read(cache: Path) -> Resolved | None:
    try:
        kept = json.loads(cache.read_text())
        writers = {int(number): text for number, text in kept["writers"].items()}
        return Resolved(ids=kept["ids"], writers=writers)
    except (OSError, ValueError, KeyError, AttributeError):
        return None

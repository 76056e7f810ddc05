"""Schemas on a real registry: registered, held to their level, resolved, also without it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from infra.registry import LEVEL, register, register_all, released, resolve, resolve_codec
from schemas.codec import schema_text
from schemas.errors import BusUnreachableError, SettingsError
from schemas.topics import ALL, METRICS, TOKENS
from tests.conftest import LocalPlatform
from tests.support.records import commit

pytestmark = pytest.mark.kafka


@pytest.fixture
def prefix() -> str:
    return f"reg-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(local_platform: LocalPlatform) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": local_platform.registry_url, "timeout": 5})


def test_registering_twice_gives_one_version_and_the_level_on_every_subject(
    local_platform: LocalPlatform, client: SchemaRegistryClient, prefix: str
) -> None:
    for _ in range(2):
        assert register_all(local_platform.registry_url, prefix=prefix) == len(ALL)
    assert client.get_compatibility() == LEVEL
    for topic in ALL:
        assert client.get_compatibility(topic.subject(prefix)) == LEVEL
        versions = list(range(1, len(released(topic)) + 1))
        assert client.get_versions(topic.subject(prefix)) == versions


def test_a_schema_that_breaks_an_earlier_version_is_refused_by_the_registry(
    local_platform: LocalPlatform, client: SchemaRegistryClient, prefix: str
) -> None:
    register_all(local_platform.registry_url, prefix=prefix)
    broken = json.loads(schema_text(METRICS.schema))
    broken["fields"].append({"name": "host", "type": "string", "doc": "No default."})
    with pytest.raises(SettingsError, match="refuses the schema"):
        register(client, METRICS.subject(prefix), json.dumps(broken))
    for field in broken["fields"]:
        if field["name"] == "value":
            field["type"] = "string"
            field["default"] = ""
    broken["fields"].pop()
    with pytest.raises(SettingsError, match="refuses the schema"):
        register(client, METRICS.subject(prefix), json.dumps(broken))
    assert client.get_versions(METRICS.subject(prefix)) == [1]


def test_records_under_a_newer_registered_version_are_read_by_todays_code(
    local_platform: LocalPlatform, client: SchemaRegistryClient, prefix: str
) -> None:
    register_all(local_platform.registry_url, prefix=prefix)
    newer = json.loads(schema_text(TOKENS.schema))
    newer["fields"].append(
        {"name": "node", "type": "string", "default": "", "doc": "Rack.", "sluice.unit": "none"}
    )
    number = register(client, TOKENS.subject(prefix), json.dumps(newer))
    found = resolve(local_platform.registry_url, prefix=prefix)
    assert found.ids[TOKENS.name] != number
    assert number in found.writers
    codec = resolve_codec(local_platform.registry_url, prefix=prefix)
    body = codec.encode(TOKENS, commit(3))[5:] + b"\x08rack"
    framed = b"\x00" + number.to_bytes(4, "big") + body
    assert codec.decode(TOKENS, framed) == commit(3)


def test_what_is_not_registered_is_named(local_platform: LocalPlatform, prefix: str) -> None:
    with pytest.raises(SettingsError, match=f"{prefix}.tokens.v1-value"):
        resolve_codec(local_platform.registry_url, prefix=prefix)


def test_a_start_goes_on_with_kept_ids_when_the_registry_is_down(
    local_platform: LocalPlatform, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import infra.registry as registry

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    url = local_platform.registry_url
    register_all(url, prefix=prefix)
    before = resolve_codec(url, prefix=prefix).encode(TOKENS, commit())

    def refuse(*_: object, **__: object) -> None:
        raise BusUnreachableError("the registry is down")

    monkeypatch.setattr(registry, "resolve", refuse)
    assert resolve_codec(url, prefix=prefix).encode(TOKENS, commit()) == before
    with pytest.raises(BusUnreachableError):
        resolve_codec(url, prefix=f"{prefix}-other")


def test_a_registry_that_does_not_answer_is_named_within_seconds() -> None:
    with pytest.raises(BusUnreachableError, match="does not answer"):
        resolve("http://127.0.0.1:1/apis/ccompat/v7", prefix="sluice")

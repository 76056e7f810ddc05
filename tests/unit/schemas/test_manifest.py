"""The manifest: canonical text, one digest, named differences."""

from __future__ import annotations

import hashlib

import pytest

from schemas.errors import TransientError
from schemas.manifest import (
    FileFacts,
    bytes_total,
    differences,
    manifest_digest,
    parse_manifest,
    render_manifest,
)


def facts(content: bytes) -> FileFacts:
    return FileFacts(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


FILES = {"model.safetensors": facts(b"weights"), "a/config.json": facts(b"{}")}


def test_the_order_of_the_files_does_not_change_the_digest() -> None:
    turned = dict(reversed(FILES.items()))
    assert manifest_digest(render_manifest(FILES)) == manifest_digest(render_manifest(turned))


def test_another_byte_changes_the_digest() -> None:
    other = FILES | {"a/config.json": facts(b"{ }")}
    assert manifest_digest(render_manifest(FILES)) != manifest_digest(render_manifest(other))


def test_a_manifest_comes_back_from_its_text() -> None:
    assert parse_manifest(render_manifest(FILES)) == FILES
    assert bytes_total(FILES) == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        render_manifest(FILES)[:-2],
        render_manifest(FILES).replace(":", ": "),
        render_manifest(FILES).replace("sluice-manifest-1", "sluice-manifest-2"),
        render_manifest(FILES).replace("model.safetensors", "../safetensors"),
    ],
)
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(TransientError, match="cannot be read"):
        parse_manifest(text)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../b", "a//b", "manifest.json", "a\\b"])
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        render_manifest({name: facts(b"")})


def test_differences_name_the_file_and_what_is_wrong_with_it() -> None:
    assert differences(FILES, FILES) == []
    found = {"model.safetensors": facts(b"weighty"), "a/config.json": None}
    missing, changed = differences(FILES, found)
    assert missing == "a/config.json is missing"
    assert "model.safetensors has the sha256" in changed
    (shorter,) = differences(FILES, FILES | {"model.safetensors": facts(b"w")})
    assert "1 bytes instead of 7" in shorter

"""Model folders as an inference worker sees them: looked at before a start, verified before a load.

Nothing here loads weights: the heads of safetensors files say which tensors are there and how long
the file must be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from schemas.errors import Boundary, SettingsError, TransientError
from schemas.manifest import (
    MANIFEST_NAME,
    FileFacts,
    differences,
    manifest_digest,
    parse_manifest,
)
from schemas.probe import PROBE_NAME, Probe, parse_probe

TensorHead: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and number format of a tensor."""

_HEAD_MAX = 100_000_000
_HINT = "make the folder again (`make setup` makes the first model), or name another in model_path"


def check_model_folder(folder: Path) -> None:
    """Raise SettingsError, naming file and fault, unless the folder holds a loadable model."""
    if not str(folder) or str(folder) == ".":
        raise SettingsError("no model folder is named", hint="set inference.model_path")
    if not folder.is_dir():
        raise SettingsError(f"there is no model folder {folder}", hint=_HINT)
    config_file = folder / "config.json"
    try:
        config = json.loads(config_file.read_text())
        architectures = config["architectures"]
        for field in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            int(config[field])
    except FileNotFoundError as error:
        raise SettingsError(f"{config_file} is missing", hint=_HINT) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{config_file} cannot be used: {error!r}", hint=_HINT) from error
    if not architectures:
        raise SettingsError(f"{config_file} names no architecture", hint=_HINT)
    try:
        if not tensor_heads(folder):
            raise SettingsError(f"{folder} holds no tensors", hint=_HINT)
    except TransientError as error:
        raise SettingsError(error.message, hint=_HINT) from error


def tensor_heads(folder: Path) -> dict[str, TensorHead]:
    """Return shape and format of every tensor in the folder's safetensors files.

    Raises TransientError (store) when there are none, when a listed one is missing, or when one is
    cut short.
    """
    files = sorted(folder.glob("*.safetensors"))
    listed = _listed_files(folder)
    missing = sorted(listed - {file.name for file in files})
    if missing or not files:
        raise TransientError(
            f"{folder / (missing[0] if missing else 'model.safetensors')} is missing",
            boundary=Boundary.STORE,
            hint="the version was not written whole, or was deleted",
        )
    heads: dict[str, TensorHead] = {}
    for file in files:
        if not listed or file.name in listed:
            heads |= _read_head(file)
    return heads


def check_same_tensors(served: Path, offered: Path) -> None:
    """Raise TransientError unless `offered` has the tensors of `served`, in the same shapes.

    The number format may differ: the engine casts.
    """
    ours = {name: shape for name, (shape, _) in tensor_heads(served).items()}
    theirs = {name: shape for name, (shape, _) in tensor_heads(offered).items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise TransientError(
                f"{offered}: tensor {name} is {_shape(theirs.get(name))}, the model that is being "
                f"served has {_shape(ours.get(name))}",
                boundary=Boundary.STORE,
                hint="the version is of another model, or was not written whole",
            )


def weights_bytes(folder: Path) -> int:
    """Return the size of the folder's safetensors files. Unit: bytes."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def verify_version(folder: Path, *, manifest: str, digest: str) -> None:
    """Hash every file of a version and compare: manifest text, digest and folder must agree.

    manifest: the text in the PolicyVersion; when empty, that of the folder is taken. Blocks while
    it hashes (about 1 s for 300 MB): call it in a thread. Raises TransientError (store) that names
    the first difference.
    """
    text = manifest or _manifest_of(folder)
    if manifest_digest(text) != digest:
        raise TransientError(
            f"the manifest of {folder} has the digest {manifest_digest(text)[:12]}..., announced "
            f"was {digest[:12]}...",
            boundary=Boundary.STORE,
            hint="the folder was written by something else; the version is not served",
        )
    expected = parse_manifest(text)
    wrong = differences(expected, hash_files(folder, expected))
    if wrong:
        raise TransientError(
            f"{folder}: {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""),
            boundary=Boundary.STORE,
            hint="the version is damaged and is not served; the next one replaces it",
        )


def read_probe(folder: Path) -> Probe | None:
    """Return the probe of a version's folder; None for one without, as the starting weights are.

    Raises TransientError (store) when it cannot be read.
    """
    try:
        text = (folder / PROBE_NAME).read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TransientError(
            f"{folder / PROBE_NAME} cannot be read: {error}",
            boundary=Boundary.STORE,
            hint="the version was not written whole, or was deleted",
        ) from error
    return parse_probe(text)


def hash_files(folder: Path, names: Mapping[str, Any]) -> dict[str, FileFacts | None]:
    """Return size and sha256 of the named files; None where there is none."""
    found: dict[str, FileFacts | None] = {}
    for name in names:
        file = folder / name
        try:
            with file.open("rb") as opened:
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
                found[name] = FileFacts(bytes=opened.tell(), sha256=sha256)
        except OSError:
            found[name] = None
    return found


def _manifest_of(folder: Path) -> str:
    try:
        return (folder / MANIFEST_NAME).read_text()
    except OSError as error:
        raise TransientError(
            f"{folder / MANIFEST_NAME} cannot be read: {error}",
            boundary=Boundary.STORE,
            hint="the version was not written whole, or was deleted",
        ) from error


def _listed_files(folder: Path) -> set[str]:
    """Return the file names in the index of a model in several parts; empty when there is none."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return set()
    try:
        return set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TransientError(
            f"{index} cannot be used: {error!r}", boundary=Boundary.STORE, hint=_HINT
        ) from error


def _read_head(file: Path) -> dict[str, TensorHead]:
    """Read the head of one safetensors file. Source: the safetensors format, 8 bytes of length."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= min(size, _HEAD_MAX):
                raise ValueError(f"a head of {length} bytes in a file of {size}")
            head = json.loads(opened.read(length))
        tensors = {name: entry for name, entry in head.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        if 8 + length + end != size:
            raise ValueError(f"{size} bytes instead of {8 + length + end}")
        return {
            name: (tuple(int(n) for n in entry["shape"]), str(entry["dtype"]))
            for name, entry in tensors.items()
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TransientError(
            f"{file} is damaged: {error}",
            boundary=Boundary.STORE,
            hint="the file was not written whole",
        ) from error


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {list(shape)}"

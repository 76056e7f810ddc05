"""Immutable policy versions on disk: written aside, synced, renamed; never overwritten, never
deleted while referenced.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import Boundary, InvariantError, SettingsError, TransientError
from schemas.ids import Version
from schemas.manifest import (
    MANIFEST_NAME,
    FileFacts,
    bytes_total,
    differences,
    manifest_digest,
    parse_manifest,
    render_manifest,
)

_ASIDE = ".making-"
_COPIED = ("tokenizer", "chat_template", "special_tokens", "vocab", "merges", "added_tokens")
_HASH_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A version that lies whole on disk."""

    location: Path
    manifest: str
    digest: str
    """sha256 of the manifest."""
    bytes_total: int


def facts_of(path: Path) -> FileFacts:
    """Return size and sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
    return FileFacts(bytes=path.stat().st_size, sha256=digest.hexdigest())


def facts_in(folder: Path) -> dict[str, FileFacts]:
    """Return the facts of every file below a folder but its manifest, by relative name."""
    return {
        path.relative_to(folder).as_posix(): facts_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_NAME
    }


def sync(path: Path) -> None:
    """Bring a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Bring everything below a folder, and the folder itself, to the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def store_error(what: str, error: OSError) -> TransientError:
    """Translate an error of the file system."""
    return TransientError(
        f"{what}: {error.strerror or error}",
        boundary=Boundary.STORE,
        hint=f"check room and rights of {error.filename or 'the folder'}",
    )


def require_writable(root: Path, what: str) -> None:
    """Make a folder and try it, so that what cannot be kept is known before anything is trained.

    Raises TransientError, with the folder named, when it is read-only, full or no folder.
    """
    probe = root / f"{_ASIDE}probe-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        raise store_error(f"the folder of {what} {root} cannot be written", error) from error


class VersionStore:
    """The folder of all versions of a run."""

    def __init__(self, root: Path, *, model_path: Path) -> None:
        """root: made when missing; model_path: where tokenizer and template come from."""
        self._root, self._model_path = root, model_path
        require_writable(root, "versions")
        for left in root.glob(f"{_ASIDE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def path(self, version: Version) -> Path:
        """Return the folder of a version, there or not."""
        return self._root / f"{version.epoch}-{version.number}"

    def write(self, version: Version, fill: Callable[[Path], None]) -> Written:
        """Write a version: `fill` puts the weights into the folder it is given.

        Raises InvariantError when the version is there already, TransientError when the disk
        refuses.
        """
        target = self.path(version)
        if target.exists():
            raise InvariantError(
                f"version {version} exists in {target} and is immutable",
                boundary=Boundary.STORE,
                hint="a new epoch or number names new weights",
            )
        aside = self._root / f"{_ASIDE}{target.name}"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            fill(aside)
            self._copy_tokenizer(aside)
            files = facts_in(aside)
            manifest = render_manifest(files)
            (aside / MANIFEST_NAME).write_text(manifest)
            sync_tree(aside)
            aside.rename(target)
            sync(self._root)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise store_error(f"version {version} could not be written", error) from error
        return Written(
            location=target,
            manifest=manifest,
            digest=manifest_digest(manifest),
            bytes_total=bytes_total(files),
        )

    def _copy_tokenizer(self, folder: Path) -> None:
        for path in sorted(self._model_path.iterdir()):
            wanted = path.name.startswith(_COPIED) or path.name == "generation_config.json"
            if path.is_file() and wanted:
                shutil.copyfile(path, folder / path.name)

    def read(self, version: Version) -> Written:
        """Return a version after checking every file; raise SettingsError, naming what differs."""
        folder = self.path(version)
        manifest = folder / MANIFEST_NAME
        if not manifest.is_file():
            raise SettingsError(
                f"version {version} is not in {folder}",
                boundary=Boundary.STORE,
                hint="bring the folder back",
            )
        text = manifest.read_text()
        expected = parse_manifest(text)
        found = {n: facts_of(folder / n) if (folder / n).is_file() else None for n in expected}
        wrong = differences(expected, found)
        if wrong:
            raise SettingsError(
                f"version {version} in {folder} is damaged: {'; '.join(wrong)}",
                boundary=Boundary.STORE,
                hint="bring the files back; a damaged version is never loaded",
            )
        return Written(
            location=folder,
            manifest=text,
            digest=manifest_digest(text),
            bytes_total=bytes_total(expected),
        )

    def present(self) -> tuple[Version, ...]:
        """Return the versions that lie here, oldest first."""
        found = []
        for path in self._root.iterdir():
            epoch, _, number = path.name.partition("-")
            if path.is_dir() and epoch.isdigit() and number.isdigit():
                found.append(Version(int(epoch), int(number)))
        return tuple(sorted(found))

    def delete(self, version: Version, *, referenced: Collection[Version]) -> None:
        """Delete a version; raise InvariantError while anything references it."""
        if version in referenced:
            raise InvariantError(
                f"version {version} is still referenced and stays",
                boundary=Boundary.STORE,
                hint="it is served, newest, or a kept checkpoint's",
            )
        folder = self.path(version)
        gone = self._root / f"{_ASIDE}gone-{folder.name}"
        try:
            # Renamed first, so that no reader finds a half-deleted version under its name.
            folder.rename(gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise store_error(f"version {version} could not be deleted", error) from error

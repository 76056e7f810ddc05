"""Digests of task packages: sha256 over file names, file contents and configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from environments.ports import Json, canonical

_SKIPPED = {".pyc", ".pyo"}


@cache
def _of_files(files: tuple[Path, ...], root: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        head = f"{file.relative_to(root).as_posix()}\0{len(content)}\0"
        digest.update(head.encode() + content)
    return digest.hexdigest()


def of_folder(folder: Path, config: Json | None = None) -> str:
    """Return the hex sha256 of a package: every file below `folder`, and its configuration."""
    files = tuple(
        file
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in _SKIPPED and "__pycache__" not in file.parts
    )
    return _joined(_of_files(files, folder), config)


def of_files(files: Iterable[Path], root: Path, config: Json | None = None) -> str:
    """Return the hex sha256 of some files below `root`, and a configuration."""
    return _joined(_of_files(tuple(files), root), config)


def _joined(files: str, config: Json | None) -> str:
    return hashlib.sha256(f"{files}\0{canonical(config or {})}".encode()).hexdigest()

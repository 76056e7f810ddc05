"""Checkpoint folders: unique name, files, manifest with checksums, and the committed marker last.

A folder without its marker does not exist for anyone. A kill at any point leaves the old
checkpoints whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.core.restore import Folder
from learner.version_store import (
    facts_in,
    facts_of,
    require_writable,
    store_error,
    sync,
    sync_tree,
)
from schemas.crash_points import CrashPoint, reach
from schemas.errors import Boundary, InvariantError, SettingsError, SluiceError
from schemas.ids import Version
from schemas.manifest import (
    MANIFEST_NAME,
    differences,
    manifest_digest,
    parse_manifest,
    render_manifest,
)
from schemas.records.parts import StepRef

MARKER = "COMMITTED"
STATE = "state.json"
TENSORS = "tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointName:
    """What the folder's name says: `<epoch>-<number>-<unique>`."""

    epoch: int
    number: int
    unique: str

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}-{self.unique}"


class CheckpointStore:
    """The folder of all checkpoints of a run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        require_writable(root, "checkpoints")

    def path(self, name: str) -> Path:
        """Return the folder of a checkpoint, there or not."""
        return self._root / name

    def begin(self, name: CheckpointName) -> str:
        """Make the folder that the ranks write their tensors into, and return its name.

        Raises TransientError when the disk refuses, InvariantError when the name was used before.
        """
        folder = self.path(str(name))
        if folder.exists():
            raise InvariantError(
                f"checkpoint {name} exists already",
                boundary=Boundary.STORE,
                hint="names are unique; two learners share this folder",
            )
        try:
            folder.mkdir()
        except OSError as error:
            raise store_error(f"checkpoint {name} could not be written", error) from error
        return folder.name

    def finish(self, name: CheckpointName, state: Mapping[str, Any]) -> None:
        """Add state and manifest to what the ranks wrote, sync all, and write the marker last.

        Raises TransientError when the disk refuses; the unmarked remains are removed.
        """
        folder = self.path(str(name))
        try:
            (folder / STATE).write_text(json.dumps(state, sort_keys=True))
            manifest = render_manifest(facts_in(folder))
            (folder / MANIFEST_NAME).write_text(manifest)
            sync_tree(folder)
            reach(CrashPoint.AFTER_CHECKPOINT_FILES)
            (folder / MARKER).write_text(manifest_digest(manifest))
            sync(folder / MARKER)
            sync(folder)
            sync(self._root)
            reach(CrashPoint.AFTER_MARKER)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise store_error(f"checkpoint {name} could not be written", error) from error

    def names(self) -> tuple[str, ...]:
        """Return the marked checkpoints."""
        return tuple(sorted(path.parent.name for path in self._root.glob(f"*/{MARKER}")))

    def folders(self, *, verify: Collection[str] = ()) -> tuple[Folder, ...]:
        """Return the marked folders; those named in `verify` have every checksum recomputed."""
        return tuple(self._folder(name, name in verify) for name in self.names())

    def _folder(self, name: str, verify: bool) -> Folder:
        damage = ""
        try:
            state = self.state(name)
            if verify:
                damage = self._damage(name)
            epoch, version = int(state["epoch"]), state["version"]
            return Folder(
                name=name,
                epoch=epoch,
                version=Version(int(version["epoch"]), int(version["number"])),
                ordinal=int(state["ordinal"]),
                chain=tuple(StepRef(**ref) for ref in state["chain"]),
                damage=damage,
            )
        except (SluiceError, KeyError, TypeError, ValueError, OSError) as error:
            epoch_text, _, rest = name.partition("-")
            number_text = rest.partition("-")[0]
            number = int(number_text) if number_text.isdigit() else 0
            epoch = int(epoch_text) if epoch_text.isdigit() else 0
            # What cannot be read keeps its place by name, so that it is refused and not passed
            # over.
            return Folder(
                name=name,
                epoch=epoch,
                version=Version(epoch, number),
                ordinal=number,
                chain=(),
                damage=f"its state cannot be read: {error}",
            )

    def state(self, name: str) -> dict[str, Any]:
        """Return the state of a checkpoint; raise SettingsError when it is no object."""
        state = json.loads((self.path(name) / STATE).read_text())
        if not isinstance(state, dict):
            raise SettingsError(
                f"checkpoint {name}: {STATE} is no object", boundary=Boundary.STORE, hint="damaged"
            )
        return state

    def _damage(self, name: str) -> str:
        folder = self.path(name)
        text = (folder / MANIFEST_NAME).read_text()
        if manifest_digest(text) != (folder / MARKER).read_text():
            return "its manifest does not match its marker"
        expected = parse_manifest(text)
        found = {n: facts_of(folder / n) if (folder / n).is_file() else None for n in expected}
        return "; ".join(differences(expected, found))

    def keep_only(self, names: Collection[str]) -> tuple[str, ...]:
        """Delete all other folders, marker first, and return what is gone."""
        gone = []
        for path in sorted(self._root.iterdir()):
            if path.is_dir() and path.name not in names:
                try:
                    (path / MARKER).unlink(missing_ok=True)
                    shutil.rmtree(path)
                except OSError as error:
                    raise store_error(
                        f"checkpoint {path.name} could not be deleted", error
                    ) from error
                gone.append(path.name)
        return tuple(gone)

"""Which checkpoint a starting learner restores (design section 10).

Candidates are the Checkpointed records that count on the lineage of the last Restored, and marked
folders of that Restored's epoch whose record is missing. The newest wins; if it is damaged the
start is refused, and an older one is taken only on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import Boundary, SettingsError
from schemas.ids import Version
from schemas.records.parts import StepRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A committed checkpoint folder on disk."""

    name: str
    epoch: int
    """Epoch of the learner that wrote it."""
    version: Version
    ordinal: int
    chain: tuple[StepRef, ...]
    """Steps of its learner since that learner's Restored, with their offsets."""
    damage: str = ""
    """What is wrong with it; empty when its files match its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A Checkpointed record that counts on the lineage."""

    name: str
    ordinal: int
    offset: int
    """Offset in learner-steps.v1; -1 when it was adopted without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the Restored record says."""

    folder: Folder | None
    """None: the starting weights."""
    record_offset: int
    """Offset of its Checkpointed record; -1 when it is missing. Unit: records."""
    adopted: tuple[StepRef, ...]
    """Steps of the folder's branch that do not count yet, and the checkpoint itself when its record
    is missing.
    """


def choose(
    *,
    records: Sequence[Record],
    folders: Sequence[Folder],
    restored_epoch: int,
    counting_offsets: frozenset[int],
    requested: str = "",
) -> Choice:
    """Return the checkpoint to start from.

    `counting_offsets` are the offsets of the Steps on the lineage; `requested` names a folder to
    start from instead. Raises SettingsError when the newest is missing or damaged and none was
    requested, or the requested one is unknown.
    """
    by_name = {folder.name: folder for folder in folders}
    offsets = {record.name: record.offset for record in records}
    candidates = [(record.ordinal, record.name) for record in records]
    candidates += [
        (folder.ordinal, folder.name)
        for folder in folders
        if folder.epoch == restored_epoch and folder.name not in offsets
    ]
    if requested and requested not in {name for _, name in candidates}:
        raise _refused(f"checkpoint {requested} is not on the lineage", "name one that is")
    if not candidates:
        return Choice(folder=None, record_offset=-1, adopted=())
    name = requested or max(candidates)[1]
    folder = by_name.get(name)
    if folder is None or folder.damage:
        raise _refused(
            f"checkpoint {name}: {folder.damage if folder else 'its folder is missing'}",
            "bring the folder back, or name an older checkpoint in learner.restore_from",
        )
    offset = offsets.get(name, -1)
    adopted = tuple(ref for ref in folder.chain if ref.offset not in counting_offsets)
    if offset < 0 and folder.version != Version(0, 0):
        adopted += (
            StepRef(
                epoch=folder.version.epoch,
                number=folder.version.number,
                ordinal=folder.ordinal,
                offset=-1,
            ),
        )
    return Choice(folder=folder, record_offset=offset, adopted=adopted)


def _refused(what: str, hint: str) -> SettingsError:
    return SettingsError(what, boundary=Boundary.STORE, hint=hint)

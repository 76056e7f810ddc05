"""Taking and restoring checkpoints: what they hold, and what refuses to be restored, by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from learner.bus import LearnerBus
from learner.checkpoint_store import TENSORS, CheckpointName, CheckpointStore
from learner.core.consume import Consumption
from learner.core.restore import Choice, Record, choose
from learner.engine import resolve_precision
from learner.ranks import Ranks
from learner.settings import LearnerSettings
from learner.work import LoadWork, SaveWork
from schemas.enums import LearnerEventKind
from schemas.errors import Boundary, SettingsError
from schemas.ids import Version
from schemas.ports import Context
from schemas.records.parts import LogEnd, StepRef
from schemas.topics import GATED

_DEPENDENCIES = ("torch", "deepspeed", "transformers")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE_FILE = "chat_template.jinja"


def digest_of(*paths: Path) -> str:
    """Return the sha256 over the names and contents of those files that exist."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def tokenizer_digest(model_path: Path) -> str:
    """Return the digest of a model folder's tokenizer files."""
    return digest_of(*(model_path / name for name in _TOKENIZER_FILES))


def template_digest(model_path: Path) -> str:
    """Return the digest of a model folder's chat template."""
    own = model_path / _TEMPLATE_FILE
    if own.is_file():
        return digest_of(own)
    configuration = model_path / "tokenizer_config.json"
    told = json.loads(configuration.read_text()) if configuration.is_file() else {}
    return hashlib.sha256(str(told.get("chat_template", "")).encode()).hexdigest()


def facts(settings: LearnerSettings, context: Context) -> dict[str, Any]:
    """Return what must be the same when a checkpoint is restored."""
    model_path = Path(settings.model_path)
    return {
        "run": context.run_id,
        "tokenizer": tokenizer_digest(model_path),
        "template": template_digest(model_path),
        "ranks": settings.ranks,
        "zero stage": 2,
        "device": settings.device.value,
        "precision": resolve_precision(settings).value,
        **{name: installed(name) for name in _DEPENDENCIES},
    }


class Checkpoints:
    """The learner's checkpoints of one run."""

    def __init__(
        self, context: Context, settings: LearnerSettings, bus: LearnerBus, ranks: Ranks
    ) -> None:
        self._context, self._settings, self._bus, self._ranks = context, settings, bus, ranks
        self.store = CheckpointStore(Path(settings.checkpoints_dir))
        self._taken = 0
        self._kept: list[str] = []
        self.chain: list[StepRef] = []
        """Steps of this epoch since its Restored, with their offsets."""

    def choose(self) -> Choice:
        """Return the checkpoint to start from, its checksums verified."""
        bus = self._bus
        records = [
            Record(
                name=bus.checkpoint_names.get(ref.offset, ""),
                ordinal=ref.ordinal,
                offset=ref.offset,
            )
            for ref in bus.log.checkpoints
            if ref.offset >= 0
        ]
        counting = frozenset(ref.offset for ref in bus.log.steps)
        first = choose(
            records=records,
            folders=self.store.folders(),
            restored_epoch=bus.restored_epoch,
            counting_offsets=counting,
            requested=self._settings.restore_from,
        )
        if first.folder is None:
            return first
        # Checksums of gigabytes are recomputed for the one that is to be loaded only.
        return choose(
            records=records,
            folders=self.store.folders(verify=[first.folder.name]),
            restored_epoch=bus.restored_epoch,
            counting_offsets=counting,
            requested=self._settings.restore_from,
        )

    def state(self, choice: Choice) -> dict[str, Any]:
        """Return the state of a chosen checkpoint; raise SettingsError for the first fact that
        differs.
        """
        assert choice.folder is not None, "the starting weights have no state"
        state = self.store.state(choice.folder.name)
        saved: Mapping[str, Any] = state["facts"]
        for name, value in facts(self._settings, self._context).items():
            if saved.get(name) != value:
                raise SettingsError(
                    f"checkpoint {choice.folder.name} was made with {name} {saved.get(name)!r}, "
                    f"this learner has {value!r}",
                    boundary=Boundary.STORE,
                    hint=f"bring {name} back to what it was, or start a new run",
                )
        return state

    async def load(self, name: str) -> None:
        """Restore weights, optimiser and random states on all ranks."""
        await self._ranks.do(LoadWork(folder=str(self.store.path(name) / TENSORS)))

    async def take(
        self,
        *,
        version: Version,
        ordinal: int,
        consumption: Consumption,
        judged_by: Mapping[str, str],
        policy_digest: str,
    ) -> str:
        """Write a checkpoint, then its record; return its name and delete what is older than those
        kept.
        """
        self._taken += 1
        name = CheckpointName(
            epoch=self._bus.epoch,
            number=version.number,
            unique=f"{self._context.incarnation[:8]}{self._taken}",
        )
        state = {
            "format": 1,
            "epoch": self._bus.epoch,
            "version": {"epoch": version.epoch, "number": version.number},
            "ordinal": ordinal,
            "chain": [asdict(ref) for ref in self.chain],
            "consumption": consumption.to_state(),
            "judged_by": dict(judged_by),
            "policy_digest": policy_digest,
            "loss": self._settings.loss.model_dump(mode="json"),
            "facts": facts(self._settings, self._context),
        }
        made = self.store.begin(name)
        await self._ranks.do(SaveWork(folder=str(self.store.path(made) / TENSORS)))
        await self._ranks.call(lambda _: self.store.finish(name, state))
        await self._bus.append(
            self._bus.event(
                LearnerEventKind.CHECKPOINTED,
                number=version.number,
                ordinal=ordinal,
                parent_epoch=version.epoch,
                parent_number=version.number,
                policy_digest=policy_digest,
                checkpoint_id=made,
                positions=positions_of(consumption),
            )
        )
        self._kept = [*self._kept, made][-self._settings.checkpoints_kept :]
        self.store.keep_only(self._kept)
        return made

    def keep(self, *names: str) -> None:
        """Count restored checkpoints among the kept ones, oldest first."""
        self._kept = [*names, *self._kept][-self._settings.checkpoints_kept :]

    def versions_kept(self) -> set[Version]:
        """Versions that kept checkpoints name."""
        return {folder.version for folder in self.store.folders()}


def positions_of(consumption: Consumption) -> tuple[LogEnd, ...]:
    """Return the next offsets of `gated` as a record names them."""
    return tuple(
        LogEnd(topic=GATED.name, partition=partition, offset=offset)
        for partition, offset in sorted(consumption.positions().items())
    )

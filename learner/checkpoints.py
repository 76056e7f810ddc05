"""Taking and restoring checkpoints: what they hold, and what refuses to be restored, by name."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from learner.bus import LearnerBus
from learner.canary import Canary, read_card, write_card
from learner.checkpoint_store import TENSORS, CheckpointName, CheckpointStore
from learner.core.canary import Card
from learner.core.consume import Consumption
from learner.core.restore import Choice, Record, choose
from learner.engine import resolve_precision
from learner.ranks import Ranks
from learner.settings import LearnerSettings
from learner.settled import SettledLog
from learner.version_store import store_error
from learner.work import LoadWork, SaveWork
from schemas.enums import LearnerEventKind
from schemas.errors import Boundary, SettingsError, SluiceError
from schemas.ids import Version
from schemas.ports import Context, Floor
from schemas.records.parts import LogEnd, StepRef
from schemas.topics import GATED

_LOG = logging.getLogger("sluice.learner")
_FORMAT = 2
_DEPENDENCIES = ("torch", "deepspeed", "transformers", "numpy", "safetensors")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATE_FILE = "chat_template.jinja"


@cache
def installed(name: str) -> str:
    """Return the version of a distribution; reading it parses a long text."""
    return metadata.version(name)


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
    """Return what must be the same when a checkpoint is restored, besides what surrounds the
    learner.
    """
    model_path = Path(settings.model_path)
    return {
        "run": context.run_id,
        "model": digest_of(model_path / "config.json"),
        "tokenizer": tokenizer_digest(model_path),
        "template": template_digest(model_path),
        "ranks": settings.ranks,
        "zero stage": 2,
        "device": settings.device.value,
        "precision": resolve_precision(settings).value,
        "loss": settings.loss.model_dump_json(),
        "optimiser": settings.optimiser.model_dump_json(),
        "seed": settings.seed,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **{name: installed(name) for name in _DEPENDENCIES},
    }


class Checkpoints:
    """The learner's checkpoints of one run."""

    def __init__(
        self,
        context: Context,
        settings: LearnerSettings,
        bus: LearnerBus,
        ranks: Ranks,
        canary: Canary,
    ) -> None:
        self._context, self._settings, self._bus, self._ranks = context, settings, bus, ranks
        self._canary = canary
        self._own: dict[str, Any] = {}
        self._settled = SettledLog(context)
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
        for name, value in self._facts().items():
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
        budget_s = self._settings.start_s
        waiting = self._bus.deadline("what became of the tasks", budget_s=budget_s)
        settled = await self._settled.catch_up(deadline=waiting)
        consumed = self._bus.log.trained.keys() | self._bus.log.skipped.keys()
        state = {
            "format": _FORMAT,
            "epoch": self._bus.epoch,
            "version": {"epoch": version.epoch, "number": version.number},
            "ordinal": ordinal,
            "chain": [asdict(ref) for ref in self.chain],
            "consumption": consumption.to_state(),
            "staleness": consumption.counters(),
            "judged_by": dict(judged_by),
            "policy_digest": policy_digest,
            "settled_cursor": settled.cursor(consumed),
            "issued_end": settled.issued_end,
            "paused": settled.paused(),
            "facts": self._facts(),
        }
        card = await self._canary.card()
        made = self.store.begin(name)
        await self._write(name, card, state)
        await self._bus.append(
            self._bus.event(
                LearnerEventKind.CHECKPOINTED,
                number=version.number,
                ordinal=ordinal,
                parent_epoch=version.epoch,
                parent_number=version.number,
                policy_digest=policy_digest,
                checkpoint_id=made,
                settled_cursor=state["settled_cursor"],
                positions=positions_of(consumption),
            )
        )
        await self._show(consumption)
        self._kept = [*self._kept, made][-self._settings.checkpoints_kept :]
        self.store.keep_only(self._kept)
        return made

    async def _show(self, consumption: Consumption) -> None:
        """Commit the checkpoint's positions for a group that is there to be looked at.

        The log and the checkpoint stay the truth, so a broker that refuses costs a warning.
        """
        floors = {p: Floor(offset=offset) for p, offset in consumption.positions().items()}
        group = f"learner-{self._context.run_id}"
        try:
            await self._context.consumers.mark(GATED, group=group, floors=floors)
        except SluiceError as error:
            _LOG.warning("the positions shown of %s stay behind: %s", group, error)

    async def _write(
        self, name: CheckpointName, card: Card | None, state: Mapping[str, Any]
    ) -> None:
        """Write tensors, card, state and marker; remove the remains when the disk refuses."""
        folder = self.store.path(str(name))
        try:
            await self._ranks.do(SaveWork(folder=str(folder / TENSORS)))
            await self._ranks.call(lambda _: write_card(folder, card))
        except (OSError, RuntimeError) as error:
            # torch tells of a full disk by a RuntimeError that names the write.
            cause = error if isinstance(error, OSError) else OSError(None, str(error), str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            raise store_error(f"checkpoint {name} could not be written", cause) from error
        await self._ranks.call(lambda _: self.store.finish(name, state))

    def _facts(self) -> dict[str, Any]:
        # Of this process as it began: what is written into the model's folder later is not in it.
        self._own = self._own or facts(self._settings, self._context)
        return self._own | dict(self._canary.facts)

    def card(self, name: str) -> Card | None:
        """Return the canary's card of a checkpoint."""
        return read_card(self.store.path(name))

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

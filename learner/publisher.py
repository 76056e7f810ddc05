"""Versions: writes them, announces them, and deletes those that nobody needs any more.

Order of a publication: files, Step, PolicyVersion (design section 10). A folder stays while it is
served or being loaded, among the newest, or a kept checkpoint's.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from learner.bus import LearnerBus
from learner.checkpoints import template_digest, tokenizer_digest
from learner.ranks import Ranks
from learner.settings import LearnerSettings
from learner.version_store import VersionStore, Written, facts_of
from schemas.crash_points import CrashPoint, reach
from schemas.errors import Boundary, SettingsError, SluiceError
from schemas.ids import Version
from schemas.manifest import differences, parse_manifest
from schemas.ports import Context
from schemas.records.policy_version import PolicyVersion

_LOG = logging.getLogger("sluice.learner")
# A worker may be told of a version shortly before a newer one is there.
_NEWEST_KEPT = 3
_WEIGHTS = ("*.safetensors", "*.json")


class Publisher:
    """The versions of one run."""

    def __init__(
        self, context: Context, settings: LearnerSettings, bus: LearnerBus, ranks: Ranks
    ) -> None:
        self._context, self._bus, self._ranks = context, bus, ranks
        self._model_path = Path(settings.model_path)
        self.store = VersionStore(Path(settings.versions_dir), model_path=self._model_path)
        if not (self._model_path / "config.json").is_file():
            raise SettingsError(
                f"no model in {self._model_path}: config.json is missing",
                boundary=Boundary.STORE,
                hint="run `make setup`, or correct model.path",
            )
        self._tokenizer = tokenizer_digest(self._model_path)
        self._template = template_digest(self._model_path)

    def start(self) -> Written:
        """Return the starting weights as a version; their files are those of the model folder."""
        start = Version(0, 0)
        if self.store.path(start).exists():
            # Written by a learner that ended before it could announce them.
            written = self.store.read(start)
            self.must_be_the_start(written.manifest)
            return written
        return self.store.write(start, self._copy_model)

    def must_be_the_start(self, manifest: str) -> None:
        """Raise SettingsError unless the model's folder still holds the starting weights of a
        manifest.
        """
        announced = parse_manifest(manifest)
        now = {
            name: facts_of(path) if (path := self._model_path / name).is_file() else None
            for name in announced
            if name.endswith(".safetensors") or name == "config.json"
        }
        wrong = differences({name: announced[name] for name in now}, now)
        if wrong:
            raise SettingsError(
                f"the run began with other starting weights than {self._model_path} holds: "
                f"{'; '.join(wrong)}",
                boundary=Boundary.STORE,
                hint="bring the model's folder back, or start a new run",
            )

    def _copy_model(self, folder: Path) -> None:
        for pattern in _WEIGHTS:
            for path in sorted(self._model_path.glob(pattern)):
                shutil.copyfile(path, folder / path.name)

    async def export(self, version: Version) -> Written:
        """Write the weights in memory as a version."""
        written = await self._ranks.call(lambda engine: self.store.write(version, engine.export))
        reach(CrashPoint.AFTER_VERSION_FILES)
        return written

    async def announce(
        self, version: Version, ordinal: int, parent: Version, written: Written
    ) -> None:
        """Publish the record of a version; its Step, if it has one, is in the log."""
        reach(CrashPoint.AFTER_RECORD)
        await self._bus.publish(
            PolicyVersion(
                run_id=self._context.run_id,
                epoch=version.epoch,
                number=version.number,
                ordinal=ordinal,
                parent_epoch=parent.epoch,
                parent_number=parent.number,
                digest=written.digest,
                location=str(written.location.absolute()),
                manifest=written.manifest,
                bytes_total=written.bytes_total,
                tokenizer_digest=self._tokenizer,
                template_digest=self._template,
                precision=_precision(written.location),
                at_us=self._context.clock.now_us(),
                writer_id=self._context.worker_id,
            )
        )
        reach(CrashPoint.AFTER_ANNOUNCEMENT)

    def collect(self, *, checkpointed: Collection[Version]) -> tuple[Version, ...]:
        """Delete versions that are neither served, newest nor a kept checkpoint's; return them."""
        present = self.store.present()
        referenced = set(checkpointed) | set(self._bus.served) | set(present[-_NEWEST_KEPT:])
        gone = []
        for version in present:
            if version not in referenced:
                try:
                    self.store.delete(version, referenced=referenced)
                except SluiceError as error:
                    # Room is not yet short; the next collection tries again.
                    _LOG.warning("version %s stays: %s", version, error)
                    continue
                gone.append(version)
        return tuple(gone)


def _precision(folder: Path) -> str:
    configuration = folder / "config.json"
    told = json.loads(configuration.read_text()) if configuration.is_file() else {}
    return str(told.get("dtype") or told.get("torch_dtype") or "float32")

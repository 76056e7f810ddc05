"""Starting, resuming and accounting for a run: what happens before and after its processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from environments.registry import load as load_task
from infra.run import environment
from infra.run.bus import BusAddress, Doors, find_bus, log_ends, new_run_id
from infra.run.conductor import Disturber, Outcome, account, conduct
from infra.run.folder import (
    RunFolder,
    RunStart,
    conducting,
    find,
    make,
    read_start,
    write_atomically,
)
from infra.run.progress import Progress
from infra.settings import RunSettings, assemble, load, read_resolved
from infra.setup.places import find_places
from infra.topic_admin import require_topics, topic_ids
from learner.settings import LossSettings
from schemas.enums import ControlKind
from schemas.errors import SettingsError
from schemas.ids import RunId

TINY = "tiny"
_TINY_LIMIT_S = 180.0


def resolve_settings(
    config: Path, *, directory: Path, overrides: Mapping[str, str], run_id: str = "RUN_ID"
) -> RunSettings:
    """Return the settings of a run with every folder named; makes nothing.

    Raises SettingsError for a wrong key or value, and for a task or loss that is not there.
    """
    tree = load(config, overrides=overrides)
    folder = RunFolder(root=(directory / run_id).absolute())
    section = tree.setdefault("model", {})
    name, seed = str(section.get("path", TINY)), section.get("tiny_seed", 0)
    section["path"] = str(model_folder(name, tiny_seed=seed))
    settings = assemble(tree, places=_places(folder))
    _require_parts(settings)
    return settings


def _require_parts(settings: RunSettings) -> None:
    """Refuse a task or loss that is not there, or what it is told, before anything starts."""
    for stream in settings.task_source.streams:
        load_task(stream.environment).payload(stream.config, settings.task_source.seed, 0)
    loss = settings.learner.loss
    if (loss.name, loss.parameters) != (LossSettings().name, {}):
        # Losses are torch code, which a run's own process need not load for the default.
        from learner.core.loss_registry import bind

        bind(loss.name, loss.parameters)


def _places(folder: RunFolder) -> dict[str, str]:
    return {
        "learner.versions_dir": str(folder.versions),
        "learner.checkpoints_dir": str(folder.checkpoints),
        "sink.tables_dir": str(folder.tables),
        "sink.address_file": str(folder.sink_address),
    }


def model_folder(name: str, *, tiny_seed: Any = 0) -> Path:
    """Return the folder of a model by path or by name.

    `tiny` is kept under the seed and the text of the code that makes it, so that a change of either
    makes another one.
    """
    models = find_places(os.environ).home / "models"
    if name == TINY:
        text = (Path(__file__).resolve().parents[1] / "setup" / "tiny_model.py").read_bytes()
        return models / f"{TINY}-{tiny_seed}-{hashlib.sha256(text).hexdigest()[:12]}"
    path = Path(name).expanduser()
    if path.is_dir() or path.is_absolute():
        return path.absolute()
    return models / name


def _require_model(path: Path) -> None:
    needed = ("config.json", "tokenizer_config.json")
    if not path.is_dir():
        raise SettingsError(
            f"model.path: there is no folder {path}",
            hint="`make setup` fetches smollm2-135m; or name a folder with safetensors",
        )
    missing = [name for name in needed if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise SettingsError(
            f"model.path: {path} lacks {', '.join(missing)}",
            hint="the folder is damaged; fetch it again",
        )


async def start(
    config: Path, *, directory: Path, overrides: Mapping[str, str], randomness: bytes,
    disturb: Callable[[RunSettings, RunFolder], Disturber] | None = None,
) -> Outcome:  # fmt: skip
    """Start a new run and see it to its end; `disturb` makes what hits its processes meanwhile."""
    run_id = new_run_id(time.time_ns() // 1_000, randomness)
    settings = resolve_settings(config, directory=directory, overrides=overrides, run_id=run_id)
    folder = RunFolder(root=(directory / run_id).absolute())
    address = find_bus(settings.bus.bootstrap, settings.bus.registry, prefix=settings.bus.prefix)
    require_topics(address.bootstrap, prefix=address.prefix, partitions=settings.bus.partitions)
    _make_tiny(settings)
    _require_model(Path(settings.model.path))
    begun = await _begin(settings, folder, address, run_id)
    doors = Doors(address)
    try:
        with conducting(folder), Progress(steps_budget=settings.run.steps) as progress:
            progress.say(f"run {run_id} in {folder.root}")
            disturber = None if disturb is None else disturb(settings, folder)
            return await conduct(
                settings, folder=folder, start=begun, doors=doors, progress=progress,
                disturber=disturber,
            )  # fmt: skip
    finally:
        await doors.close()


def _make_tiny(settings: RunSettings) -> None:
    path = Path(settings.model.path)
    if path == model_folder(TINY, tiny_seed=settings.model.tiny_seed) and not path.exists():
        click.echo(f"making the tiny model in {path}, once", err=True)
        seed = str(settings.model.tiny_seed)
        # In a process of its own: it loads torch, and its libraries print to stdout.
        subprocess.run(
            [sys.executable, "-m", "infra.setup.tiny_model", str(path), seed],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            timeout=_TINY_LIMIT_S,
            check=True,
        )


async def _begin(
    settings: RunSettings, folder: RunFolder, address: BusAddress, run_id: RunId
) -> RunStart:
    """Write the Start record and the folder; from here on the run exists."""
    from infra.registry import resolve

    doors = Doors(address)
    try:
        starts = await doors.all_ends()
        ids = topic_ids(address.bootstrap, prefix=address.prefix)
        begun = RunStart(
            run_id=run_id,
            bootstrap=address.bootstrap,
            registry=address.registry,
            prefix=address.prefix,
            starts=starts,
            topic_ids=ids,
        )
        text = settings.model_dump_json()
        make(folder, begun, orjson.loads(text))
        kept = environment.describe(settings)
        write_atomically(folder.environment, orjson.dumps(kept, option=orjson.OPT_INDENT_2))
        known = resolve(address.registry, prefix=address.prefix)
        ids_kept = {
            "ids": dict(known.ids), "writers": {str(k): v for k, v in known.writers.items()}
        }  # fmt: skip
        write_atomically(folder.schemas, orjson.dumps(ids_kept))
        await doors.control(
            run_id,
            ControlKind.START,
            ends=log_ends(starts, ids),
            settings=text,
            reason=settings.run.name,
        )
        return begun
    finally:
        await doors.close()


async def resume(name: str, *, directory: Path) -> Outcome:
    """Go on with a run that was stopped or killed; raise SettingsError while another process
    conducts it.
    """
    folder = find(name, directory)
    with conducting(folder):
        return await _go_on(folder)


async def _go_on(folder: RunFolder) -> Outcome:
    settings = read_resolved(folder.settings)
    begun = read_start(folder)
    address = BusAddress(bootstrap=begun.bootstrap, registry=begun.registry, prefix=begun.prefix)
    require_topics(address.bootstrap, prefix=address.prefix, partitions=settings.bus.partitions)
    found = topic_ids(address.bootstrap, prefix=address.prefix)
    changed = [n for n, one in begun.topic_ids.items() if one and found.get(n, one) != one]
    if changed:
        raise SettingsError(
            f"topics were made anew since the run began: {', '.join(changed)}",
            hint="their records are gone, so this run cannot go on; start a new one",
        )
    doors = Doors(address)
    try:
        with Progress(steps_budget=settings.run.steps) as progress:
            progress.say(f"resuming run {begun.run_id}")
            await doors.control(begun.run_id, ControlKind.RESUME, reason="resumed")
            return await conduct(
                settings, folder=folder, start=begun, doors=doors, progress=progress
            )
    finally:
        await doors.close()


async def account_again(
    name: str, *, directory: Path, keeps: bool = True
) -> tuple[dict[str, Any], Path]:
    """Compute summary and report of a run from its topics; write them unless not `keeps`."""
    folder = find(name, directory)
    settings = read_resolved(folder.settings)
    begun = read_start(folder)
    doors = Doors(
        BusAddress(bootstrap=begun.bootstrap, registry=begun.registry, prefix=begun.prefix)
    )
    try:
        before = orjson.loads(folder.summary.read_bytes()) if folder.summary.exists() else {}
        restarts = int(before.get("process_restarts", 0))
        return await account(
            settings, folder=folder, start=begun, doors=doors, restarts=restarts, keeps=keeps
        ), folder.root
    finally:
        await doors.close()

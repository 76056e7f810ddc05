"""What a learner refuses to start from, by name and with the next step; and disks that refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learner.checkpoint_store import STATE, CheckpointName, CheckpointStore
from learner.settings import LossSettings, OptimiserSettings, Precision
from learner.version_store import VersionStore
from schemas.crash_points import CrashPoint
from schemas.errors import SettingsError, TransientError
from schemas.ids import Version
from schemas.topics import POLICIES
from tests.support.learner_runs import KilledError, LearnerWorld, model_folder


async def checkpointed(root: Path) -> LearnerWorld:
    world = LearnerWorld(root, steps=0, checkpoint_every=1, precision=Precision.FLOAT32)
    world.admit(4)
    await world.learn(lambda: len(world.events("checkpointed")) >= 1)
    return world


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"loss": LossSettings.model_validate({"denominator": "kept_tokens"})}, "loss"),
        ({"optimiser": OptimiserSettings.model_validate({"beta1": 0.8})}, "optimiser"),
        ({"ranks": 2}, "ranks"),
        ({"seed": 5}, "seed"),
        ({"precision": Precision.BF16_AUTOCAST}, "precision"),
    ],
)
async def test_a_checkpoint_made_under_other_settings_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    world = await checkpointed(tmp_path)
    with pytest.raises(SettingsError, match=f"made with {named} .*bring {named} back"):
        await world.learn(lambda: False, **changes)
    assert len(world.events("restored")) == 1


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("config.json", "model"),
        ("tokenizer.json", "tokenizer"),
        ("chat_template.jinja", "template"),
    ],
)
async def test_a_checkpoint_of_another_model_folder_is_refused_by_name(
    tmp_path: Path, file: str, named: str
) -> None:
    world = await checkpointed(tmp_path)
    path = tmp_path / "model" / file
    path.write_text(path.read_text() + " ")
    with pytest.raises(SettingsError, match=f"made with {named} "):
        await world.learn(lambda: False)


async def test_other_starting_weights_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    world = LearnerWorld(tmp_path)
    world.admit(4)
    assert await world.die(CrashPoint.AFTER_OPTIMISER_STEP, 1)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(SettingsError, match=r"other starting weights .*model\.safetensors"):
        await world.learn(lambda: False)


async def test_starting_weights_that_lie_there_unannounced_must_be_the_models(
    tmp_path: Path,
) -> None:
    world = LearnerWorld(tmp_path)
    assert await world.die(CrashPoint.AFTER_RECORD, 1)
    assert world.bus.records(POLICIES) == []
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(SettingsError, match=r"other starting weights"):
        await world.learn(lambda: False)


async def test_a_version_announced_under_another_digest_is_refused(tmp_path: Path) -> None:
    world = await checkpointed(tmp_path)
    newest = world.bus.records(POLICIES)[-1]
    world.bus.append(POLICIES, replace(newest, digest="f" * 64))
    with pytest.raises(SettingsError, match=r"announced with digest ffffffffffff"):
        await world.learn(lambda: False)


def test_a_publisher_killed_half_way_leaves_no_version_and_its_remains_go(tmp_path: Path) -> None:
    model, root = model_folder(tmp_path), tmp_path / "versions"
    store = VersionStore(root, model_path=model)

    def killed(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half of the wei")
        raise KilledError

    with pytest.raises(KilledError):
        store.write(Version(1, 1), killed)
    assert store.present() == ()
    with pytest.raises(SettingsError, match="is not in"):
        store.read(Version(1, 1))
    again = VersionStore(root, model_path=model)
    assert list(root.iterdir()) == []
    again.write(Version(1, 1), lambda folder: (folder / "model.safetensors").touch())


async def test_a_checkpoint_carries_what_a_restart_needs(tmp_path: Path) -> None:
    world = await checkpointed(tmp_path)
    (name, *_) = CheckpointStore(tmp_path / "checkpoints").names()
    state = CheckpointStore(tmp_path / "checkpoints").state(name)
    for part in (
        "consumption", "staleness", "judged_by", "policy_digest", "settled_cursor", "issued_end",
        "paused", "chain", "ordinal", "facts",
    ):  # fmt: skip
        assert part in state
    assert {"torch", "deepspeed", "ranks", "zero stage", "device"} <= state["facts"].keys()
    assert world.events("checkpointed")[0].settled_cursor == state["settled_cursor"]


def begun(root: Path) -> tuple[CheckpointStore, CheckpointName]:
    store = CheckpointStore(root)
    name = CheckpointName(epoch=1, number=1, unique="abc1")
    store.begin(name)
    return store, name


def test_a_full_disk_refuses_the_checkpoint_names_the_folder_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    store, name = begun(tmp_path)
    # The device that is always full stands where the state would be written.
    (store.path(str(name)) / STATE).symlink_to("/dev/full")
    with pytest.raises(TransientError, match=r"No space left.*check room and rights"):
        store.finish(name, {"epoch": 1})
    assert list(tmp_path.iterdir()) == []
    assert store.names() == ()


@contextmanager
def without_rights() -> Iterator[None]:
    """Act as nobody where the tests run as root, whom no permission stops."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("what", ["checkpoints", "versions"])
def test_a_read_only_folder_refuses_the_start_before_anything_is_trained(
    tmp_path: Path, what: str
) -> None:
    model, root = model_folder(tmp_path), tmp_path / what
    root.mkdir()
    root.chmod(0o555)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    with without_rights(), pytest.raises(TransientError, match=f"folder of {what} .*rights of"):
        CheckpointStore(root) if what == "checkpoints" else VersionStore(root, model_path=model)

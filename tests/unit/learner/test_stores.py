"""Versions, checkpoints and shared memory on a real file system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learner.checkpoint_store import MARKER, CheckpointName, CheckpointStore
from learner.segments import Segments, read, sweep
from learner.version_store import VersionStore
from schemas.errors import InvariantError, SettingsError, TransientError
from schemas.ids import Version
from schemas.packing import crc32c

ONE = Version(1, 1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("template")
    return folder


def fill(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def test_a_version_is_whole_named_by_its_digest_and_never_overwritten(
    tmp_path: Path, model: Path
) -> None:
    store = VersionStore(tmp_path / "versions", model_path=model)
    written = store.write(ONE, fill)
    names = {path.name for path in written.location.iterdir()}
    assert names == {
        "model.safetensors", "tokenizer.json", "chat_template.jinja", "manifest.json",
    }  # fmt: skip
    assert store.read(ONE) == written
    with pytest.raises(InvariantError, match="immutable"):
        store.write(ONE, fill)


def test_one_flipped_byte_makes_the_load_fail_by_name(tmp_path: Path, model: Path) -> None:
    store = VersionStore(tmp_path / "versions", model_path=model)
    written = store.write(ONE, fill)
    (written.location / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(SettingsError, match=r"model\.safetensors"):
        store.read(ONE)


def test_a_referenced_version_cannot_be_deleted(tmp_path: Path, model: Path) -> None:
    store = VersionStore(tmp_path / "versions", model_path=model)
    store.write(ONE, fill)
    with pytest.raises(InvariantError, match="referenced"):
        store.delete(ONE, referenced={ONE})
    store.delete(ONE, referenced=set())
    assert store.present() == ()


def test_a_full_disk_leaves_no_half_version(tmp_path: Path, model: Path) -> None:
    store = VersionStore(tmp_path / "versions", model_path=model)

    def refuse(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device", str(folder))

    with pytest.raises(TransientError, match="No space left"):
        store.write(ONE, refuse)
    assert list((tmp_path / "versions").iterdir()) == []
    store.write(ONE, fill)


STATE = {
    "epoch": 2,
    "version": {"epoch": 2, "number": 7},
    "ordinal": 7,
    "chain": [{"epoch": 2, "number": 7, "ordinal": 7, "offset": 31}],
}


def checkpoint(store: CheckpointStore, number: int, *, finish: bool = True) -> str:
    name = CheckpointName(epoch=2, number=number, unique="abc1")
    made = store.begin(name)
    (store.path(made) / "tensors").mkdir()
    (store.path(made) / "tensors" / "rank0.pt").write_bytes(b"tensors")
    if finish:
        store.finish(name, STATE)
    return made


def test_a_checkpoint_without_its_marker_does_not_exist(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    checkpoint(store, 7, finish=False)
    assert store.folders() == ()
    made = checkpoint(store, 8)
    (found,) = store.folders(verify=[made])
    assert (found.epoch, found.version, found.damage) == (2, Version(2, 7), "")
    assert found.chain[0].offset == 31


@pytest.mark.parametrize("victim", ["tensors/rank0.pt", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_seen_whichever_file_it_is(tmp_path: Path, victim: str) -> None:
    store = CheckpointStore(tmp_path)
    made = checkpoint(store, 8)
    path = store.path(made) / victim
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    (found,) = store.folders(verify=[made])
    assert found.damage


def test_only_the_kept_checkpoints_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    made = [checkpoint(store, number) for number in (1, 2, 3)]
    assert store.keep_only(made[1:]) == (made[0],)
    assert store.names() == tuple(made[1:])
    assert (store.path(made[2]) / MARKER).is_file()


def test_a_segment_gives_back_its_payloads_and_is_gone_after_release() -> None:
    segments = Segments("run-under-test")
    payloads = [b"one", b"", b"three" * 100]
    segment = segments.put(payloads, [crc32c(one) for one in payloads])
    assert read(segment) == payloads
    assert segments.bytes_held >= 503
    segments.release()
    assert segments.bytes_held == 0
    with pytest.raises(InvariantError, match="gone"):
        read(segment)


def test_a_payload_that_changed_in_memory_fails_its_checksum_when_read() -> None:
    segments = Segments("run-under-test")
    segment = segments.put([b"payload"], [crc32c(b"another")])
    with pytest.raises(InvariantError, match="checksum"):
        read(segment)
    segments.release()


def test_no_segment_is_left_after_many_minibatches() -> None:
    segments = Segments("run-under-test")
    for _ in range(200):
        segments.put([b"x" * 64], [crc32c(b"x" * 64)])
        segments.release()
    assert not list(Path("/dev/shm").glob(f"sluice-*-{os.getpid()}-*"))


_MAKER = """
import sys, time
from learner.segments import Segments
segments = Segments("killed-by-us")
segments.put([b"x"], [0])
print("made", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_makers_segments_are_removed() -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == "made\n"
    left = list(Path("/dev/shm").glob(f"sluice-killed-by-us-{maker.pid}-*"))
    assert len(left) == 1
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    until = time.monotonic() + 20
    while left[0].exists() and time.monotonic() < until:
        time.sleep(0.05)
    sweep("killed-by-us")
    assert not left[0].exists()

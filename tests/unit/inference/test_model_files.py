"""Model folders: what is refused before a start, and what is verified before a load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.model_files import (
    check_model_folder,
    check_same_tensors,
    hash_files,
    tensor_heads,
    verify_version,
)
from inference.settings import InferenceSettings
from inference.vllm_settings import VllmSettings
from inference.vllm_start import (
    arguments,
    check_memory,
    environment,
    kv_bytes_per_token,
    translated,
)
from schemas.errors import Boundary, FencedError, SettingsError, TransientError
from schemas.manifest import MANIFEST_NAME, FileFacts, manifest_digest, render_manifest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


def write_tensors(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of zeros in float32, by the format's own description."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(made / "model.safetensors", {"a": (2, 3), "b": (4,)})
    return made


def settings_for(folder: Path, **more: object) -> InferenceSettings:
    # The engine resolves `auto` before it asks for anything here.
    given = {"model_path": str(folder), "dtype": "bfloat16", **more}
    return InferenceSettings.model_validate(given)


def test_a_whole_folder_is_accepted(folder: Path) -> None:
    check_model_folder(folder)
    assert tensor_heads(folder) == {"a": ((2, 3), "F32"), "b": ((4,), "F32")}


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda f: f.rename(f.with_name("away")), "there is no model folder"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json is missing"),
    "bad config": (lambda f: (f / "config.json").write_text("{"), r"config\.json cannot be used"),
    "empty config": (lambda f: (f / "config.json").write_text("{}"), "architectures"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "safetensors is missing"),
    "weights cut short": (lambda f: cut(f / "model.safetensors"), r"damaged: \d+ bytes instead"),
    "weights are empty": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "damaged: a head of 0 bytes",
    ),
    "weights are noise": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x04" + bytes(7) + b"noise"),
        "is damaged",
    ),
    "a listed part is missing": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": "model-2.safetensors"}})
        ),
        r"model-2\.safetensors is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_missing_or_damaged_folder_is_refused_by_file_and_fault(
    folder: Path, damage: str
) -> None:
    harm, message = DAMAGES[damage]
    harm(folder)
    with pytest.raises(SettingsError, match=message) as caught:
        check_model_folder(folder)
    assert caught.value.hint


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="no model folder is named"):
        check_model_folder(Path())


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (2, 3)}, "tensor b is not there"),
        ({"a": (2, 3), "b": (4,), "c": (1,)}, r"tensor c is of shape \[1\].* has not there"),
        ({"a": (3, 2), "b": (4,)}, r"tensor a is of shape \[3, 2\]"),
    ],
)
def test_a_version_with_other_tensors_is_refused_by_name(
    folder: Path, tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    write_tensors(tmp_path / "model.safetensors", shapes)
    with pytest.raises(TransientError, match=message):
        check_same_tensors(folder, tmp_path)
    check_same_tensors(folder, folder)


def manifest_of(folder: Path) -> str:
    names = {file.name: None for file in folder.iterdir() if file.name != MANIFEST_NAME}
    facts = {name: fact for name, fact in hash_files(folder, names).items() if fact is not None}
    return render_manifest(facts)


def test_a_version_is_verified_by_the_announced_manifest_or_by_its_own(folder: Path) -> None:
    text = manifest_of(folder)
    verify_version(folder, manifest=text, digest=manifest_digest(text))
    (folder / MANIFEST_NAME).write_text(text)
    verify_version(folder, manifest="", digest=manifest_digest(text))


def test_one_flipped_byte_fails_the_verification(folder: Path) -> None:
    text = manifest_of(folder)
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(TransientError, match=r"model\.safetensors has the sha256"):
        verify_version(folder, manifest=text, digest=manifest_digest(text))


def test_a_version_is_refused_without_its_manifest_or_under_another_digest(folder: Path) -> None:
    text = manifest_of(folder)
    with pytest.raises(TransientError, match=r"manifest\.json cannot be read"):
        verify_version(folder, manifest="", digest=manifest_digest(text))
    with pytest.raises(TransientError, match="announced was ffffffffffff"):
        verify_version(folder, manifest=text, digest="f" * 64)


def test_a_file_that_is_gone_is_a_named_difference(folder: Path) -> None:
    assert hash_files(folder, {"gone": None}) == {"gone": None}
    facts = hash_files(folder, {"config.json": None})["config.json"]
    assert facts is not None
    assert facts == FileFacts(bytes=len(json.dumps(CONFIG)), sha256=facts.sha256)


def test_a_context_beyond_the_model_s_positions_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"context_max is 4096.* knows 2048"):
        check_memory(settings_for(folder, context_max=4096))


def test_a_kv_cache_that_cannot_hold_one_context_is_refused(folder: Path) -> None:
    assert kv_bytes_per_token(CONFIG, "bfloat16") == 2 * 2 * 2 * 16 * 2
    check_memory(settings_for(folder, kv_cache_gib=0.001))
    with pytest.raises(SettingsError, match=r"KV cache of 0\.0001 GiB is too small") as caught:
        check_memory(settings_for(folder, kv_cache_gib=0.0001))
    assert "inference.kv_cache_gib" in caught.value.hint


def test_more_memory_than_the_machine_has_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.vllm_start._has_gpu", lambda: False)
    monkeypatch.setattr("inference.vllm_start._available_bytes", lambda: 8 << 30)
    check_memory(settings_for(folder, kv_cache_gib=1.0))
    with pytest.raises(
        SettingsError, match=r"needs about 12\.0 GiB .* 8\.0 GiB of memory are free"
    ):
        check_memory(settings_for(folder, kv_cache_gib=8.0))


def test_few_threads_are_left_to_the_kernel_and_no_core_is_reserved(folder: Path) -> None:
    assert environment(settings_for(folder))["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert "OMP_NUM_THREADS" not in environment(settings_for(folder))
    few = environment(settings_for(folder, vllm=VllmSettings(threads=1)))
    assert few["OMP_NUM_THREADS"] == "1"
    assert few["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_the_engine_gives_log_probs_of_what_was_sampled_from(folder: Path) -> None:
    given = arguments(folder, settings_for(folder))
    assert given["logprobs_mode"] == "processed_logprobs"
    assert given["worker_extension_cls"] == "inference.vllm_extension.PolicyLoader"


def test_foreign_errors_are_typed_by_who_must_act() -> None:
    no_room = translated(ValueError("No available memory for the KV cache blocks"), "start")
    assert isinstance(no_room, SettingsError)
    assert isinstance(translated(ImportError("vllm"), "start"), SettingsError)
    died = translated(RuntimeError("Engine core initialization failed"), "start")
    assert isinstance(died, TransientError)
    assert died.boundary is Boundary.ENGINE
    ours = FencedError("gone")
    assert translated(ours, "start") is ours

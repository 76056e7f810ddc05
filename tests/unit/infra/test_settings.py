"""The settings of a run: one file, checked whole, shared values handed to each role."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.docs import generate
from infra.run.session import resolve_settings
from infra.settings import SHARED, RunSettings, assemble, load
from schemas.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
PLACES = {
    "learner.versions_dir": "v",
    "learner.checkpoints_dir": "c",
    "sink.tables_dir": "t",
    "sink.address_file": "a",
}
SMALLEST = {"task_source": {"streams": [{"environment": "digits"}]}}


@pytest.mark.parametrize(
    "name",
    # Their tasks are made by a library that loads matplotlib and sympy.
    ["tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in ("demo", "gpu"))],
)
def test_an_example_resolves(name: str, tmp_path: Path) -> None:
    settings = resolve_settings(
        ROOT / "examples" / f"{name}.toml", directory=tmp_path, overrides={"run.seed": "3"}
    )
    assert settings.run.seed == settings.task_source.seed == settings.learner.seed == 3
    assert settings.scheduler.batch == settings.learner.batch == settings.training.batch


def test_every_shared_key_exists_where_it_comes_from_and_where_it_goes() -> None:
    settings = assemble(SMALLEST, places=PLACES)
    for (section, key), source in SHARED.items():
        origin, _, name = source.partition(".")
        value = getattr(getattr(settings, origin), name)
        assert getattr(getattr(settings, section), key) == value


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match=r"training\.batchh .* did you mean batch\?"):
        assemble({**SMALLEST, "training": {"batchh": 3}}, places=PLACES)
    with pytest.raises(SettingsError, match=r"\[trainning\] is no section; did you mean training"):
        assemble({**SMALLEST, "trainning": {}}, places=PLACES)


def test_a_shared_key_is_refused_in_the_section_of_a_role() -> None:
    with pytest.raises(SettingsError, match=r"learner\.batch is set by training\.batch"):
        assemble({**SMALLEST, "learner": {"batch": 3}}, places=PLACES)


def test_all_faults_are_named_at_once() -> None:
    wrong = {**SMALLEST, "run": {"steps": 0}, "training": {"eta": -1, "x": 1}}
    with pytest.raises(SettingsError) as raised:
        assemble(wrong, places=PLACES)
    for place in ("run.steps", "training.eta", "training.x"):
        assert place in str(raised.value)


def test_a_group_that_can_never_be_issued_is_refused() -> None:
    with pytest.raises(SettingsError, match="exceeds"):
        assemble({**SMALLEST, "training": {"batch": 1, "eta": 0, "group_size": 4}}, places=PLACES)


def test_a_bound_that_would_drop_what_is_issued_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_lag_steps"):
        assemble({**SMALLEST, "training": {"eta": 3, "max_lag_steps": 1}}, places=PLACES)


def test_a_file_that_is_no_toml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[run\nname = 1\n")
    with pytest.raises(SettingsError, match=r"bad\.toml is not TOML: .*line 1"):
        load(path)
    with pytest.raises(SettingsError, match="no settings file"):
        load(tmp_path / "none.toml")


def test_a_folder_in_place_of_a_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path)


def test_a_key_of_an_inner_table_can_be_set_from_the_command_line() -> None:
    tree = load(ROOT / "examples" / "tiny.toml", overrides={"inference.vllm.threads": "3"})
    assert tree["inference"]["vllm"]["threads"] == 3
    assert tree["inference"]["engine"] == "vllm"
    with pytest.raises(SettingsError, match="engine is no table"):
        load(ROOT / "examples" / "tiny.toml", overrides={"inference.engine.kind": "1"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('environment = "digitz"', "no task package named 'digitz'"),
        ('environment = "digits"\nconfig = { colour = 1 }', "knows no setting 'colour'"),
        # Only the losses know their parameters, and they load torch.
        pytest.param(
            'environment = "digits"\n[learner.loss]\nname = "diss"',
            "no loss is called 'diss'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'environment = "digits"\n[learner.loss]\nparameters = { lo = 0.2 }',
            "no parameter 'lo'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_task_or_loss_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, text: str, said: str
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f"[[task_source.streams]]\n{text}\n")
    with pytest.raises(SettingsError, match=said):
        resolve_settings(config, directory=tmp_path, overrides={})


def test_what_was_resolved_is_read_back_as_the_same_settings() -> None:
    settings = assemble(SMALLEST, places=PLACES)
    assert RunSettings.model_validate_json(settings.model_dump_json()) == settings


def test_the_generated_documents_are_what_the_code_says() -> None:
    for path, text in generate().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"

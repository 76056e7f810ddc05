"""One TOML file and the environment become one tree of settings, checked whole before anything
starts.

Invariants: nothing heavy is imported; an unknown key is refused with the nearest name; a value that
several roles need stands once (`[run]`, `[model]`, `[training]`, `[bus]`) and is handed to each of
them, so that no two knobs can disagree. Source of the rules: house-style, "Config".
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.settings import EnvironmentSettings
from inference.refresh_settings import RefreshSettings
from inference.settings import InferenceSettings
from infra.tracing.settings import TracingSection
from learner.settings import LearnerSettings
from schemas.errors import SettingsError
from stream_jobs.settings import (
    AssemblerSettings,
    GateSettings,
    SchedulerSettings,
    TaskSourceSettings,
)
from stream_jobs.sink_settings import LagAgeSettings, SinkSettings
from verifier.settings import VerifierSettings

_FROZEN = ConfigDict(frozen=True, extra="forbid")


class RunSection(BaseModel):
    """What the run is and when it ends."""

    model_config = _FROZEN
    name: str = Field(
        "run",
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="Short name for people; the run's id is made anew each time.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Seed of the task stream and of the learner's draws. No unit.",
    )
    steps: int = Field(20, ge=1, description="Budget. Unit: optimiser updates.")
    minutes_max: float = Field(
        60.0, gt=0, description="The run is stopped, resumable, after this long. Unit: minutes."
    )
    drain_s: float = Field(
        10.0,
        ge=0,
        description="How long running episodes may finish once the budget is reached. Unit: s.",
    )
    restarts_max: int = Field(
        20,
        ge=0,
        description="How often a role's process is started again before giving up. Unit: times.",
    )


class ModelSection(BaseModel):
    """The model that is trained."""

    model_config = _FROZEN
    path: str = Field(
        "tiny",
        min_length=1,
        description="A folder with safetensors and tokenizer, a name under the cache's models "
        "folder, or `tiny` (made on the spot).",
    )
    tiny_seed: int = Field(0, ge=0, description="Seed of the weights of `tiny`. No unit.")


class TrainingSection(BaseModel):
    """What scheduler, gate and learner must agree on."""

    model_config = _FROZEN
    batch: int = Field(
        64, ge=1, description="B, trajectories in one optimiser update. Unit: trajectories."
    )
    group_size: int = Field(
        4,
        ge=1,
        description="G, rollouts that share a baseline; 1 is single-rollout mode. Unit: episodes.",
    )
    eta: int = Field(
        1,
        ge=0,
        description="Updates ahead that work is issued; 0 is synchronous. Unit: updates.",
    )
    max_lag_steps: int = Field(
        4, ge=0, description="Largest lag at consumption, inclusive; at least eta. Unit: updates."
    )
    max_age_s: float = Field(
        600.0, gt=0, description="Largest age at consumption, inclusive. Unit: s."
    )
    checkpoint_every: int = Field(
        5, ge=1, description="Updates between two checkpoints. Unit: updates."
    )


class BusSection(BaseModel):
    """Where the bus is and how its topics are named."""

    model_config = _FROZEN
    bootstrap: str = Field(
        "", description="host:port of brokers; empty: SLUICE_BOOTSTRAP, else the local platform."
    )
    registry: str = Field(
        "",
        description="URL of the schema registry; empty: SLUICE_REGISTRY, else the local platform.",
    )
    prefix: str = Field(
        "sluice",
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        description="Prefix of all topic names.",
    )
    partitions: int = Field(
        12, ge=1, le=1024, description="Partitions of every topic. Unit: partitions."
    )


class ProcessesSection(BaseModel):
    """How many processes of each role run."""

    model_config = _FROZEN
    environment: int = Field(1, ge=1, le=64, description="Environment workers. Unit: processes.")
    inference: int = Field(1, ge=1, le=64, description="Inference workers. Unit: processes.")
    verifier: int = Field(1, ge=1, le=64, description="Verifier workers. Unit: processes.")
    assembler: int = Field(1, ge=1, le=64, description="Assemblers. Unit: processes.")
    gate: int = Field(1, ge=1, le=64, description="Gates. Unit: processes.")
    scheduler: int = Field(
        1, ge=1, le=2, description="Schedulers; the second is a standby. Unit: processes."
    )


class MetricsSection(BaseModel):
    """What each process exports to Prometheus."""

    model_config = _FROZEN
    enabled: bool = Field(True, description="Serve `/metrics` in every process.")
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on; the port is the kernel's choice and stands in a file "
        "under `.prometheus` beside the runs, as file_sd_configs reads it. There is no login.",
    )


class RunSettings(BaseModel):
    """The whole tree: shared sections first, then one section per role."""

    model_config = _FROZEN
    run: RunSection = Field(default_factory=RunSection)
    model: ModelSection = Field(default_factory=ModelSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    bus: BusSection = Field(default_factory=BusSection)
    processes: ProcessesSection = Field(default_factory=ProcessesSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    tracing: TracingSection = Field(default_factory=TracingSection)
    task_source: TaskSourceSettings
    scheduler: SchedulerSettings
    environment: EnvironmentSettings
    inference: InferenceSettings
    verifier: VerifierSettings
    assembler: AssemblerSettings
    gate: GateSettings
    learner: LearnerSettings
    refresh: RefreshSettings
    lag_age: LagAgeSettings
    sink: SinkSettings


SHARED: Mapping[tuple[str, str], str] = {
    ("task_source", "seed"): "run.seed",
    ("task_source", "group_size"): "training.group_size",
    ("scheduler", "group_size"): "training.group_size",
    ("scheduler", "batch"): "training.batch",
    ("scheduler", "eta"): "training.eta",
    ("scheduler", "steps"): "run.steps",
    ("scheduler", "drain_s"): "run.drain_s",
    ("gate", "max_lag_steps"): "training.max_lag_steps",
    ("gate", "max_age_s"): "training.max_age_s",
    ("learner", "batch"): "training.batch",
    ("learner", "steps"): "run.steps",
    ("learner", "seed"): "run.seed",
    ("learner", "max_lag_steps"): "training.max_lag_steps",
    ("learner", "max_age_s"): "training.max_age_s",
    ("learner", "checkpoint_every"): "training.checkpoint_every",
    ("learner", "model_path"): "model.path",
    ("inference", "model_path"): "model.path",
}
"""(section, key) of a role to the shared key that fills it; setting such a key in the role's
section is refused.
"""


def load(path: Path, *, overrides: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the raw tree of a TOML file with `section.key=value` overrides applied.

    Raises SettingsError when the file is missing or is no TOML, naming line and column.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise SettingsError(
            f"no settings file {path}", hint="examples/ holds some to start from"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path} is not TOML: {error}", hint="see examples/tiny.toml"
        ) from error
    except OSError as error:
        raise SettingsError(
            f"the settings file {path} cannot be read: {error.strerror}",
            hint="name one TOML file; examples/ holds some to start from",
        ) from error
    for key, text in (overrides or {}).items():
        *sections, name = key.split(".")
        if not (sections and name):
            raise SettingsError(
                f"--set {key}: expected SECTION.KEY=VALUE", hint="for example --set run.seed=3"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        _table(tree, sections, key)[name] = value
    return tree


def _table(tree: dict[str, Any], sections: Sequence[str], key: str) -> dict[str, Any]:
    table = tree
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SettingsError(
                f"--set {key}: {section} is no table", hint="docs/settings.md lists every key"
            )
        table = inner
    return table


def assemble(tree: Mapping[str, Any], *, places: Mapping[str, str]) -> RunSettings:
    """Check the tree whole and return the settings.

    `places` fills the keys that name folders and addresses of this run, as `section.key`. Raises
    SettingsError that lists every fault with its place, and the nearest name for an unknown key.
    """
    faults = _unknown_keys(tree)
    shared = _shared_values(tree, faults)
    filled: dict[str, Any] = {
        name: dict(value) for name, value in tree.items() if isinstance(value, Mapping)
    }
    for (section, key), value in shared.items():
        filled.setdefault(section, {})[key] = value
    for name, value in places.items():
        section, _, key = name.partition(".")
        filled.setdefault(section, {})[key] = value
    for section in RunSettings.model_fields:
        filled.setdefault(section, {})
    if faults:
        raise _settings_error(faults)
    try:
        settings = RunSettings.model_validate(filled)
    except ValidationError as error:
        raise _settings_error([_fault(one) for one in error.errors()]) from error
    _agree(settings)
    return settings


def _agree(settings: RunSettings) -> None:
    training = settings.training
    if training.group_size > (training.eta + 1) * training.batch:
        raise SettingsError(
            f"training.group_size {training.group_size} exceeds (eta + 1) * batch = "
            f"{(training.eta + 1) * training.batch}: no group could ever be issued whole",
            hint="raise training.batch or lower training.group_size",
        )
    if training.max_lag_steps < training.eta:
        raise SettingsError(
            f"training.max_lag_steps {training.max_lag_steps} is below training.eta "
            f"{training.eta}: work would be issued only to be dropped",
            hint="max_lag_steps must be at least eta",
        )


def _unknown_keys(tree: Mapping[str, Any]) -> list[str]:
    faults: list[str] = []
    for section, value in tree.items():
        field = RunSettings.model_fields.get(section)
        if field is None:
            faults.append(f"[{section}] is no section{_nearest(section, RunSettings.model_fields)}")
            continue
        if not isinstance(value, Mapping):
            faults.append(f"{section} must be a table, as [{section}]")
            continue
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for key in value:
            if (section, key) in SHARED:
                faults.append(f"{section}.{key} is set by {SHARED[section, key]}; set that one")
            elif key not in model.model_fields:
                faults.append(f"{section}.{key} is no setting{_nearest(key, model.model_fields)}")
    return faults


def _shared_values(tree: Mapping[str, Any], faults: list[str]) -> dict[tuple[str, str], Any]:
    parts: dict[str, BaseModel] = {}
    for name in ("run", "model", "training"):
        model = RunSettings.model_fields[name].annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        raw = {k: v for k, v in dict(tree.get(name, {})).items() if k in model.model_fields}
        try:
            parts[name] = model.model_validate(raw)
        except ValidationError as error:
            faults += [_fault(one, prefix=name) for one in error.errors()]
    values: dict[tuple[str, str], Any] = {}
    for target, source in SHARED.items():
        section, _, key = source.partition(".")
        if section in parts:
            values[target] = getattr(parts[section], key)
    return values


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"


def _fault(error: Any, *, prefix: str = "") -> str:
    place = ".".join(str(part) for part in ((prefix, *error["loc"]) if prefix else error["loc"]))
    if error["type"] == "missing":
        return f"{place} is required"
    return f"{place}: {error['msg']} (given: {error.get('input')!r})"


def _settings_error(faults: list[str]) -> SettingsError:
    return SettingsError(
        "the settings are wrong:\n" + "\n".join(f"  - {fault}" for fault in faults),
        hint="docs/settings.md lists every key",
    )


def read_resolved(path: Path) -> RunSettings:
    """Return the settings that `sluice run` resolved and wrote beside the run."""
    try:
        return RunSettings.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise SettingsError(f"{path} is missing", hint="the folder holds no run") from error
    except ValidationError as error:
        raise _settings_error([_fault(one) for one in error.errors()]) from error

"""The distribution: its packages, its extras by role and the pins they resolve to."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from infra.version import VERSION
from tests.architecture.tree import PACKAGES, ROOT

OURSELVES = "sluice-rl"
UNPINNED = {"vllm"}
"""The engine for GPUs is chosen on the GPU machine; the pins hold its build for CPUs."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {normal(line.split("==")[0]) for line in lines}


def named(requirements: list[str]) -> Iterator[str]:
    for requirement in requirements:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None
        yield normal(match[0])


def test_the_wheel_holds_exactly_our_packages() -> None:
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert tuple(wheel["packages"]) == PACKAGES
    assert project()["tool"]["importlinter"]["root_packages"] == list(PACKAGES)


def test_the_command_shows_the_version_of_the_distribution() -> None:
    assert project()["project"]["version"] == VERSION


def test_every_dependency_of_every_extra_is_pinned() -> None:
    declared = project()["project"]
    wanted = set(named(declared["dependencies"]))
    for requirements in declared["optional-dependencies"].values():
        wanted |= set(named(requirements))
    assert wanted - pinned() - {OURSELVES} == UNPINNED


def test_there_is_an_extra_for_every_role() -> None:
    extras = set(project()["project"]["optional-dependencies"])
    roles = {"bus", "stream", "inference-cpu", "inference-gpu", "learner", "platform", "dev"}
    assert extras == roles


def test_the_pins_are_names_and_exact_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[\w.+!]+", line)] == []


def test_every_forced_choice_has_a_reason_above_it() -> None:
    lines = (ROOT / "overrides.txt").read_text().splitlines()
    forced = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert forced
    for number in forced:
        above = next(line for line in reversed(lines[:number]) if line.startswith("#") or not line)
        assert above.startswith("#"), lines[number]

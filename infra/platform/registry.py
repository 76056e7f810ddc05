"""Start the schema registry (Apicurio, by its Confluent-compatible API) and ask whether it answers.

Invariants: it listens on loopback only, its management port included; its content lies in a file
of the data folder and survives a restart.
"""

import http.client
import urllib.request
from pathlib import Path
from urllib.error import URLError

from infra.platform.java import JVM_OPTIONS, java, registry_program
from infra.platform.ports import LOOPBACK
from infra.platform.process import spawn
from infra.platform.settings import PlatformSettings
from infra.platform.state import ProcessRecord
from infra.setup.places import Places

NAME = "registry"
API = "/apis/ccompat/v7"
PROBE_S = 2.0


def registry_url(port: int) -> str:
    """The address that a Confluent registry client takes."""
    return f"http://{LOOPBACK}:{port}{API}"


def registry_log(data: Path) -> Path:
    """What the registry says."""
    return data / "logs" / f"{NAME}.log"


def registry_answers(url: str) -> bool:
    """Whether the registry at this URL lists its subjects."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/subjects", timeout=PROBE_S) as answer:
            return bool(answer.status == http.HTTPStatus.OK)
    except (URLError, OSError, ValueError, http.client.HTTPException):
        return False


def start_registry(settings: PlatformSettings, places: Places) -> ProcessRecord:
    """Start the registry on its store in the data folder."""
    program = registry_program(places)
    store = settings.data / NAME / "store"
    store.parent.mkdir(parents=True, exist_ok=True)
    options = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": settings.registry_port,
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": settings.registry_management_port,
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        "apicurio.datasource.url": f"jdbc:h2:file:{store};DB_CLOSE_ON_EXIT=FALSE",
    }
    command = [
        java(),
        "-Xmx384m",
        *JVM_OPTIONS,
        *(f"-D{name}={value}" for name, value in options.items()),
        "-jar",
        str(program),
    ]
    log = registry_log(settings.data)
    return spawn(
        NAME,
        command,
        folder=program.parent,
        log=log,
        out=log,
        port=settings.registry_port,
    )

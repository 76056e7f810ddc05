"""Fetch the broker's jars and the schema registry by their Maven coordinates.

Invariants: each coordinate is resolved alone, because two joined ones resolved an older
kafka-clients and the broker died of it; the version found is compared with the version asked for;
a folder that exists is complete.
"""

import os
import shutil
import tarfile
from pathlib import Path

import jgo
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from infra.setup.places import (
    APICURIO_VERSION,
    KAFKA_SCALA,
    KAFKA_VERSION,
    LOG4J_BINDING_VERSION,
    Places,
)
from infra.setup.steps import made_beside
from schemas.errors import Boundary, TransientError

FETCH_LIMIT_S = 60
COORDINATES = (
    f"org.apache.kafka:kafka_{KAFKA_SCALA}:{KAFKA_VERSION}",
    # Without a binding the broker logs nothing but a notice that there is none.
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_BINDING_VERSION}",
)

_patiently = retry(
    retry=retry_if_exception_type((OSError, RuntimeError)),
    stop=stop_after_attempt(3),
    wait=wait_exponential(multiplier=1, max=8),
    reraise=True,
)


def fetch_kafka(places: Places) -> str:
    """Fetch the broker's jars into one flat folder; raises TransientError when that fails."""
    try:
        jars = _resolve_jars(places)
    except (OSError, RuntimeError) as error:
        raise _fetch_failed("the jars of Kafka", error) from error
    with made_beside(places.kafka_jars) as draft:
        for jar in jars:
            _link(jar, draft / jar.name)
        if not (draft / places.kafka_clients_jar.name).exists():
            found = [jar.name for jar in jars if jar.name.startswith("kafka-clients")]
            raise TransientError(
                f"asked for Kafka {KAFKA_VERSION}, but got {found or 'no kafka-clients'}",
                boundary=Boundary.PLATFORM,
                hint=f"remove {places.jgo}, then run `make setup` again",
            )
    return f"{len(jars)} jars"


def fetch_registry(places: Places) -> str:
    """Fetch and unpack the schema registry; raises TransientError when that fails."""
    try:
        archive = _resolve_registry(places)
        with made_beside(places.registry_app) as draft, tarfile.open(archive) as packed:
            packed.extractall(draft, filter="data")
    except (OSError, RuntimeError, tarfile.TarError) as error:
        raise _fetch_failed("the schema registry", error) from error
    return f"Apicurio {APICURIO_VERSION}"


@_patiently
def _resolve_jars(places: Places) -> list[Path]:
    builder = jgo.EnvironmentBuilder(context=_maven(places), cache_dir=places.jgo)
    jars: dict[str, Path] = {}
    for coordinate in COORDINATES:
        # `all_jars` spans the folders jars/ and modules/; the broker needs both.
        for jar in builder.from_endpoint(coordinate).all_jars:
            jars.setdefault(Path(jar).name, Path(jar))
    return sorted(jars.values())


@_patiently
def _resolve_registry(places: Places) -> Path:
    project = _maven(places).project("io.apicurio", "apicurio-registry-app")
    version = project.at_version(APICURIO_VERSION)
    return Path(version.artifact(classifier="all", packaging="tar.gz").resolve())


def _maven(places: Places) -> jgo.MavenContext:
    places.maven.mkdir(parents=True, exist_ok=True)
    return jgo.MavenContext(
        repo_cache=places.maven,
        remote_repos={"central": jgo.MAVEN_CENTRAL_URL},
        timeout=FETCH_LIMIT_S,
    )


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _fetch_failed(what: str, error: Exception) -> TransientError:
    return TransientError(
        f"{what} could not be fetched: {error}",
        boundary=Boundary.PLATFORM,
        hint="check the way to Maven Central, then run `make setup` again; what came is kept",
    )

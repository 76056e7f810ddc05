"""What the local platform is doing now, service by service; looks only, changes nothing."""

from dataclasses import dataclass
from enum import StrEnum

from infra.platform.nodes import bootstrap_address, plan_nodes
from infra.platform.ports import LOOPBACK, port_answers
from infra.platform.process import is_alive
from infra.platform.registry import NAME, registry_answers, registry_url
from infra.platform.settings import PlatformSettings
from infra.platform.state import PlatformState, ProcessRecord, read_state
from infra.topic_admin import count_brokers
from schemas.errors import Boundary, BusUnreachableError, SettingsError


class ServiceState(StrEnum):
    """What a service of the platform is doing."""

    RUNNING = "running"
    SILENT = "silent"
    """The process is alive and its port does not answer: starting, stopping or stuck."""
    DEAD = "dead"
    """It was started and has ended without `down`."""
    STOPPED = "stopped"
    EXTERNAL = "external"
    """Somebody else runs it, and it answers."""
    UNREACHABLE = "unreachable"
    """Somebody else should run it, and it does not answer."""

    @property
    def is_well(self) -> bool:
        """Whether clients can use the service."""
        return self in (ServiceState.RUNNING, ServiceState.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service as it is now."""

    name: str
    state: ServiceState
    address: str
    pid: int | None = None
    port: int | None = None
    since_ms: int | None = None
    """Wall clock at its start. Unit: ms since 1970."""
    log: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformStatus:
    """The platform as it is now."""

    data: str
    bootstrap: str
    registry_url: str
    cluster_id: str | None
    brokers: int
    services: tuple[ServiceStatus, ...]

    @property
    def is_well(self) -> bool:
        """Whether every service can be used."""
        return all(one.state.is_well for one in self.services)


def look(settings: PlatformSettings) -> PlatformStatus:
    """Look at every service; changes nothing and waits at most a second for each."""
    state = read_state(settings.data)
    brokers = brokers_wanted(settings, state)
    bootstrap = settings.external_bootstrap or (
        state.bootstrap if state else bootstrap_address(settings, brokers)
    )
    url = settings.external_registry or (
        state.registry_url if state else registry_url(settings.registry_port)
    )
    services: list[ServiceStatus] = []
    if settings.external_bootstrap:
        services.append(_external("kafka", bootstrap, kafka_answers(bootstrap)))
    else:
        for node in plan_nodes(settings, brokers):
            record = state.process(node.name) if state else None
            services.append(_local_status(node.name, node.port, record))
    if settings.external_registry:
        services.append(_external(NAME, url, registry_answers(url)))
    else:
        record = state.process(NAME) if state else None
        services.append(_local_status(NAME, settings.registry_port, record))
    return PlatformStatus(
        data=str(settings.data),
        bootstrap=bootstrap,
        registry_url=url,
        cluster_id=state.cluster_id if state and not settings.external_bootstrap else None,
        brokers=brokers,
        services=tuple(services),
    )


def brokers_wanted(settings: PlatformSettings, known: PlatformState | None) -> int:
    """The number of brokers: what the folder was made with; raises SettingsError for another."""
    if known is None:
        return settings.brokers or 1
    if settings.brokers not in (None, known.brokers):
        raise SettingsError(
            f"{settings.data} was made with {known.brokers} broker(s), not {settings.brokers}",
            boundary=Boundary.PLATFORM,
            hint="name another folder with SLUICE_DATA, or leave --brokers out",
        )
    return known.brokers


def kafka_answers(bootstrap: str) -> bool:
    """Whether some broker at this address answers."""
    try:
        return count_brokers(bootstrap) > 0
    except BusUnreachableError:
        return False


def _external(name: str, address: str, answers: bool) -> ServiceStatus:
    state = ServiceState.EXTERNAL if answers else ServiceState.UNREACHABLE
    return ServiceStatus(name=name, state=state, address=address)


def _local_status(name: str, port: int, record: ProcessRecord | None) -> ServiceStatus:
    if record is None:
        address = f"{LOOPBACK}:{port}"
        return ServiceStatus(name=name, state=ServiceState.STOPPED, address=address, port=port)
    if not is_alive(record):
        state = ServiceState.DEAD
    elif port_answers(LOOPBACK, record.port):
        state = ServiceState.RUNNING
    else:
        state = ServiceState.SILENT
    return ServiceStatus(
        name=name,
        state=state,
        address=f"{LOOPBACK}:{record.port}",
        pid=record.pid,
        port=record.port,
        since_ms=record.since_ms,
        log=record.log,
    )

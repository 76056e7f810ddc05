"""Settings of a platform that no other test or person shares."""

from pathlib import Path
from typing import Literal

from infra.platform.ports import free_ports
from infra.platform.settings import PlatformSettings


def private_settings(data: Path, brokers: Literal[1, 3] | None = None) -> PlatformSettings:
    """Free ports, a folder of its own, a small heap."""
    first, second, third, controller, registry, management = free_ports(6)
    return PlatformSettings(
        data=data,
        brokers=brokers,
        broker_ports=(first, second, third),
        controller_port=controller,
        registry_port=registry,
        registry_management_port=management,
        broker_heap_mb=256,
    )

"""Fixtures and rules for all tests: one real platform per session, limits, reasons to skip."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

KAFKA_LIMIT_S = 120
"""Limit of a test with a real broker that states none; the first one also starts the broker."""

# A shared machine makes single examples slow now and then; the test's own limit stands anyway.
settings.register_profile(
    "sluice", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("sluice")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlatform:
    """A running Kafka and schema registry that belong to this test session alone."""

    bootstrap: str
    registry_url: str
    data: Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give broker tests a longer limit, and skip what needs a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("kafka") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(KAFKA_LIMIT_S))
        if item.get_closest_marker("gpu") and not Path("/dev/nvidia0").exists():
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


def require_platform_parts() -> None:
    """Skip where the jars were not fetched; where CI is set, that is a failure."""
    from infra.setup.places import find_places

    places = find_places(os.environ)
    for part in (places.kafka_clients_jar, places.registry_jar):
        if not part.exists():
            reason = f"{part.name} is not there: run `make setup`"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture(scope="session")
def local_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlatform]:
    """Start Kafka (one node) and the registry on free ports in a folder of their own, once."""
    from infra.platform.commands import down, up
    from infra.setup.places import find_places
    from tests.support.platform import private_settings

    require_platform_parts()
    chosen = private_settings(tmp_path_factory.mktemp("platform"))
    try:
        report = up(chosen, find_places(os.environ))
        yield LocalPlatform(
            bootstrap=report.status.bootstrap,
            registry_url=report.status.registry_url,
            data=chosen.data,
        )
    finally:
        down(chosen)

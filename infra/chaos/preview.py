"""What a chaos run would do, without doing it: `sluice chaos --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from inference.settings import EngineKind
from infra.chaos import session
from infra.chaos.plan import Deed, Scope, deeds
from infra.run.conductor import parts_of
from infra.run.session import resolve_settings
from infra.settings import RunSettings


def scope_of(settings: RunSettings, campaign: session.Campaign, *, with_broker: bool) -> Scope:
    """Return what a campaign may hit in a run with these settings."""
    return Scope(
        parts=[part.name for part in parts_of(settings)],
        lease_s=settings.scheduler.lease_ms / 1000,
        every_s=campaign.every_s,
        with_broker=with_broker,
        has_engine=settings.inference.engine is EngineKind.VLLM,
        acts=campaign.acts,
    )


def planned(
    config: Path, asked: session.Campaign, *, directory: Path, overrides: Mapping[str, str]
) -> list[Deed]:
    """Return the first deeds that the seed draws for this run; starts and makes nothing.

    A run meets them as far as its processes allow: one that is down then is passed over, and
    another deed is drawn. Raises SettingsError as the run would.
    """
    settings = resolve_settings(config, directory=directory, overrides=overrides)
    with_broker = asked.with_broker and session._broker(settings) is not None
    scope = scope_of(settings, asked, with_broker=with_broker)
    return list(islice(deeds(asked.seed, scope), asked.kills))

"""What a chaos run would do, without doing it: `sluice chaos --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from infra.chaos.plan import Deed, deeds
from infra.chaos.session import Campaign, local_broker, scope_of
from infra.run.session import resolve_settings


def planned(
    config: Path, asked: Campaign, *, directory: Path, overrides: Mapping[str, str]
) -> list[Deed]:
    """Return the first deeds that the seed draws for this run; starts and makes nothing.

    A run meets them as far as its processes allow: one that is down then is passed over, and
    another deed is drawn. Raises SettingsError as the run would.
    """
    settings = resolve_settings(config, directory=directory, overrides=overrides)
    with_broker = asked.with_broker and local_broker(settings) is not None
    scope = scope_of(settings, asked, with_broker=with_broker)
    return list(islice(deeds(asked.seed, scope), asked.kills))

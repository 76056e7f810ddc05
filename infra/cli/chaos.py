"""`sluice chaos`: hit a run at random moments and named edges, and prove that nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infra.cli.output import (
    json_option,
    overrides_option,
    runs_option,
    show_json,
    show_pairs,
    show_table,
)

if TYPE_CHECKING:
    from infra.chaos.plan import Deed

_ACTS = ("kill", "edge", "stop", "preempt", "cut", "engine", "broker_kill", "broker_stop")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--kills", type=click.IntRange(min=1), default=30, show_default=True, help="How many hits."
)
@click.option("--seed", type=int, help="Seed of the plan; default: drawn, and printed.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Mean pause between hits. Unit: s.",
)
@click.option(
    "--act",
    "acts",
    multiple=True,
    type=click.Choice(_ACTS),
    help="Only these; may be repeated. Default: all.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help="Only processes of this role, and not the broker; may be repeated. Default: all.",
)
@click.option("--no-broker", is_flag=True, help="Leave the local broker alone.")
@runs_option
@overrides_option
@click.option("--dry-run", is_flag=True, help="Print the hits that the seed draws; start nothing.")
@json_option
def chaos(
    config: Path, kills: int, seed: int | None, every_s: float, acts: tuple[str, ...],
    roles: tuple[str, ...], no_broker: bool, directory: Path, overrides: dict[str, str],
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Start a run and kill its processes at random moments and named edges; then wait for its end
    and audit it.

    SIGKILL, SIGSTOP past a lease, SIGTERM, cut connections, and the local broker killed or stopped.
    Exits 0 only when the run closed, its audit is clean and no committed token was decoded twice.
    """
    from infra.chaos import session
    from infra.chaos.plan import Act

    seed = secrets.randbelow(2**31) if seed is None else seed
    click.echo(f"seed {seed}", err=True)
    asked = session.Campaign(
        seed=seed,
        kills=kills,
        every_s=every_s,
        acts=frozenset(Act(name) for name in acts or _ACTS),
        with_broker=not no_broker,
        roles=frozenset(name.replace("_", "-") for name in roles),
    )
    if dry_run:
        from infra.chaos.preview import planned

        _show_plan(
            planned(config, asked, directory=directory, overrides=overrides),
            as_json=as_json,
        )
        return
    report, outcome = asyncio.run(
        session.campaign(
            config,
            asked,
            directory=directory,
            overrides=overrides,
            randomness=secrets.token_bytes(16),
        )
    )
    if as_json:
        show_json(report)
    else:
        show_pairs(report)
    click.echo(outcome.reason, err=True)
    is_clean = not report["violations"] and not report["committed_tokens_decoded_twice"]
    sys.exit(0 if outcome.closed and is_clean else 1)


def _show_plan(plan: Sequence[Deed], *, as_json: bool) -> None:
    if as_json:
        show_json(plan)
        return
    show_table(
        ("after s", "act", "target", "edge", "at reach", "lasts s"),
        [
            (one.after_s, one.act, one.target, one.point or "", one.nth, one.lasts_s or "")
            for one in plan
        ],
    )

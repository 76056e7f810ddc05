"""`sluice chaos`: hit a run at random moments and named edges, and prove that nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from infra.cli.output import json_option, show_json

_ACTS = ("kill", "edge", "stop", "preempt", "cut", "engine", "broker_kill", "broker_stop")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--kills", default=30, show_default=True, help="How many hits.")
@click.option("--seed", type=int, help="Seed of the plan; default: drawn, and printed.")
@click.option(
    "--every", "every_s", default=3.0, show_default=True, help="Mean pause between hits, seconds."
)
@click.option(
    "--act",
    "acts",
    multiple=True,
    type=click.Choice(_ACTS),
    help="Only these; may be repeated. Default: all.",
)
@click.option("--no-broker", is_flag=True, help="Leave the local broker alone.")
@click.option(
    "--runs",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run folders lie.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override one setting; may be repeated.",
)
@json_option
def chaos(
    config: Path, kills: int, seed: int | None, every_s: float, acts: tuple[str, ...],
    no_broker: bool, directory: Path, overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Start a run and kill its processes at random moments and named edges; then wait for its end
    and audit it.

    SIGKILL, SIGSTOP past a lease, SIGTERM, cut connections, and the local broker killed or stopped.
    Exits 0 only when the run closed, its audit is clean and no committed token was decoded twice.
    """
    from infra.chaos import session
    from infra.chaos.plan import Act

    if kills < 1 or every_s <= 0:
        raise click.UsageError("--kills must be at least 1, and --every above 0")
    seed = secrets.randbelow(2**31) if seed is None else seed
    click.echo(f"seed {seed}", err=True)
    asked = session.Campaign(
        seed=seed,
        kills=kills,
        every_s=every_s,
        acts=frozenset(Act(name) for name in acts or _ACTS),
        with_broker=not no_broker,
    )
    report, outcome = asyncio.run(
        session.campaign(
            config,
            asked,
            directory=directory,
            overrides=dict(one.partition("=")[::2] for one in overrides),
            randomness=secrets.token_bytes(16),
        )
    )
    if as_json:
        show_json(report)
    else:
        _show(report)
    click.echo(outcome.reason, err=True)
    is_clean = not report["violations"] and not report["committed_tokens_decoded_twice"]
    sys.exit(0 if outcome.closed and is_clean else 1)


def _show(report: dict[str, Any]) -> None:
    width = max(len(name) for name in report)
    for name, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
        click.echo(f"{name:<{width}}  {value}")

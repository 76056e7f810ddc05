"""`sluice up | down | status | doctor`: the local platform and this machine."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

import click

from infra.cli.output import json_option, partitions_option, show_json, show_table
from infra.platform import commands
from infra.platform.settings import PlatformSettings, platform_settings
from infra.platform.status import PlatformStatus
from infra.setup.places import find_places


def _settings(brokers: int | None = None) -> PlatformSettings:
    return platform_settings(os.environ, find_places(os.environ), brokers=brokers)


@click.command()
@click.option(
    "--brokers",
    type=click.Choice(["1", "3"]),
    help="1, or 3 with replication 3; a data folder keeps its number.",
)
@click.option(
    "--topics/--no-topics",
    default=True,
    show_default=True,
    help="Also create the topics and register the schemas.",
)
@partitions_option
@click.option("--dry-run", is_flag=True, help="Say what would be started.")
@json_option
def up(brokers: str | None, topics: bool, partitions: int, dry_run: bool, as_json: bool) -> None:
    """Start Kafka and the schema registry on this machine, and create the topics; what runs is left
    alone.
    """
    settings = _settings(int(brokers) if brokers else None)
    report = commands.up(settings, find_places(os.environ), dry_run=dry_run)
    if topics and not dry_run:
        from infra.cli.topics import create_all

        create_all(
            report.status.bootstrap,
            report.status.registry_url,
            prefix="sluice",
            partitions=partitions,
        )
    if as_json:
        show_json(report)
        return
    if report.was_up:
        click.echo("already up", err=True)
    else:
        started = ", ".join(report.started)
        told = (
            f"would start {started}" if dry_run else f"started {started} in {report.seconds:.1f} s"
        )
        click.echo(told, err=True)
    _show_status(report.status)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be stopped.")
@json_option
def down(dry_run: bool, as_json: bool) -> None:
    """Stop the local platform; what the topics hold stays on disk."""
    report = commands.down(_settings(), dry_run=dry_run)
    if as_json:
        show_json(report)
        return
    stopped = ", ".join(report.stopped) or "nothing"
    told = f"would stop {stopped}" if dry_run else f"stopped {stopped} in {report.seconds:.1f} s"
    click.echo(told, err=True)
    if report.killed:
        click.echo(f"killed after their budget: {', '.join(report.killed)}", err=True)


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show every service of the local platform; exit 1 unless all can be used."""
    now = commands.status(_settings())
    if as_json:
        show_json(now)
    else:
        _show_status(now)
    sys.exit(0 if now.is_well else 1)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check versions, memory, disk, ports, clocks and tools, and say what to do; exit 1 when
    something is missing.
    """
    from infra import doctor as machine

    found = machine.doctor(_settings(), find_places(os.environ))
    if as_json:
        show_json(found)
    else:
        rows = [
            (f.name, _word(f.ok, f.is_required), f.found, f.needed, f.what_to_do)
            for f in found.findings
        ]
        show_table(("check", "ok", "found", "needed", "what to do"), rows)
    sys.exit(found.exit_status)


def _word(ok: bool, is_required: bool) -> str:
    if ok:
        return "yes"
    return "NO" if is_required else "no"


def _show_status(now: PlatformStatus) -> None:
    rows = []
    for one in now.services:
        since = (
            ""
            if one.since_ms is None
            else datetime.fromtimestamp(one.since_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%S")
        )
        rows.append((one.name, one.state.value, one.address, one.pid, since, one.log))
    show_table(("service", "state", "address", "pid", "since (UTC)", "log"), rows)

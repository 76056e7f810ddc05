"""`sluice run | worker | report`."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from infra.cli.output import (
    json_option,
    overrides_option,
    run_argument,
    runs_option,
    show_json,
    show_pairs,
)
from infra.figures import readable
from infra.run.folder import find
from infra.run.naming import HOW


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--resume",
    metavar="RUN",
    help=f"Go on with a run: {HOW}.",
)
@runs_option
@overrides_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the settings and print them resolved, as JSON; start nothing.",
)
@json_option
def run(
    config: Path | None, resume: str | None, directory: Path, overrides: dict[str, str],
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train: start every role, show progress, stop by budget or Ctrl-C, audit, and write summary
    and report.

    CONFIG is a TOML file: examples/tiny.toml to start from, docs/settings.md for every key.
    Exits 0 only when the run closed and its audit is clean.
    """
    from infra.run import session
    from infra.settings import read_resolved

    if (config is None) == (resume is None):
        raise click.UsageError("give either a settings file or --resume RUN")
    if resume is not None and overrides:
        raise click.UsageError("--set is for a new run; one that is resumed keeps its settings")
    if dry_run:
        settings = (
            session.resolve_settings(config, directory=directory, overrides=overrides)
            if config is not None
            else read_resolved(find(str(resume), directory).settings)
        )
        show_json(orjson.loads(settings.model_dump_json()))
        return
    if config is None:
        outcome = asyncio.run(session.resume(str(resume), directory=directory))
    else:
        outcome = asyncio.run(
            session.start(
                config, directory=directory, overrides=overrides, randomness=secrets.token_bytes(16)
            )
        )
    if as_json:
        show_json(outcome.summary)
    else:
        _show(outcome.summary, outcome.folder)
    click.echo(outcome.reason, err=True)
    sys.exit(0 if outcome.closed and outcome.summary["audit_violations"] == 0 else 1)


def _quarter(interval: dict[str, Any]) -> str:
    if interval["mean"] is None:
        return "-"
    if interval["low"] is None:
        return f"{interval['mean']:.3f}"
    spread = f"[{interval['low']:.3f}, {interval['high']:.3f}]"
    return f"{interval['mean']:.3f} {spread} (n {interval['n']} groups)"


def _three(q: dict[str, Any]) -> str:
    if q["p50"] is None:
        return "-"
    return f"{' / '.join(readable(q[name]) for name in ('p50', 'p95', 'p99'))} (n {q['n']})"


def _counts(value: dict[str, int]) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) or "0"


def _show(summary: Mapping[str, Any], folder: Path) -> None:
    lines = [
        ("run", f"{summary['name']} {summary['run_id']}"),
        ("steps", f"{summary['steps']} in {summary['wall_s']} s"),
        ("reward, first quarter", _quarter(summary["reward_first_quarter"])),
        ("reward, last quarter", _quarter(summary["reward_last_quarter"])),
    ]
    for name, both in summary["reward_by_environment"].items():
        lines.append(
            (f"  {name}", f"{_quarter(both['first_quarter'])} -> {_quarter(both['last_quarter'])}")
        )
    lines += [
        ("issued", str(summary["issued"])),
        ("trained", str(summary["trained"])),
        ("dropped", _counts(summary["dropped"])),
        ("abandoned", _counts(summary["abandoned"])),
        ("evaluated", str(summary["evaluated"])),
        ("pending", str(summary["pending"])),
        ("written again or void", _counts(summary["duplicates"])),
        ("lag p50/p95/p99, updates", _three(summary["lag_steps"])),
        ("buffer age p50/p95/p99, s", _three(summary["buffer_age_s"])),
        (
            "tokens/s, effective of raw",
            f"{summary['effective_tokens_per_s']} of {summary['raw_tokens_per_s']}",
        ),
        (
            "audit",
            "clean"
            if summary["audit_violations"] == 0
            else f"{summary['audit_violations']} violations: sluice audit {summary['run_id']}",
        ),
        ("report", str(folder / "report.html")),
    ]
    show_pairs(dict(lines))


class _NamesRoles(click.Command):
    """Says in its help which roles there are, which takes their settings to load."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the roles."""
        from infra.run.roles import ROLES

        del ctx
        formatter.write_paragraph()
        formatter.write_text(f"ROLE is one of {', '.join(ROLES)}.")


@click.command(cls=_NamesRoles)
@click.argument("role")
@click.option(
    "--run",
    "name",
    required=True,
    metavar="RUN",
    help=f"The run: {HOW}.",
)
@runs_option
@click.option(
    "--index",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Place among the workers of this role.",
)
@click.option(
    "--supervised",
    is_flag=True,
    help="Also stop when the parent process is gone; exit with 4 when the role ended unasked.",
)
def worker(role: str, name: str, directory: Path, index: int, supervised: bool) -> None:
    """Run one role of a run in this process, until the run ends or SIGTERM."""
    from infra.run import folder, worker

    worker.configure_log()
    code = asyncio.run(
        worker.serve(role, index=index, folder=folder.find(name, directory), supervised=supervised)
    )
    sys.exit(code)


@click.command()
@run_argument()
@runs_option
@click.option("--dry-run", is_flag=True, help="Compute and print, and write neither file.")
@json_option
def report(name: str, directory: Path, dry_run: bool, as_json: bool) -> None:
    """Compute summary and report of RUN again from its topics; works while it is live."""
    from infra.run import session

    summary, folder = asyncio.run(
        session.account_again(name, directory=directory, keeps=not dry_run)
    )
    if as_json:
        show_json(summary)
    else:
        _show(summary, folder)

"""`sluice audit`, `sluice replay` and `sluice policies`: what the topics prove and tell."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import orjson

from infra.cli.output import json_option, plain, show_json, show_table, with_bus
from schemas.enums import ControlKind
from schemas.errors import RejectedError, SettingsError
from schemas.ids import EpisodeId, RunId, run_of_episode
from schemas.ports import Delivered
from schemas.topics import CONTROL, POLICIES

_READ_MS = 60_000


async def _start_of(doors: Any, run: str) -> tuple[RunId, dict[str, dict[int, int]]]:
    """Return id and start offsets of a run; see `_start_record`."""
    run_id, starts, _ = await _start_record(doors, run)
    return run_id, starts


async def _start_record(doors: Any, run: str) -> tuple[RunId, dict[str, dict[int, int]], str]:
    """Return id, start offsets and settings of a run from its Start record; raise SettingsError
    when none or several fit.
    """
    ends = dict(await doors.consumers.ends(CONTROL))
    reader = doors.consumers.reader({CONTROL: dict.fromkeys(ends, 0)})
    try:
        wanted = {(CONTROL.name, p): end for p, end in ends.items()}
        messages = await reader.read_to(
            wanted, deadline=doors.deadline(_READ_MS, "the Start records")
        )
    finally:
        await reader.close()
    starts = {
        m.record.run_id: m.record
        for m in messages
        if isinstance(m, Delivered) and m.record.kind is ControlKind.START
    }
    fits = (
        sorted(one for one in starts if one.startswith(run))
        if run != "last"
        else sorted(starts)[-1:]
    )
    if len(fits) != 1:
        known = ", ".join(sorted(starts)[-5:]) or "none"
        what = "no run" if not fits else f"{len(fits)} runs"
        raise SettingsError(f"{what} called {run!r} on this bus", hint=f"known: {known}")
    found: dict[str, dict[int, int]] = {}
    for end in starts[fits[0]].ends:
        found.setdefault(end.topic, {})[end.partition] = end.offset
    return fits[0], found, starts[fits[0]].settings


def _asking(directory: Path, run_id: str) -> Any:
    """Return what asks the tables of a run, at its sink or in its folder."""
    from infra.cli.sql import ask
    from infra.run.folder import find

    folder = find(run_id, directory)

    def rows(statement: str) -> Any:
        try:
            return orjson.loads(ask(folder, statement, "JSON"))["data"]
        except RejectedError as error:
            if "UNKNOWN_TABLE" not in error.message:
                raise
            raise SettingsError(
                f"the tables of {run_id} were made by another version of Sluice",
                hint="its sink brings them up to date: `sluice run --resume RUN`",
            ) from error

    return rows


@click.command()
@click.argument("run")
@click.option(
    "--tables",
    "with_tables",
    is_flag=True,
    help="Also compare the ClickHouse tables and rollups with the topics, count by count.",
)
@click.option(
    "--record",
    is_flag=True,
    help="Append the result to control when it is clean: trims and later audits go on from there.",
)
@click.option(
    "--runs",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run folders lie; --tables finds the run's sink there.",
)
@with_bus
@json_option
def audit(
    run: str, with_tables: bool, record: bool, directory: Path, bootstrap: str, registry: str,
    prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Check the invariants of a run from its topics, live or ended; exit 0 only when it is clean.

    RUN is a run's id, the start of it, or `last`.
    """
    from infra.audit.processes import look_for_cycles_rarely
    from infra.run import proof
    from infra.run.bus import Doors, find_bus

    look_for_cycles_rarely()

    async def work() -> Any:
        doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="audit")
        try:
            run_id, starts = await _start_of(doors, run)
            report = await proof.prove(doors, run_id, starts)
            if with_tables:
                from infra.audit import tables

                ask = _asking(directory, run_id)
                report = await tables.with_tables(doors.consumers, report, starts, ask)
            if record and report.is_clean:
                await proof.record(doors, report)
            return report
        finally:
            await doors.close()

    report = asyncio.run(work())
    if as_json:
        show_json(report.to_json())
    else:
        report.show()
    if record:
        what = "recorded" if report.is_clean else "not recorded: it is not clean"
        click.echo(f"this audit is {what}", err=True)
    sys.exit(0 if not report.violations else 1)


@click.command()
@click.argument("episode")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="Folder of the tokenizer, to show text; the run's own model when it lies here.",
)
@click.option("--tokens", "each_token", is_flag=True, help="Also print a row for every token.")
@with_bus
@json_option
def replay(
    episode: str, tokenizer: Path | None, each_token: bool, bootstrap: str, registry: str,
    prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Tell the whole story of one episode: tokens, tools, attempts, verdict, gate, and the step
    that trained it.
    """
    from infra import replay as stories
    from infra.run.bus import Doors, find_bus

    try:
        run = run_of_episode(EpisodeId(episode))
    except ValueError as error:
        raise SettingsError(
            str(error), hint="`sluice tail episodes --from-start` shows episode ids"
        ) from error

    async def work() -> Any:
        doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="replay")
        try:
            run_id, starts, settings = await _start_record(doors, run)
            story = await stories.replay(
                doors.consumers, run_id, EpisodeId(episode), starts, codec=doors.codec
            )
            return story, tokenizer or stories.model_of(settings)
        finally:
            await doors.close()

    story, tokenizer = asyncio.run(work())
    texts = None
    if tokenizer is not None:
        from infra.replay_text import token_texts

        texts = token_texts(tokenizer, story)
    if as_json:
        show_json(stories.to_json(story, texts=texts))
    else:
        stories.show(story, texts=texts, each_token=each_token)


@click.group()
def policies() -> None:
    """List and show policy versions."""


async def _versions(run: str, bootstrap: str, registry: str, prefix: str) -> list[Any]:
    from infra.run.bus import Doors, find_bus

    doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="policies")
    try:
        run_id, starts = await _start_of(doors, run)
        reader = doors.consumers.reader({POLICIES: starts[POLICIES.name]})
        try:
            ends = {(POLICIES.name, p): e for p, e in (await reader.ends(POLICIES)).items()}
            messages = await reader.read_to(
                ends, deadline=doors.deadline(_READ_MS, "the policy versions")
            )
        finally:
            await reader.close()
    finally:
        await doors.close()
    found = [m.record for m in messages if isinstance(m, Delivered) and m.record.run_id == run_id]
    return sorted(found, key=lambda one: (one.ordinal, one.epoch, one.number))


@policies.command("list")
@click.argument("run")
@with_bus
@json_option
def list_policies(run: str, bootstrap: str, registry: str, prefix: str, as_json: bool) -> None:
    """List the versions of a run."""
    found = asyncio.run(_versions(run, bootstrap, registry, prefix))
    if as_json:
        show_json([{k: v for k, v in plain(one).items() if k != "manifest"} for one in found])
        return
    show_table(
        ("version", "ordinal", "parent", "digest", "MB", "location"),
        [
            (
                f"{v.epoch}/{v.number}",
                v.ordinal,
                f"{v.parent_epoch}/{v.parent_number}",
                v.digest[:12],
                v.bytes_total // 10**6,
                v.location,
            )
            for v in found
        ],
    )


@policies.command("show")
@click.argument("run")
@click.argument("version", metavar="EPOCH/NUMBER")
@with_bus
def show_policy(run: str, version: str, bootstrap: str, registry: str, prefix: str) -> None:
    """Show one version with its manifest."""
    found = asyncio.run(_versions(run, bootstrap, registry, prefix))
    one = [v for v in found if f"{v.epoch}/{v.number}" == version]
    if not one:
        raise SettingsError(
            f"no version {version!r} in this run", hint="`sluice policies list RUN` names them"
        )
    show_json(one[0])

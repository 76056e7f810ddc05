"""`sluice audit`, `sluice replay` and `sluice policies`: what the topics prove and tell."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
import orjson

from infra.cli.output import (
    json_option,
    plain,
    run_argument,
    runs_option,
    show_json,
    show_pairs,
    show_table,
    with_bus,
)
from infra.run.starts import find_start, named, offsets_of, run_begin
from infra.standing import standing
from schemas.errors import RejectedError, SettingsError
from schemas.ids import EpisodeId, Version, run_of_episode
from schemas.ports import Delivered
from schemas.topics import POLICIES

_READ_MS = 60_000
_VERSIONS_SHOWN = 5


def _asking(directory: Path, run_id: str) -> Any:
    """Return what asks the tables of a run, at its sink or in its folder."""
    from infra.run.asking import ask
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
@run_argument()
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
@click.option("--dry-run", is_flag=True, help="With --record: audit, and append nothing.")
@runs_option
@with_bus
@json_option
def audit(
    name: str, with_tables: bool, record: bool, dry_run: bool, directory: Path, bootstrap: str,
    registry: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Check the invariants of RUN from its topics, live or ended; exit 0 only when it is clean."""
    from infra.audit.processes import look_for_cycles_rarely
    from infra.run import proof
    from infra.run.bus import Doors, find_bus

    look_for_cycles_rarely()
    wanted = named(name, directory)

    async def work() -> Any:
        doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="audit")
        try:
            run_id, starts = await run_begin(doors.consumers, doors.clock, wanted)
            report = await proof.prove(doors, run_id, starts)
            if with_tables:
                from infra.audit import tables

                ask = _asking(directory, run_id)
                report = await tables.with_tables(doors.consumers, report, starts, ask)
            if record and report.is_clean and not dry_run:
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
        done = "would be recorded" if dry_run else "is recorded"
        what = done if report.is_clean else "is not recorded: it is not clean"
        click.echo(f"this audit {what}", err=True)
    sys.exit(0 if not report.violations else 1)


@click.command()
@click.argument("episode")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="Folder of the tokenizer, to show text; the run's own model when it lies here.",
)
@click.option("--tokens", "each_token", is_flag=True, help="Also print a row for every token.")
@click.option(
    "--trace",
    "as_trace",
    is_flag=True,
    help="Print its trace instead: each stage with its times, under the ids of docs/tracing.md.",
)
@with_bus
@json_option
def replay(
    episode: str, tokenizer: Path | None, each_token: bool, as_trace: bool, bootstrap: str,
    registry: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Tell the whole story of one episode: tokens, tools, attempts, verdict, gate, and the step
    that trained it.

    EPISODE is an id, RUN.ORDINAL.MEMBER: `sluice tail episodes --from-start` shows them.
    """
    from infra import replay as stories
    from infra.run.bus import Doors, find_bus
    from infra.tracing import telling

    try:
        run = run_of_episode(EpisodeId(episode))
    except ValueError as error:
        raise SettingsError(
            str(error), hint="`sluice tail episodes --from-start` shows episode ids"
        ) from error

    async def work() -> Any:
        doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="replay")
        try:
            start = await find_start(doors.consumers, doors.clock, run)
            if as_trace:
                return await telling.trace_of(
                    doors.consumers, start.run_id, EpisodeId(episode), offsets_of(start)
                )
            story = await stories.replay(
                doors.consumers, start.run_id, EpisodeId(episode), offsets_of(start),
                codec=doors.codec,
            )  # fmt: skip
            is_bytes = tokenizer is None and stories.has_bytes(start.settings)
            return story, tokenizer or stories.model_of(start.settings), is_bytes
        finally:
            await doors.close()

    if as_trace:
        spans = asyncio.run(work())
        if as_json:
            show_json(telling.to_json(spans))
        else:
            telling.print_trace(spans)
        return
    story, tokenizer, is_bytes = asyncio.run(work())
    texts = None
    if is_bytes or tokenizer is not None:
        from infra.replay_text import byte_texts, token_texts

        texts = byte_texts(story) if is_bytes else token_texts(tokenizer, story)
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
        run_id, starts = await run_begin(doors.consumers, doors.clock, run)
        messages = await standing(
            doors.consumers,
            {POLICIES: starts[POLICIES.name]},
            deadline=doors.deadline(_READ_MS, "the policy versions"),
        )
    finally:
        await doors.close()
    found = [m.record for m in messages if isinstance(m, Delivered) and m.record.run_id == run_id]
    return sorted(found, key=lambda one: (one.ordinal, one.epoch, one.number))


@policies.command("list")
@run_argument()
@runs_option
@with_bus
@json_option
def list_policies(
    name: str, directory: Path, bootstrap: str, registry: str, prefix: str, as_json: bool
) -> None:
    """List the versions of RUN."""
    found = asyncio.run(_versions(named(name, directory), bootstrap, registry, prefix))
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
@run_argument()
@click.argument("version", metavar="EPOCH/NUMBER")
@runs_option
@with_bus
@json_option
def show_policy(
    name: str, version: str, directory: Path, bootstrap: str, registry: str, prefix: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Show one version of RUN with its manifest."""
    try:
        wanted = Version.parse(version)
    except ValueError as error:
        raise SettingsError(str(error), hint="`sluice policies list RUN` names them") from error
    found = asyncio.run(_versions(named(name, directory), bootstrap, registry, prefix))
    one = next((v for v in found if Version(v.epoch, v.number) == wanted), None)
    if one is None:
        known = ", ".join(f"{v.epoch}/{v.number}" for v in found[-_VERSIONS_SHOWN:]) or "none"
        raise SettingsError(
            f"no version {version!r} in this run",
            hint=f"known: {known} (newest last); `sluice policies list RUN` lists all",
        )
    if as_json:
        show_json(one)
        return
    show_pairs({k: v for k, v in plain(one).items() if k != "manifest"})
    click.echo(f"\n{one.manifest}".rstrip())

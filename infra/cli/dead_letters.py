"""`sluice dead-letters list | show | retry`."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from infra.cli.output import (
    json_option,
    plain,
    runs_option,
    show_json,
    show_pairs,
    show_table,
    with_bus,
)
from infra.cli.tail import as_dict
from infra.run.naming import HOW
from infra.run.starts import find_start, named
from schemas.errors import SluiceError

T = TypeVar("T")


def _place(given: str) -> str:
    if not re.fullmatch(r"\d+:\d+", given):
        raise click.BadParameter(f"{given!r}; `sluice dead-letters list` shows PARTITION:OFFSET")
    return given


letter_argument = click.argument(
    "letter", metavar="PARTITION:OFFSET", callback=lambda _, __, given: _place(given)
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show what no consumer could take, with its evidence, and produce it again once it decodes."""


def _at_the_desk(
    work: Callable[[Any], Awaitable[T]], bootstrap: str, registry: str, prefix: str
) -> T:
    from infra.dead_letters import Desk
    from infra.run.bus import Doors, find_bus

    async def call() -> T:
        doors = Doors(find_bus(bootstrap, registry, prefix=prefix), client="dead-letters")
        try:
            return await work(
                Desk(
                    producer=doors.producer,
                    consumers=doors.consumers,
                    codec=doors.codec,
                    clock=doors.clock,
                )
            )
        finally:
            await doors.close()

    return asyncio.run(call())


@dead_letters.command("list")
@click.option("--run", default="", help=f"Only those met by this run: {HOW}.")
@runs_option
@with_bus
@json_option
def list_letters(
    run: str, directory: Path, bootstrap: str, registry: str, prefix: str, as_json: bool
) -> None:
    """List the dead letters: origin, who gave up and why, whether retried."""
    wanted = named(run, directory)

    async def work(desk: Any) -> tuple[str, Any]:
        begun = await find_start(desk.consumers, desk.clock, wanted) if wanted else None
        return "" if begun is None else begun.run_id, await desk.cases()

    run_id, cases = _at_the_desk(work, bootstrap, registry, prefix)
    letters = [
        (case, one)
        for case in cases.values()
        for one in case.letters
        if run_id in ("", one.record.run_id)
    ]
    letters.sort(key=lambda pair: (pair[1].partition, pair[1].offset))
    if as_json:
        show_json([as_dict(one) | {"state": case.state.value} for case, one in letters])
        return
    show_table(
        ("letter", "origin", "consumer", "state", "error"),
        [
            (
                f"{m.partition}:{m.offset}",
                f"{m.record.origin_topic}:{m.record.origin_partition}:{m.record.origin_offset}",
                m.record.consumer,
                case.state.value,
                m.record.error,
            )
            for case, m in letters
            if m.record.part == 0
        ],
    )


@dead_letters.command()
@letter_argument
@with_bus
@json_option
def show(letter: str, bootstrap: str, registry: str, prefix: str, as_json: bool) -> None:
    """Print one dead letter whole, its raw bytes in hexadecimal, and what a retry would do."""

    async def work(desk: Any) -> dict[str, Any]:
        case = await desk.case_at(letter)
        one = next(m for m in case.letters if f"{m.partition}:{m.offset}" == letter)
        told = as_dict(one) | {"state": case.state.value}
        try:
            told["decoded"] = desk.decode(case)
        except SluiceError as error:
            told["undecodable"] = str(error)
        refused = await desk.refusal(case)
        return told | {"retry": "" if refused is None else str(refused)}

    told = _at_the_desk(work, bootstrap, registry, prefix)
    if as_json:
        show_json(told)
        return
    record, decoded = told.pop("record"), told.pop("decoded", None)
    retry_would = told.pop("retry") or "produce it again"
    show_pairs({**told, **record, "retry would": retry_would})
    if decoded is not None:
        click.echo("\nit decodes now:")
        show_pairs(plain(decoded))


@dead_letters.command()
@letter_argument
@click.option("--reissue", is_flag=True, help="Offer the task anew, as a new one.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; exit 2 when it is refused.")
@with_bus
@json_option
def retry(
    letter: str, reissue: bool, dry_run: bool, bootstrap: str, registry: str, prefix: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Produce a record again to its topic and partition, once, now that it decodes.

    It never reopens an episode that is settled; --reissue offers its task anew as a new one.
    """

    async def work(desk: Any) -> dict[str, Any]:
        case = await desk.case_at(letter)
        where = case.origin
        told = {"origin": f"{where.topic}:{where.partition}:{where.offset}", "reissued": reissue}
        if dry_run:
            refused = None if reissue and case.retried is None else await desk.refusal(case)
            if refused is not None:
                raise refused
            return told | {"copy": None}
        retry_id = uuid.uuid4().hex
        act = desk.reissue if reissue else desk.retry
        copy = await act(case, retry_id=retry_id)
        return told | {"copy": f"{copy.topic}:{copy.partition}:{copy.offset}"}

    told = _at_the_desk(work, bootstrap, registry, prefix)
    if as_json:
        show_json(told)
    else:
        click.echo(f"{told['origin']} -> {told['copy'] or 'would be produced again'}")

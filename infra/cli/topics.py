"""`sluice topics list | describe | create | contract | trim`."""

from __future__ import annotations

import asyncio
import difflib
import sys
from pathlib import Path
from typing import Any

import click

from infra.cli.output import (
    json_option,
    partitions_option,
    prefix_option,
    show_json,
    show_table,
    with_bus,
)
from schemas.errors import SettingsError
from schemas.topics import ALL, BY_NAME, Topic


def create_all(
    bootstrap: str, registry: str, *, prefix: str, partitions: int, dry_run: bool = False
) -> dict[str, Any]:
    """Create every topic and register every schema; what is there as declared is left alone.

    Returns what was done, or with `dry_run` would be: names of topics and of subjects.
    """
    from infra.registry import register_all, unregistered
    from infra.topic_admin import create_topics, missing_topics

    if dry_run:
        made = missing_topics(bootstrap, prefix=prefix)
        subjects = unregistered(registry, prefix=prefix)
    else:
        made = create_topics(bootstrap, prefix=prefix, partitions=partitions)
        subjects = unregistered(registry, prefix=prefix)
        register_all(registry, prefix=prefix)
    would = "would be " if dry_run else ""
    click.echo(
        f"topics: {len(made)} {would}created of {len(ALL)}; "
        f"schemas: {len(subjects)} {would}registered of {len(ALL)}",
        err=True,
    )
    return {"dry_run": dry_run, "created": made, "registered": subjects}


def topic_named(name: str) -> Topic[Any]:
    """Return a topic by its logical name, with or without version; raise SettingsError with the
    known names.
    """
    topic = BY_NAME.get(name) or BY_NAME.get(f"{name}.v1")
    if topic is None:
        near = difflib.get_close_matches(name, [one.removesuffix(".v1") for one in BY_NAME], n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(BY_NAME)}"
        raise SettingsError(f"no topic {name!r}", hint=hint)
    return topic


@click.group()
def topics() -> None:
    """List, describe and create the topics; write their contract."""


@topics.command("list")
@json_option
def list_topics(as_json: bool) -> None:
    """List every declared topic; needs no broker."""
    rows = [
        {
            "name": one.name,
            "record": one.record.__name__,
            "partitioned_by": "group" if one.is_grouped else "key",
            "cleanup": one.cleanup.value,
            "writers": [role.value for role in one.writers],
            "readers": [role.value for role in one.readers],
            "meaning": one.meaning,
        }
        for one in ALL
    ]
    if as_json:
        show_json(rows)
        return
    show_table(
        ("topic", "record", "partition", "cleanup", "meaning"),
        [(r["name"], r["record"], r["partitioned_by"], r["cleanup"], r["meaning"]) for r in rows],
    )


@topics.command()
@partitions_option
@click.option("--dry-run", is_flag=True, help="Say what would be created; create nothing.")
@with_bus
@json_option
def create(
    partitions: int, dry_run: bool, bootstrap: str, registry: str, prefix: str, as_json: bool
) -> None:
    """Create every topic as declared and register every schema; safe to repeat."""
    from infra.run.bus import find_bus

    address = find_bus(bootstrap, registry, prefix=prefix)
    told = create_all(
        address.bootstrap,
        address.registry,
        prefix=prefix,
        partitions=partitions,
        dry_run=dry_run,
    )
    if as_json:
        show_json(told)
        return
    for name in (*told["created"], *told["registered"]):
        click.echo(name)


@topics.command()
@click.argument("name", required=False)
@with_bus
@json_option
def describe(name: str | None, bootstrap: str, registry: str, prefix: str, as_json: bool) -> None:
    """Compare the topics on the broker with what is declared; exit 1 on a difference.

    NAME is one that `sluice topics list` shows, with or without its version; without it, all.
    """
    from infra.run.bus import find_bus
    from infra.topic_admin import describe_topics

    address = find_bus(bootstrap, registry, prefix=prefix)
    wanted = [topic_named(name)] if name else list(ALL)
    found = describe_topics(address.bootstrap, prefix=prefix, topics=wanted)
    if as_json:
        show_json(found)
    else:
        show_table(
            ("topic", "partitions", "replicas", "differences"),
            [
                (one.name, one.partitions, one.replicas, "; ".join(one.differences) or "none")
                for one in found
            ],
        )
    sys.exit(1 if any(one.differences for one in found) else 0)


@topics.command()
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write to this file instead of stdout."
)
@prefix_option
@json_option
def contract(out: Path | None, prefix: str, as_json: bool) -> None:
    """Write the AsyncAPI 3 document of all topics, which is JSON with or without --json."""
    import orjson

    from infra.asyncapi import document

    del as_json
    text = orjson.dumps(document(prefix=prefix), option=orjson.OPT_INDENT_2).decode()
    if out is None:
        click.echo(text)
    else:
        try:
            out.write_text(text + "\n")
        except OSError as error:
            raise SettingsError(
                f"{out} cannot be written: {error.strerror}", hint="name another file with --out"
            ) from error
        click.echo(f"wrote {out}", err=True)


@topics.command()
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@with_bus
@json_option
def trim(dry_run: bool, bootstrap: str, registry: str, prefix: str, as_json: bool) -> None:
    """Delete tokens, tool events and payloads that nobody needs any more.

    Kept is what a recorded audit has not seen, what belongs to an episode that is not sealed, and
    what the learner may have to consume again. Refused when no run has a recorded audit.
    """
    from infra import topic_admin
    from infra.run.bus import Doors, find_bus
    from infra.trim import TRIMMED, facts_of

    address = find_bus(bootstrap, registry, prefix=prefix)

    async def read() -> Any:
        doors = Doors(address, client="trim")
        try:
            return await facts_of(doors.consumers)
        finally:
            await doors.close()

    holds = asyncio.run(read()).holds()
    lows = topic_admin.log_starts(address.bootstrap, prefix=prefix, topics=TRIMMED)
    floors = {
        place: hold.offset
        for place, hold in holds.items()
        if hold.offset > lows.get(place, hold.offset)
    }
    if floors and not dry_run:
        topic_admin.delete_below(address.bootstrap, prefix=prefix, floors=floors)
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "start": lows[topic, partition],
            "floor": hold.offset,
            "records": max(0, hold.offset - lows[topic, partition]),
            "held_by": hold.run,
            "why": hold.why,
        }
        for (topic, partition), hold in sorted(holds.items())
        if (topic, partition) in lows
    ]
    if as_json:
        show_json({"dry_run": dry_run, "partitions": rows})
        return
    names = ("topic", "partition", "start", "floor", "records", "held_by", "why")
    show_table(names, [tuple(row[name] for name in names) for row in rows])
    total = sum(row["records"] for row in rows)
    click.echo(f"{total} records {'would be' if dry_run else 'were'} deleted", err=True)

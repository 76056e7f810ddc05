"""`sluice topics list | describe | create | contract | trim` and `sluice tail`."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from infra.cli.output import json_option, plain, show_json, show_table, with_bus
from schemas.errors import SettingsError
from schemas.ports import Delivered, Message, Poisoned
from schemas.topics import ALL, BY_NAME, Topic

_POLL_S = 0.5
_RECORDS_MAX = 500
_TEXT_MAX = 100


def create_all(bootstrap: str, registry: str, *, prefix: str, partitions: int) -> None:
    """Create every topic and register every schema; what is there as declared is left alone."""
    from infra.registry import register_all
    from infra.topic_admin import create_topics

    made = create_topics(bootstrap, prefix=prefix, partitions=partitions)
    registered = register_all(registry, prefix=prefix)
    click.echo(
        f"topics: {len(made)} created of {len(ALL)}; schemas: {registered} registered or known",
        err=True,
    )


def topic_named(name: str) -> Topic[Any]:
    """Return a topic by its logical name, with or without version; raise SettingsError with the
    known names.
    """
    topic = BY_NAME.get(name) or BY_NAME.get(f"{name}.v1")
    if topic is None:
        raise SettingsError(f"no topic {name!r}", hint=f"one of {', '.join(BY_NAME)}")
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
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Partitions of a topic that does not exist yet.",
)
@with_bus
def create(partitions: int, bootstrap: str, registry: str, prefix: str) -> None:
    """Create every topic as declared and register every schema; safe to repeat."""
    from infra.run.bus import find_bus

    address = find_bus(bootstrap, registry, prefix=prefix)
    create_all(address.bootstrap, address.registry, prefix=prefix, partitions=partitions)


@topics.command()
@click.argument("name", required=False)
@with_bus
@json_option
def describe(name: str | None, bootstrap: str, registry: str, prefix: str, as_json: bool) -> None:
    """Compare the topics on the broker with what is declared; exit 1 on a difference."""
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
@click.option("--prefix", default="sluice", show_default=True, help="Prefix of the topic names.")
def contract(out: Path | None, prefix: str) -> None:
    """Write the AsyncAPI 3 document of all topics."""
    import orjson

    from infra.asyncapi import document

    text = orjson.dumps(document(prefix=prefix), option=orjson.OPT_INDENT_2).decode()
    if out is None:
        click.echo(text)
    else:
        out.write_text(text + "\n")
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
            return await facts_of(doors.consumers, doors.clock)
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


def _fits(message: Message, *, run: str, episode: str, kind: str) -> bool:
    if isinstance(message, Poisoned):
        return not (run or episode or kind)
    record = message.record
    return (
        (not run or str(getattr(record, "run_id", "")).startswith(run))
        and (not episode or str(getattr(record, "episode_id", "")) == episode)
        and (not kind or str(getattr(record, "kind", "")) == kind)
    )


def as_dict(message: Message) -> dict[str, Any]:
    """Return what JSON shows of a message: its place, and its record or why it has none."""
    head = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
    }
    if isinstance(message, Delivered):
        return head | {"record": plain(message.record)}
    return head | {
        "poison": message.error,
        "schema_id": message.schema_id,
        "raw": message.raw.hex(),
    }


def _line(message: Message) -> str:
    when = datetime.fromtimestamp(message.timestamp_ms / 1e3, UTC).strftime("%H:%M:%S.%f")[:-3]
    head = f"{when} {message.partition}:{message.offset}"
    if isinstance(message, Poisoned):
        return f"{head} POISON {message.error}"
    fields = []
    for name, value in plain(message.record).items():
        if value in ("", 0, 0.0, [], {}, None, "none", False) or name in ("run_id", "at_us"):
            continue
        text = str(value)
        fields.append(f"{name}={text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + '...'}")
    return f"{head} {type(message.record).__name__} {' '.join(fields)}"


async def _tail(
    topic: Topic[Any], address: Any, *, from_start: bool, follow: bool, limit: int, run: str,
    episode: str, kind: str, as_json: bool,
) -> None:  # fmt: skip
    from infra.run.bus import Doors

    doors = Doors(address, client="tail")
    ends = dict(await doors.consumers.ends(topic))
    lows = dict.fromkeys(ends, 0) if from_start else ends
    reader = doors.consumers.reader({topic: lows})
    shown = 0
    try:
        while True:
            messages = await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S)
            for message in messages:
                if not _fits(message, run=run, episode=episode, kind=kind):
                    continue
                if as_json:
                    show_json(as_dict(message), lines=True)
                else:
                    click.echo(_line(message))
                shown += 1
                if limit and shown >= limit:
                    return
            at = reader.positions()
            if not follow and all(at[topic.name, p] >= end for p, end in ends.items()):
                return
    finally:
        await reader.close()
        await doors.close()


@click.command()
@click.argument("topic")
@click.option("--from-start", is_flag=True, help="Begin at the first record instead of now.")
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Go on when the end is reached."
)
@click.option("--limit", default=0, help="Stop after so many records; 0 is no limit.")
@click.option("--run", default="", help="Only records of this run (id, or its start).")
@click.option("--episode", default="", help="Only records of this episode.")
@click.option("--kind", default="", help="Only records of this kind.")
@with_bus
@json_option
def tail(
    topic: str, from_start: bool, follow: bool, limit: int, run: str, episode: str, kind: str,
    bootstrap: str, registry: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Decode a topic live, one line a record; with --json one object a line."""
    from infra.run.bus import find_bus

    wanted = topic_named(topic)
    address = find_bus(bootstrap, registry, prefix=prefix)
    try:
        asyncio.run(
            _tail(
                wanted, address, from_start=from_start, follow=follow, limit=limit, run=run,
                episode=episode, kind=kind, as_json=as_json,
            )
        )  # fmt: skip
    except KeyboardInterrupt:
        return

"""`sluice tail`: the records of a topic as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import click

from infra.cli.output import json_option, plain, runs_option, show_json, with_bus
from infra.cli.topics import topic_named
from infra.run.naming import HOW
from infra.run.starts import find_start, named
from schemas.errors import SettingsError
from schemas.ids import EpisodeId, run_of_episode
from schemas.ports import Delivered, Message, Poisoned
from schemas.topics import Topic

_POLL_S = 0.5
_RECORDS_MAX = 500
_TEXT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records of a topic are shown; an empty text wants all."""

    run: str = ""
    """Id, or the start of it."""
    episode: str = ""
    kind: str = ""

    def fits(self, message: Message) -> bool:
        """Whether a message is shown; one that does not decode, only when nothing is asked for."""
        if isinstance(message, Poisoned):
            return not (self.run or self.episode or self.kind)
        record: Any = message.record
        return (
            (not self.run or record.run_id.startswith(self.run))
            and (not self.episode or record.episode_id == self.episode)
            and (not self.kind or record.kind == self.kind)
        )


def check_wanted(topic: Topic[Any], wanted: Wanted) -> None:
    """Raise SettingsError for what no record of the topic could ever fit."""
    types = get_type_hints(topic.record)
    for name, text, field in (
        ("--run", wanted.run, "run_id"),
        ("--episode", wanted.episode, "episode_id"),
        ("--kind", wanted.kind, "kind"),
    ):
        if text and field not in types:
            raise SettingsError(
                f"{name}: a record of {topic.name} has no {field}", hint=f"leave {name} out"
            )
    if wanted.episode:
        try:
            run_of_episode(EpisodeId(wanted.episode))
        except ValueError as error:
            raise SettingsError(
                str(error), hint=f"`sluice tail {topic.name}` shows some"
            ) from error
    if wanted.kind and wanted.kind not in (kinds := [one.value for one in types["kind"]]):
        raise SettingsError(
            f"{topic.name} has no kind {wanted.kind!r}", hint=f"one of {', '.join(kinds)}"
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
    topic: Topic[Any], address: Any, wanted: Wanted, *, from_start: bool, follow: bool, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    from infra.run.bus import Doors

    doors = Doors(address, client="tail")
    try:
        if wanted.run:
            start = await find_start(doors.consumers, doors.clock, wanted.run)
            wanted = replace(wanted, run=start.run_id)
        await _show(
            doors, topic, wanted, from_start=from_start, follow=follow, limit=limit, as_json=as_json
        )
    finally:
        await doors.close()


async def _show(
    doors: Any, topic: Topic[Any], wanted: Wanted, *, from_start: bool, follow: bool, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    ends = dict(await doors.consumers.ends(topic))
    lows = dict.fromkeys(ends, 0) if from_start else ends
    reader = doors.consumers.reader({topic: lows})
    shown = 0
    try:
        while True:
            messages = await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S)
            for message in messages:
                if not wanted.fits(message):
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


@click.command()
@click.argument("topic")
@click.option("--from-start", is_flag=True, help="Begin at the first record instead of now.")
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Go on when the end is reached."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Stop after so many records; 0 is no limit.",
)
@click.option("--run", default="", help=f"Only records of this run: {HOW}.")
@click.option("--episode", default="", help="Only records of this episode.")
@click.option("--kind", default="", help="Only records of this kind.")
@runs_option
@with_bus
@json_option
def tail(
    topic: str, from_start: bool, follow: bool, limit: int, run: str, episode: str, kind: str,
    directory: Path, bootstrap: str, registry: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Decode a topic live, one line a record; with --json one object a line.

    TOPIC is one that `sluice topics list` shows, with or without its version. Ctrl-C ends.
    """
    from infra.run.bus import find_bus

    chosen = topic_named(topic)
    wanted = Wanted(run=named(run, directory), episode=episode, kind=kind)
    check_wanted(chosen, wanted)
    address = find_bus(bootstrap, registry, prefix=prefix)
    try:
        asyncio.run(
            _tail(
                chosen, address, wanted, from_start=from_start, follow=follow, limit=limit,
                as_json=as_json,
            )
        )  # fmt: skip
    except KeyboardInterrupt:
        return

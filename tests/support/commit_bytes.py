"""Commits as bytes, whole and damaged field by field, for two ways of reading them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import fastavro

from schemas.codec import Codec, parsed, schema_text
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import Span, Timing, pack_spans, pack_timing
from schemas.records.token_commit import TokenCommit
from schemas.topics import ALL, TOKENS
from tests.support.random_records import RecordBuilder

_LONGS = (
    "fence_number", "producer_number", "branch", "turn", "seq", "start", "count", "rests_on",
    "result_offset",
)  # fmt: skip
OLDER_ID = 7_001
"""Schema id of a writer that knows one field less."""


def older_schema() -> str:
    """Return the schema of a commit before its times were added."""
    schema = json.loads(schema_text(TOKENS.schema))
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "timing"]
    return json.dumps(schema)


def codec() -> Codec:
    """Return a codec that reads what the older writer wrote too."""
    ids = {topic.name: index + 1 for index, topic in enumerate(ALL)}
    return Codec(ids=ids, writers={OLDER_ID: older_schema()})


def by_older_writer(record: TokenCommit) -> bytes:
    """Return the framed bytes as a writer of the older schema spells them."""
    pieces = fields_of(record)
    del pieces["timing"]
    return b"\x00" + OLDER_ID.to_bytes(4, "big") + b"".join(pieces.values())


def plain(random: Random, *, run: RunId) -> TokenCommit:
    """Return a random commit whose texts are ids as we write them."""
    record: TokenCommit = RecordBuilder(random.randrange(2**31), size_max=300).record(TOKENS)
    number = random.choice((7, 42, 1_234))
    longs: dict[str, Any] = {
        name: random.choice((0, 1, -1, 63, 64, -64, 2**31, -(2**40), 2**54)) for name in _LONGS
    }
    timing = Timing(
        requested_us=number, first_token_us=number + 1, last_token_us=record.at_us,
        prefilled_tokens=number, reused_tokens=0,
    )  # fmt: skip
    return replace(
        record,
        run_id=run,
        episode_id=EpisodeId(f"{run}.{number}.0"),
        group_id=GroupId(f"{run}.{number}.g"),
        writer_id=WorkerId(f"inference-{number % 2}"),
        incarnation="0190a0b1-0000-7abc-8def-000000000001",
        digests=random.choice(("", "", "ab" * 32)),
        attempt=random.choice((0, 1, 300)),
        **longs,
        spans=random.choice(
            (record.spans, pack_spans([Span(0, 4, Version(3, number)), Span(4, 6, Version(4, 1))]))
        ),
        timing=random.choice((b"", record.timing, pack_timing(timing))),
    )


def fields_of(record: TokenCommit) -> dict[str, bytes]:
    """Return the Avro bytes of each field, in order."""
    datum = record.to_avro()
    found = {}
    for field in parsed(TOKENS.schema)["fields"]:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, field["type"], datum[field["name"]])
        found[field["name"]] = buffer.getvalue()
    return found


def spelled(record: TokenCommit, **other: bytes) -> bytes:
    """Return the framed bytes of a commit with some of its fields spelled otherwise."""
    return Codec.local().frame(TOKENS) + b"".join((fields_of(record) | other).values())


Damage = Callable[[TokenCommit], bytes]
DAMAGES: Mapping[str, Damage] = {
    "nothing at all": lambda _: b"",
    "no frame": lambda _: b"no frame at all",
    "an unknown schema": lambda one: b"\x00\x00\x00\x27\x0f" + spelled(one)[5:],
    "the frame alone": lambda one: spelled(one)[:5],
    "cut off at the end": lambda one: spelled(one)[:-1],
    "cut off in the middle": lambda one: spelled(one)[:40],
    "bytes that follow": lambda one: spelled(one) + b"\x00",
    "another record that follows": lambda one: spelled(one) + spelled(one)[5:],
    "a symbol out of range": lambda one: spelled(one, kind=b"\x0c"),
    "the symbol that nobody writes": lambda one: spelled(one, kind=b"\x00"),
    "no UTF-8": lambda one: spelled(one, episode_id=b"\x04\xff\xfe"),
    "no UTF-8 in what no table keeps": lambda one: spelled(one, digests=b"\x02\xc3"),
    "a negative length": lambda one: spelled(one, token_ids=b"\x01"),
    "a negative length of a text": lambda one: spelled(one, group_id=b"\x03ab"),
    "a length beyond the end": lambda one: spelled(one, timing=b"\xfe\xff\x03"),
    "a length that wraps around": lambda one: spelled(one, spans=b"\xfe" + b"\xff" * 8 + b"\x01"),
    "a number without end": lambda one: spelled(one, at_us=b"\xff" * 12),
}
"""What the decoder refuses, by what is wrong with it."""

ODD: Mapping[str, Damage] = {
    "an older writer's schema": by_older_writer,
    # The reference decoder leaves the higher bits out, and counts from the end of the symbols.
    "a number of more than 64 bits": lambda one: spelled(one, seq=b"\xff" * 10 + b"\x01"),
    "a negative symbol": lambda one: spelled(one, drift=b"\x01"),
    "a text beyond ASCII": lambda one: spelled(replace(one, episode_id=EpisodeId("Grüße"))),
    "a long text": lambda one: spelled(replace(one, digests="d" * 2_000)),
    "a number of 64 bits": lambda one: spelled(replace(one, result_offset=-(2**63))),
    "a number in more bytes than it needs": lambda one: spelled(one, seq=b"\x86\x80\x00"),
    "a length in more bytes than it needs": lambda one: spelled(one, token_ids=b"\x84\x00ab"),
    "an empty name": lambda one: spelled(replace(one, writer_id=WorkerId(""))),
    "damaged times": lambda one: spelled(replace(one, timing=b"short")),
    "times of all ones": lambda one: spelled(replace(one, timing=b"\xff" * 40)),
    "spans of a negative version": lambda one: spelled(replace(one, spans=b"\xff" * 32)),
    "a clock before 1970": lambda one: spelled(replace(one, at_us=-5)),
    "a clock far ahead": lambda one: spelled(replace(one, at_us=2**54)),
}
"""What is rare and taken nevertheless."""

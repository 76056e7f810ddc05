"""The audit list of rejected tokens: which token of which trajectory left the band, on which side
(requirements 4.3).

Layout: `SLRJ`, version 1 as uint32, length of a JSON table as uint32, the table (one entry per
trajectory: episode, task, environment, lag in updates, length bucket, sign of the advantage), then
12 bytes per token: index into the table as uint32, position as int32 and ratio as float32, whose
sign bit is set on the low side.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import PoisonRecordError

_HEAD = struct.Struct("<4sII")
_TOKEN = struct.Struct("<Iif")
_MAGIC = b"SLRJ"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedToken:
    """One token outside the band."""

    position: int
    """Index in the episode. Unit: tokens."""
    ratio: float
    low: bool
    """Whether it lay at or below the lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedIn:
    """The rejected tokens of one trajectory."""

    episode_id: str
    task_id: str
    environment: str
    lag_steps: int
    length_bucket: str
    advantage_sign: int
    tokens: tuple[RejectedToken, ...]


def pack_rejected(lists: Sequence[RejectedIn]) -> bytes:
    """Return the packed list."""
    table = [
        {
            "episode": one.episode_id,
            "task": one.task_id,
            "environment": one.environment,
            "lag_steps": one.lag_steps,
            "length": one.length_bucket,
            "sign": one.advantage_sign,
        }
        for one in lists
    ]
    text = json.dumps(table, separators=(",", ":")).encode()
    parts = [_HEAD.pack(_MAGIC, 1, len(text)), text]
    for index, one in enumerate(lists):
        for token in one.tokens:
            signed = -token.ratio if token.low else token.ratio
            parts.append(_TOKEN.pack(index, token.position, signed))
    return b"".join(parts)


def unpack_rejected(blob: bytes) -> tuple[RejectedIn, ...]:
    """Return the lists of a packed blob; raise PoisonRecordError when it is not one."""
    if len(blob) < _HEAD.size or blob[:4] != _MAGIC:
        raise PoisonRecordError("no list of rejected tokens", hint="it is another payload")
    _, version, length = _HEAD.unpack_from(blob)
    body = blob[_HEAD.size + length :]
    if version != 1 or len(body) % _TOKEN.size:
        raise PoisonRecordError("a list of rejected tokens is cut or newer", hint="read its parts")
    table = json.loads(blob[_HEAD.size : _HEAD.size + length])
    tokens: list[list[RejectedToken]] = [[] for _ in table]
    for index, position, signed in _TOKEN.iter_unpack(body):
        low = struct.pack("<f", signed)[3] >= 0x80
        tokens[index].append(RejectedToken(position=position, ratio=abs(signed), low=low))
    return tuple(
        RejectedIn(
            episode_id=entry["episode"],
            task_id=entry["task"],
            environment=entry["environment"],
            lag_steps=entry["lag_steps"],
            length_bucket=entry["length"],
            advantage_sign=entry["sign"],
            tokens=tuple(found),
        )
        for entry, found in zip(table, tokens, strict=True)
    )

"""The first answer to clickhouse-go, which is the client inside Grafana's ClickHouse source.

It asks who is there and reads that one answer as a block of its newest protocol; everything after
it in the protocol that the answer names as `revision`. The embedded engine writes blocks of
protocol 0 whatever a client asks for, so this answer is made here and names 0. Source:
clickhouse-go 2.51, conn_http.go and lib/proto/block.go.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_QUESTION = "select displayname(), version(), revision(), timezone()"
_ENGINE_PROTOCOL = 0
_BLOCK_INFO = bytes((1, 0, 2)) + struct.pack("<i", -1) + bytes((0,))
"""No overflow, no bucket: what stands before a block since protocol 51903."""
_PLAIN = bytes((0,))
"""A column of no special serialization: the byte before its values since protocol 54454."""
_PROTOCOL_MIN = 54454


def asks_who(text: str, parameters: Mapping[str, str]) -> bool:
    """Whether this is that question, of a client whose protocol is as new as the answer's."""
    protocol = parameters.get("client_protocol_version", "")
    if not protocol.isdecimal() or int(protocol) < _PROTOCOL_MIN:
        return False
    return " ".join(text.lower().split()) == _QUESTION


def who(*, name: str, version: str) -> bytes:
    """Return the answer as a block: name and version of the engine, its protocol, UTC."""
    columns = (
        ("displayName()", "String", _text(name)),
        ("version()", "String", _text(version)),
        ("revision()", "UInt32", struct.pack("<I", _ENGINE_PROTOCOL)),
        ("timezone()", "String", _text("UTC")),
    )
    block = _BLOCK_INFO + _length(len(columns)) + _length(1)
    for title, kind, value in columns:
        block += _text(title) + _text(kind) + _PLAIN + value
    return block


def _text(text: str) -> bytes:
    raw = text.encode()
    return _length(len(raw)) + raw


def _length(number: int) -> bytes:
    """Return a number in LEB128, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

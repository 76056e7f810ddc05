"""A codec that frames by reference: what travels inside other records comes back as it was."""

from __future__ import annotations

from typing import Any

from schemas.topics import Topic


class SimCodec:
    """Stands for `schemas.codec.Codec`, whose bytes are proved in `tests/schemas`."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._kept: dict[bytes, Any] = {}

    def encode(self, topic: Topic[Any], record: Any) -> bytes:
        """Return a frame."""
        frame = f"{topic.name}:{len(self._kept)}".encode()
        self._kept[frame] = record
        return frame

    def decode(self, topic: Topic[Any], raw: bytes) -> Any:  # noqa: ARG002  the frame says it
        """Return the record of a frame."""
        return self._kept[raw]

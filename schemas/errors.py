"""Every error of Sluice, typed by who must act on it.

Each carries the boundary it crossed and a hint with the next step, so that a message at night says
what, where and what to do first.
"""

from __future__ import annotations

from enum import StrEnum


class Boundary(StrEnum):
    """Where a failure crossed into our code."""

    BUS = "bus"
    ENGINE = "engine"
    SANDBOX = "sandbox"
    VERIFIER = "verifier"
    STORE = "store"
    REGISTRY = "registry"
    SETTINGS = "settings"
    PLATFORM = "platform"
    INSIDE = "inside"


class SluiceError(Exception):
    """The root: what happened, at which boundary, and what to do next."""

    def __init__(
        self, message: str, *, boundary: Boundary = Boundary.INSIDE, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.boundary = boundary
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.boundary}]" + (f" -> {self.hint}" if self.hint else "")


class TransientError(SluiceError):
    """The machine acts: try again inside the caller's Deadline."""


class UnknownOutcomeError(SluiceError):
    """The writer acts: append a fence, then read up to it; never send again blindly."""


class RejectedError(SluiceError):
    """The writer acts: the record is certainly not in the log."""


class PoisonRecordError(SluiceError):
    """Whoever wrote the record acts: dead letter with raw bytes and position; the stream
    goes on.
    """


class FieldTypeError(PoisonRecordError):
    """A record holds a value that its schema does not allow."""

    def __init__(self, record: str, name: str, value: object) -> None:
        super().__init__(
            f"{record}.{name} cannot hold {value!r} of type {type(value).__name__}",
            hint=f"see {name} in schemas/avro for its type and range",
        )


class FencedError(SluiceError):
    """The newer owner acts: this process stops and writes nothing more."""


class SettingsError(SluiceError):
    """The operator acts: refuse to start, exit 2."""

    def __init__(
        self, message: str, *, boundary: Boundary = Boundary.SETTINGS, hint: str = ""
    ) -> None:
        super().__init__(message, boundary=boundary, hint=hint)


class BusUnreachableError(TransientError):
    """The operator acts when it lasts: the bus could not be reached, exit 3."""

    def __init__(self, message: str, *, boundary: Boundary = Boundary.BUS, hint: str = "") -> None:
        super().__init__(message, boundary=boundary, hint=hint)


class InvariantError(SluiceError):
    """We act: stop the process, its state is no longer believed."""

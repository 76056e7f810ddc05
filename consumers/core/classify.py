"""What an error of the client library means for a reader.

Invariant: nothing is skipped in silence. What a retry inside the library heals is no failure; all
else ends the stream with an error that says who must act.
"""

from __future__ import annotations

from schemas.errors import (
    Boundary,
    BusUnreachableError,
    FencedError,
    InvariantError,
    SettingsError,
    SluiceError,
    TransientError,
)

AUTHENTICATION = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})
_HEALS = frozenset(
    {
        "_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE",
        "_MAX_POLL_EXCEEDED", "_WAIT_COORD", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS", "REBALANCE_IN_PROGRESS", "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE", "REQUEST_TIMED_OUT",
        "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE",
    }
)  # fmt: skip
_NOT_IN_LOG = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_DAMAGED = frozenset({"_BAD_MSG", "_BAD_COMPRESSION", "CORRUPT_MESSAGE"})
TOPIC_GONE = frozenset(
    {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"}
)
_NO_RIGHT = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"
    }
)  # fmt: skip
_FENCED = frozenset({"FENCED_INSTANCE_ID", "_FENCED"})


def failure_of(name: str, text: str, *, place: str) -> SluiceError | None:
    """Return what a reader must be told of an error, by its librdkafka name; None when it heals.

    place: what was read, for the message.
    """
    what = f"{place}: {name}: {text}"
    if name in _HEALS:
        return None
    if name in AUTHENTICATION:
        return BusUnreachableError(what, hint="check user, password and security protocol")
    if name in _NOT_IN_LOG:
        return InvariantError(
            what, boundary=Boundary.BUS,
            hint="the offset is not in the log: it was trimmed, the topic was created anew, or "
            "another log is meant; a run whose records are gone cannot go on: start a new one",
        )  # fmt: skip
    if name in TOPIC_GONE:
        return InvariantError(
            what, boundary=Boundary.BUS, hint="the topic is gone; `sluice topics describe` shows it"
        )
    if name in _DAMAGED:
        return InvariantError(
            what, boundary=Boundary.BUS, hint="the broker serves damaged bytes; check its disk"
        )
    if name in _NO_RIGHT:
        return SettingsError(what, boundary=Boundary.BUS, hint="this principal lacks the right")
    # A fenced static member is reported as a fatal error whose text alone says why.
    if name in _FENCED or (name == "_FATAL" and "fenced" in text.lower()):
        return FencedError(
            what, boundary=Boundary.BUS, hint="another process runs under the same member id"
        )
    return TransientError(what, boundary=Boundary.BUS, hint="start the reader anew")


def error_of(name: str, text: str, *, place: str) -> SluiceError:
    """Return the error of a request that failed; what heals by itself may be tried again."""
    return failure_of(name, text, place=place) or TransientError(
        f"{place}: {name}: {text}", boundary=Boundary.BUS, hint="try again"
    )

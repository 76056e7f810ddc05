"""What an error of the client library means for a record: Rejected, or Unknown when in doubt.

Invariant: only what certainly is not in the log is Rejected. A timeout never is, nor a purged
queue: a record whose answer was lost waits there for its retry while it stands in the log.
"""

from __future__ import annotations

from schemas.ports import Rejected, Unknown

_REFUSED = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_RECORD"})
_NO_RIGHT = "TOPIC_AUTHORIZATION_FAILED"

AUTHENTICATION = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})
UNREACHABLE = frozenset({"_ALL_BROKERS_DOWN", "_RESOLVE", "_TRANSPORT", "_TIMED_OUT"})


def outcome_of(name: str, text: str, *, was_acked_before: bool) -> Rejected | Unknown:
    """Classify the error of a delivery report by its librdkafka name.

    was_acked_before: whether this producer has written to the topic before. Then a missing right
    was taken away meanwhile and may have refused the retry of a record that is already written.
    """
    reason = f"{name}: {text}"
    if name in _REFUSED or (name == _NO_RIGHT and not was_acked_before):
        return Rejected(reason)
    return Unknown(reason)


def bus_hint(name: str) -> str:
    """Return the next step for an operator whose client reports this error of the whole bus."""
    if name in AUTHENTICATION:
        return "the broker refuses this client: check user, password and security protocol"
    if name == "_RESOLVE":
        return "the host name of the bootstrap address is not known"
    return "is Kafka up at this address? `sluice status` shows the local one, `sluice up` starts it"


def version_of(number: int) -> tuple[int, int, int]:
    """Return (major, minor, patch) of librdkafka's version number 0xMMmmrrxx."""
    return (number >> 24) & 0xFF, (number >> 16) & 0xFF, (number >> 8) & 0xFF

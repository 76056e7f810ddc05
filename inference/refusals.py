"""How the gateway says no: one code per cause, with its HTTP status and the next step."""

from __future__ import annotations

from enum import StrEnum

from schemas.errors import Boundary, SluiceError


class Code(StrEnum):
    """What a refusal means to the client."""

    REFENCE = "refence"
    """Name a higher fence number, open the session again, ask again."""
    FENCED = "fenced"
    """A higher fence is current; whoever named it goes on."""
    BUSY = "busy"
    BAD_REQUEST = "bad_request"
    PROMPT_TOO_LONG = "prompt_too_long"
    UNAUTHORISED = "unauthorised"
    NOT_APPEND_ONLY = "not_append_only"
    """The request does not extend the history; ask for a fork if that is meant."""
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"
    """The turn took too long; what was committed stays, and the same request continues it."""
    ENGINE_FAILED = "engine_failed"
    VERSION_MISMATCH = "version_mismatch"
    """The call is quarantined: the engine's account of its versions differs from the stamps."""
    INVALID_LOGPROB = "invalid_logprob"
    """The call is quarantined: a log-prob is missing, not finite or positive."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _STATUS[self]

    @property
    def is_quarantine(self) -> bool:
        """Whether the whole call was taken back and kept as a dead letter."""
        return self in (Code.VERSION_MISMATCH, Code.INVALID_LOGPROB)


_STATUS = {
    Code.REFENCE: 409,
    Code.FENCED: 409,
    Code.BUSY: 409,
    Code.BAD_REQUEST: 400,
    Code.PROMPT_TOO_LONG: 400,
    Code.UNAUTHORISED: 401,
    Code.NOT_APPEND_ONLY: 422,
    Code.OVERLOADED: 503,
    Code.DEADLINE: 503,
    Code.ENGINE_FAILED: 503,
    Code.VERSION_MISMATCH: 500,
    Code.INVALID_LOGPROB: 500,
}


class RefusedError(SluiceError):
    """The client acts: what was refused, why, and what to send instead."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        hint: str = "",
        fence_number: int = -1,
        attempt: int = -1,
    ) -> None:
        super().__init__(message, boundary=Boundary.ENGINE, hint=hint)
        self.code = code
        self.fence_number = fence_number
        """With refence and fenced: the highest number read; the next one named must be higher."""
        self.attempt = attempt
        """With fenced: the attempt that holds the episode, when that is a higher one."""

    def body(self) -> dict[str, object]:
        """Return the JSON body of the answer."""
        error: dict[str, object] = {
            "code": self.code.value,
            "message": self.message,
            "hint": self.hint,
            "type": self.code.value,
        }
        if self.fence_number >= 0:
            error["fence_number"] = self.fence_number
        if self.attempt >= 0:
            error["attempt"] = self.attempt
        return {"error": error}


def refence(why: str, *, highest: int) -> RefusedError:
    """Return the answer that makes the environment name a higher fence number."""
    return RefusedError(
        Code.REFENCE,
        why,
        hint=f"open the session again with a fence number above {highest}, then ask again",
        fence_number=highest,
    )

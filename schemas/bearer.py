"""The bearer token between environment and gateway: an HMAC of run secret, episode and attempt
(design section 5).

It authorises one attempt and nothing else; the fence decides what counts. The secret never leaves
the run's processes.
"""

from __future__ import annotations

import hashlib
import hmac

from schemas.errors import RejectedError
from schemas.ids import EpisodeId


def _mac(secret: bytes, episode_id: str, attempt: int) -> str:
    return hmac.new(secret, f"{episode_id}\n{attempt}".encode(), hashlib.sha256).hexdigest()


def issue(secret: bytes, episode_id: EpisodeId, attempt: int) -> str:
    """Return the token of one attempt of an episode: `EPISODE~ATTEMPT~MAC`."""
    return f"{episode_id}~{attempt}~{_mac(secret, episode_id, attempt)}"


def read(secret: bytes, token: str) -> tuple[EpisodeId, int]:
    """Return episode and attempt of a token; raise RejectedError when it was not issued under this
    secret.
    """
    episode, _, rest = token.partition("~")
    digits, _, mac = rest.partition("~")
    # The number is made canonical before it is signed, so that no second spelling of one attempt
    # passes.
    attempt = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
    if (
        attempt < 0
        or str(attempt) != digits
        or not hmac.compare_digest(_mac(secret, episode, attempt).encode(), mac.encode())
    ):
        raise RejectedError(
            "the bearer token is not valid here",
            hint="the run's secret differs, or the token was changed on its way",
        )
    return EpisodeId(episode), attempt

"""What the client library complains of, and since when nothing better was heard."""

from __future__ import annotations

import logging
import time

from consumers.core.classify import AUTHENTICATION
from schemas.errors import BusUnreachableError

_log = logging.getLogger(__name__)
SAY_AGAIN_S = 60.0


class Trouble:
    """Complaints of one client; each kind is logged once a minute. Written by any thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._words = ""
        self._said: dict[str, float] = {}
        self._since_s: float | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the brokers answer and refuse this client; waiting does not heal that."""
        return self._words.partition(":")[0] in AUTHENTICATION

    @property
    def lasts_ms(self) -> float:
        """For how long nothing was heard but complaints. Unit: ms."""
        return 0.0 if self._since_s is None else (time.monotonic() - self._since_s) * 1000

    def note(self, name: str, text: str) -> None:
        """Keep a complaint by its librdkafka name; a refusal is not covered by what follows it."""
        if self._since_s is None:
            self._since_s = time.monotonic()
        if self.is_refusal:
            return
        # Where one broker of several is down, the others answer between two complaints of it.
        if time.monotonic() - self._said.get(name, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said[name] = time.monotonic()
            _log.warning("the Kafka client says %s: %s", name, text)
        self._words = f"{name}: {text}"

    def clear(self) -> None:
        """Note that a broker has answered."""
        if self._since_s is not None:
            self._since_s = None
            self._words = ""

    def restart(self) -> None:
        """Count the silence anew, so that it is reported again only when it lasts as long again."""
        self._since_s = time.monotonic()

    def failure(self, otherwise: str) -> BusUnreachableError:
        """Return the error for the operator; `otherwise` is said when nothing was complained of."""
        return BusUnreachableError(
            f"no broker answers at {self._bootstrap}: {self._words or otherwise}",
            hint="the broker refuses this client: check user, password and security protocol"
            if self.is_refusal
            else "is Kafka up? `sluice status` shows the local one, `sluice up` starts it",
        )

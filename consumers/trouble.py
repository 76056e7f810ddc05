"""What the client library complains of, and since when nothing better was heard."""

from __future__ import annotations

import logging
import time

from consumers.core.classify import AUTHENTICATION
from schemas.errors import BusUnreachableError

_log = logging.getLogger(__name__)


class Trouble:
    """Complaints of one client; each new kind is logged once. Written by any thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._words = ""
        self._said: set[str] = set()
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
        if name not in self._said:
            self._said.add(name)
            _log.warning("the Kafka client says %s: %s", name, text)
        self._words = f"{name}: {text}"

    def clear(self) -> None:
        """Note that a broker has answered."""
        if self._since_s is not None:
            self._since_s = None
            self._words = ""
            self._said.clear()

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

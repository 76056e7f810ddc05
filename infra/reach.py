"""How long a command waits for a bus that does not answer.

A wrong address must be told within 15 s of the moment that somebody pressed return, and a busy
machine spends half of that on the start of the interpreter; so the patience is counted from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import psutil

T = TypeVar("T")
_FULL_S = 8.0
_LEAST_S = 3.0
_BY_AGE_S = 11.0
_STARTING_S = 60.0


def patience_at(age_s: float) -> float:
    """Return how long a process of this age may wait for an answer. Units: s.

    One that has long been up has nobody who waits for its first answer, and takes the full time.
    """
    if age_s >= _STARTING_S:
        return _FULL_S
    return min(_FULL_S, max(_LEAST_S, _BY_AGE_S - age_s))


def patience_s() -> float:
    """Return how long this process may wait for an answer now. Unit: s."""
    return patience_at(time.time() - psutil.Process().create_time())


def within(limit_s: float, ask: Callable[[], T]) -> T:
    """Return the answer, or raise what asking raised; TimeoutError when neither came in time.

    For calls that no time limit of their own ends, as the look-up of a host's name. One that is
    given up goes on in a daemon thread, which does not keep the process from ending.
    """
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001  raised again where it was asked
            answer.set_exception(error)

    threading.Thread(target=call, name="reach", daemon=True).start()
    try:
        return answer.result(timeout=limit_s)
    except TimeoutError as error:
        if answer.done():
            raise
        raise TimeoutError(f"no answer within {limit_s:.0f} s") from error

"""Ends vLLM's processes once the one that started them is gone, however it went.

vLLM's engine core goes on importing, or waits minutes for a front that was killed, with a gigabyte
each. This file runs as a small process of its own (standard library only) that holds the read end
of a pipe: its end of file says that the front is gone. What belongs to the front is known by an
environment variable that all its processes inherit, so nothing else can be hit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from multiprocessing import resource_tracker
from pathlib import Path

OWNER = "SLUICE_ENGINE_OWNER"
_ROUNDS = 20
_PAUSE_S = 0.1
_WAIT_S = 5.0


class Reaper:
    """Watches over the processes that this process starts from now on."""

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        environ = {name: text for name, text in os.environ.items() if name != OWNER}
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__)), self.token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
        # Both must not be ended with the rest: the reaper, and the tracker that this process keeps.
        resource_tracker.ensure_running()
        os.environ[OWNER] = self.token

    def close(self) -> None:
        """End what is still there, and the reaper; at most a few seconds."""
        os.environ.pop(OWNER, None)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_WAIT_S)


def owned(token: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that were started with the token; empty where there is no /proc."""
    mark = f"{OWNER}={token}".encode()
    found = []
    for entry in proc.glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables:
            found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def reap(token: str) -> None:
    """Kill the token's processes until two looks in a row find none, or the rounds are over."""
    quiet = 0
    for _ in range(_ROUNDS):
        left = owned(token)
        quiet = 0 if left else quiet + 1
        if quiet == 2:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE_S)


def main() -> None:
    """Wait for the end of the front, then end its processes."""
    # A Ctrl-C reaches the whole group; the front decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    reap(sys.argv[1])


if __name__ == "__main__":
    main()

"""A process that has imported what a role needs, from which processes of that role are forked.

To import torch, DeepSpeed and transformers costs ten seconds of processor time; a process that is
forked from one that has done so begins with the role itself. It differs from one that was started
by its command in nothing else: it has a session, a log and a supervisor of its own, and ends with
its own exit code.

Waits for: requests on its standard input, a socket, one line of JSON each. Unblocked by: them, a
child's end, or the supervisor's end, which closes the socket and ends the mould; its children see
their parent gone then, and stop.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOULDED = frozenset({"learner"})
"""Roles that are worth it."""
IMPORTS = (
    "infra.cli.run", "infra.run.worker", "infra.canary", "learner.trainer",
    "torch.utils.cpp_extension", "transformers.modeling_utils",
)  # fmt: skip
"""Modules that a learner comes to import, beside the libraries of its engine."""
_FORK_S = 5.0
_RECEIVE_BYTES = 65_536


class Forked:
    """A process that a mould has forked, as its supervisor sees it."""

    def __init__(self, mould: Mould, pid: int) -> None:
        self._mould, self.pid = mould, pid

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it runs."""
        return self._mould.code_of(self.pid)

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Mould:
    """The supervisor's side. Nothing here waits for the imports."""

    def __init__(
        self, *, environment: Mapping[str, str], log: Path, command: Sequence[str] = ()
    ) -> None:
        """Start the mould, by default of a learner on a CPU; raises OSError."""
        self._door, there = socket.socketpair()
        with there, log.open("ab") as out:
            self._process = subprocess.Popen(
                command or [sys.executable, "-m", "infra.run.mould"],
                stdin=there.fileno(),
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=dict(environment),
            )
        self._door.setblocking(False)
        self._unread = b""
        self._ready, self._gone = False, False
        self._made: list[int] = []
        self._codes: dict[int, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything and lives."""
        self._read()
        return self._ready and not self._gone

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, as when an import fails; its log says why."""
        self._read()
        return self._gone

    def make(self, arguments: Sequence[str], log: Path) -> Forked | None:
        """Fork a process of `sluice` with these arguments, which writes to `log`.

        None when that could not be done within `_FORK_S`; then the mould is ended, and with it
        whatever it may still have forked.
        """
        try:
            self._door.sendall(_line({"arguments": list(arguments), "log": str(log)}))
        except OSError:
            self.close()
            return None
        ends_at = time.monotonic() + _FORK_S
        while not self._made and not self._gone and time.monotonic() < ends_at:
            select.select([self._door], [], [], max(0.0, ends_at - time.monotonic()))
            self._read()
        if not self._made:
            self.close()
            return None
        return Forked(self, self._made.pop())

    def code_of(self, pid: int) -> int | None:
        """Return how a forked process ended; None while it runs."""
        self._read()
        if pid not in self._codes and self._gone and not Path(f"/proc/{pid}").exists():
            # Nobody can say any more how it ended.
            self._codes[pid] = -signal.SIGKILL
        return self._codes.get(pid)

    def close(self) -> None:
        """End the mould."""
        self._gone = True
        self._process.kill()
        self._process.wait()
        self._door.close()

    def _read(self) -> None:
        while not self._gone:
            try:
                got = self._door.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                got = b""
            if not got:
                self.close()
                return
            *lines, self._unread = (self._unread + got).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, told: Mapping[str, Any]) -> None:
        match told:
            case {"pid": pid, "code": code}:
                self._codes[pid] = code
            case {"pid": pid}:
                self._made.append(pid)
            case _:
                self._ready = True


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _serve(door: socket.socket) -> list[str]:
    """Fork at each request. Returns only in a child, with its arguments."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = selectors.DefaultSelector()
    waiting.register(door, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    requests = door.makefile("rb")
    door.sendall(_line({"ready": True}))
    while True:
        ready = {key.fd for key, _ in waiting.select()}
        if woken in ready:
            os.read(woken, _RECEIVE_BYTES)
            for pid, code in _ended():
                door.sendall(_line({"pid": pid, "code": code}))
        if door.fileno() not in ready:
            continue
        line = requests.readline()
        if not line:
            os._exit(0)
        request = json.loads(line)
        pid = os.fork()
        if pid:
            door.sendall(_line({"pid": pid}))
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        waiting.close()
        requests.close()
        door.close()
        os.close(woken)
        os.close(wake)
        _stand_alone(Path(request["log"]))
        return list(request["arguments"])


def _ended() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _stand_alone(log: Path) -> None:
    """Give this process a session, a log and chance of its own."""
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    # `random` does so by itself; torch is seeded by the engine.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def fork_at_requests(go_on: Callable[[list[str]], None]) -> None:
    """Be a mould of what is imported by now; each child goes on with its arguments."""
    door = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # What a child's collector does not touch stays shared with it.
    gc.collect()
    gc.freeze()
    go_on(_serve(door))


def main() -> None:
    """Import what a learner on a CPU needs, then fork; a child goes on as `sluice` does."""
    from learner.libraries import import_libraries
    from learner.settings import Device

    import_libraries(Device.CPU)
    for name in IMPORTS:
        importlib.import_module(name)
    from infra.cli.app import main as sluice

    fork_at_requests(sluice)


if __name__ == "__main__":
    main()

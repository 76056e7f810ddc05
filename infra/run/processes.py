"""The processes of a run: started in their own groups, watched, started again, stopped within a
bound.

Invariants: a role is started again at most `restarts_max` times; the pause grows with each death in
a row, and begins anew for one that had stayed up or got on; who may come from a mould
(`infra/run/mould.py`) does so from its first death on, but never twice in a row, so that what the
mould spoils is started by its command; one that was preempted (SIGTERM from outside)
ends well and is started again, whatever its role; one whose role says that the run is over for it,
or that was retired here, is not; roles that end last are started again even then, since what the
others left is theirs to take, and nothing ends them before they can; exit code 2 (wrong settings)
ends the run at once, since a restart cannot cure it; only processes started here are ever
signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.run.folder import unwritable
from infra.run.mould import Forked, Mould
from schemas.errors import Boundary, SettingsError, TransientError

_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 15.0
_STEADY_S = 20.0
"""Who stayed up for so long has not failed to start: its next pause is the first again."""
_ENDS_BY_ITSELF = frozenset({"learner", "scheduler", "task-source"})
"""Roles for which a run can be over while others still work."""
EXIT_OVER = 4
"""How a supervised worker ends whose role ended unasked; on SIGTERM it ends with 0."""
_EXIT_WRONG_USE = 2
_ENDING = (signal.SIGTERM,)
_MOULD_WAIT_S = 300.0
"""A mould's imports take about as long as those of the process that is waited for."""
_TAIL_LINES = 15
_GONE_S = 30.0
_START_S = 30.0
"""What a part that is started at the end may need until it works, on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of the run: a role and its place among its equals."""

    role: str
    index: int

    @property
    def name(self) -> str:
        """Return `role-index`, which is also the worker id within the run."""
        return f"{self.role}-{self.index}"


@dataclass(slots=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes] | Forked | None = None
    restarts: int = 0
    deaths_in_a_row: int = 0
    started_at: float = 0.0
    start_again_at: float = 0.0
    got_on_in: int = -1
    """The life in which it was last said to have got on."""
    retired: bool = False
    finished: bool = False
    codes: list[int] = field(default_factory=list)


def _lives(one: _Running) -> bool:
    return one.process is not None and one.process.poll() is None


def _await_end(those: Sequence[_Running], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and any(_lives(one) for one in those):
        time.sleep(0.05)


@contextmanager
def _patient(is_patient: bool) -> Iterator[None]:
    """Let what is started meanwhile wait with SIGTERM until it takes it (`take_signals`): asked to
    end while it still loads, it would die and leave its work.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING if is_patient else ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_signals() -> None:
    """Let SIGTERM come, once this process can answer it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


class Processes:
    """Starts and watches the parts of a run."""

    def __init__(
        self, parts: Sequence[Part], *, run_folder: Path, logs: Path, restarts_max: int,
        environment: Mapping[str, str], moulded: frozenset[str] = frozenset(),
        last: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """moulded: roles that may come from a mould when they start again. last: roles that end
        after all others.
        """
        self._last = last
        self._running = {part.name: _Running(part) for part in parts}
        self._folder = run_folder
        self._logs = logs
        self._restarts_max = restarts_max
        self._environment = dict(environment)
        self._moulded = moulded
        self._moulds: dict[str, Mould] = {}

    def start(self) -> None:
        """Start every part."""
        for one in self._running.values():
            self._launch(one)

    @property
    def restarts(self) -> int:
        """How often any part was started again."""
        return sum(one.restarts for one in self._running.values())

    def pid(self, name: str) -> int | None:
        """Return the process id of a part that runs."""
        one = self._running.get(name)
        if one is None or one.process is None or one.process.poll() is not None:
            return None
        return one.process.pid

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a part if it runs."""
        one = self._running[name]
        self._signal(one, number)

    def retire(self, name: str) -> None:
        """Ask a part to end (SIGTERM) and take its end for good, whatever its code."""
        one = self._running[name]
        one.retired = True
        self._signal(one, signal.SIGTERM)

    def got_on(self, role: str, life: int) -> None:
        """Say that a role did lasting work in a life, numbered by itself: its next death is no
        failed start.
        """
        for one in self._running.values():
            if one.part.role == role and one.got_on_in != life:
                one.got_on_in, one.deaths_in_a_row = life, 0

    def names(self) -> tuple[str, ...]:
        """Return the names of all parts."""
        return tuple(self._running)

    def watch(self, *, again: bool = True) -> list[str]:
        """Look at every part once, start again what died, and return a line for each thing that
        happened.

        Raises SettingsError when a part says that its settings are wrong, TransientError when one
        died too often.
        """
        lines: list[str] = []
        now = time.monotonic()
        for one in self._running.values():
            if one.finished:
                continue
            if one.process is None:
                if again and now >= one.start_again_at and self._may_start(one, now):
                    self._launch(one)
                continue
            code = one.process.poll()
            if code is None:
                continue
            one.process = None
            one.codes.append(code)
            if code == _EXIT_WRONG_USE:
                raise SettingsError(
                    f"{one.part.name} refused to start:\n{self.last_words(one.part.name)}",
                    hint="correct what its message names, then run again",
                )
            over = code == EXIT_OVER and one.part.role in _ENDS_BY_ITSELF
            if not again or over or one.retired:
                one.finished = True
            else:
                lines.append(self._start_later(one, code, now))
        return lines

    def _start_later(self, one: _Running, code: int, now: float) -> str:
        """Plan the next start of a part that has ended; say so in a line."""
        name = one.part.name
        if one.restarts >= self._restarts_max:
            raise TransientError(
                f"{name} died {one.restarts + 1} times, last with code {code}:\n"
                f"{self.last_words(name)}",
                boundary=Boundary.PLATFORM,
                hint=f"read {self._logs / name}.log; resume with --resume once mended",
            )
        if now - one.started_at >= _STEADY_S:
            one.deaths_in_a_row = 0
        pause = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2.0**one.deaths_in_a_row)
        one.deaths_in_a_row += 1
        one.restarts += 1
        one.start_again_at = now + pause
        self._prepare_mould(one)
        return f"{name} ended with code {code}; again in {pause:.1f} s"

    def stop(self, *, budget_s: float) -> list[str]:
        """Ask every part to end (SIGTERM), wait, kill what is left; return the names of what was
        killed.

        The roles that end last are asked once all others are gone, each lot within `budget_s`; one
        of them that is not there is started for that, and gets `_START_S` more.
        """
        everyone = list(self._running.values())
        lots = {is_last: [one for one in everyone if (one.part.role in self._last) is is_last]
                for is_last in (False, True)}  # fmt: skip
        killed = self._stop([one for one in lots[False] if one.process is not None], budget_s)
        missing = [one for one in lots[True] if self._is_missing(one)]
        for one in missing:
            self._launch(one)
        alive = [one for one in lots[True] if one.process is not None]
        killed += self._stop(alive, budget_s + (_START_S if missing else 0.0))
        for mould in self._moulds.values():
            mould.close()
        self._moulds.clear()
        return killed

    def _is_missing(self, one: _Running) -> bool:
        """Whether a part has died, and a start may still help."""
        if one.process is not None and (code := one.process.poll()) is not None:
            one.process = None
            one.codes.append(code)
        is_hopeless = one.restarts >= self._restarts_max or _EXIT_WRONG_USE in one.codes
        return one.process is None and bool(one.codes) and not one.retired and not is_hopeless

    def _stop(self, alive: Sequence[_Running], budget_s: float) -> list[str]:
        for one in alive:
            self._signal(one, signal.SIGTERM)
        _await_end(alive, budget_s)
        killed = [one.part.name for one in alive if _lives(one)]
        for one in alive:
            # Also what a dead front left behind (an engine's children) goes with its group.
            self._signal_group(one, signal.SIGKILL)
        # A killed process is gone only when the kernel has freed its memory, which takes a while
        # for a model's; one that is not gone by then is no reason to leave the run without its end.
        _await_end(alive, _GONE_S)
        return killed

    def last_words(self, name: str) -> str:
        """Return the last lines of a part's log."""
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def _prepare_mould(self, one: _Running) -> None:
        """Begin with the mould for the next start, or give up one that did not serve."""
        role = one.part.role
        if one.deaths_in_a_row > 1 and role in self._moulds:
            self._moulds.pop(role).close()
        elif one.deaths_in_a_row == 1 and role in self._moulded and role not in self._moulds:
            path = self._logs / f"mould-{role}.log"
            self._moulds[role] = Mould(environment=self._environment, log=path)

    def _may_start(self, one: _Running, now: float) -> bool:
        mould = self._moulds.get(one.part.role)
        is_awaited = mould is not None and not mould.is_ready and not mould.is_gone
        return not is_awaited or now >= one.start_again_at + _MOULD_WAIT_S

    def _launch(self, one: _Running) -> None:
        part = one.part
        one.started_at = time.monotonic()
        arguments = [
            "worker", part.role, "--run", str(self._folder), "--index", str(part.index),
            "--supervised",
        ]  # fmt: skip
        path = self._logs / f"{part.name}.log"
        try:
            log = path.open("ab")
        except OSError as error:
            raise unwritable(path, error) from error
        with log:
            mould = self._moulds.get(part.role)
            if mould is not None and mould.is_ready:
                one.process = mould.make(arguments, path)
            if one.process is not None:
                return
            with _patient(part.role in self._last):
                one.process = subprocess.Popen(
                    [sys.executable, "-m", "infra.cli", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=self._environment,
                )

    @staticmethod
    def _signal(one: _Running, number: int) -> None:
        if one.process is not None and one.process.poll() is None:
            one.process.send_signal(number)

    @staticmethod
    def _signal_group(one: _Running, number: int) -> None:
        assert one.process is not None
        try:
            os.killpg(one.process.pid, number)
        except ProcessLookupError:
            return

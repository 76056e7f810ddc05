"""Carries the deeds of a chaos plan out on the processes of a run.

Waits for: the pause before each deed, an ordered edge to be reached, a stop to be over; each inside
a bound. Unblocked by: the clock, or the end of the run, at which stopped processes are continued
and orders are withdrawn. Only processes that the run has started, and the local broker, are ever
signalled.

Nothing is hit before the first step, nothing while the run stands still after a hit for up to
`_MOVES_WAIT_S`, and the learner only after a checkpoint of its present epoch: a slow machine is to
be disturbed and not kept from starting, and a learner that is killed again and again still gets on.
While all that the plan may hit is taken no deed is drawn, for up to `_TAKEN_WAIT_S`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.chaos.broker import Broker
from infra.chaos.connections import cut_connections
from infra.chaos.crash import (
    VARIABLE,
    CrashAct,
    CrashOrder,
    fired,
    give_order,
    withdraw_order,
)
from infra.chaos.family import engine_processes
from infra.chaos.plan import Act, Deed, Tally, role_of
from infra.run.history import History
from infra.run.processes import Processes

_LOG = logging.getLogger("sluice.chaos")
_LOOK_S = 0.1
_EDGE_WAIT_S = 45.0
_LEARNER = "learner"
ENDS_A_PROCESS = frozenset({Act.KILL, Act.EDGE, Act.PREEMPT})
_LEARNER_WAIT_S = 240.0
"""Its edges come once an update, or once a checkpoint."""
_TAKEN_WAIT_S = 240.0
_ALIVE_WAIT_S = 30.0
_MOVES_WAIT_S = 20.0
_WORKS_WAIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A deed as it happened."""

    deed: Deed
    at_ms: int
    """Wall clock. Unit: ms."""
    pid: int


@dataclass(slots=True, kw_only=True)
class _Ordered:
    deed: Deed
    pid: int
    epoch: int
    """The learner's when it was ordered."""
    until_s: float


@dataclass(slots=True)
class Driver:
    """Does deeds until `wanted` have hit, or the run is over."""

    plan: Iterator[Deed]
    tally: Tally
    """What the plan goes by; it must be the plan's own."""
    wanted: int
    orders: Path
    broker: Broker | None
    targets: frozenset[str] = frozenset()
    """All that the plan may hit, where that is little; empty where something is always free."""
    done: list[Done] = field(default_factory=list)
    missed: int = 0
    """Edges that were not reached in time, and deeds without a living target."""
    _seen_tokens: int = 0
    _ended_epoch: int = -1
    """The learner's epoch that was ended last: what its topics say of it is over, whatever the
    accounts still show.
    """
    _ordered: dict[str, _Ordered] = field(default_factory=dict)
    _stopped: dict[str, int] = field(default_factory=dict)
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the run's processes must be given."""
        return {VARIABLE: str(self.orders)}

    async def run(self, processes: Processes, history: History) -> None:
        """Do deeds; return when enough have hit."""
        try:
            while len(self.done) < self.wanted:
                await self._until_one_is_free(processes, history)
                self.tally.busy = self._busy(processes, history)
                deed = next(self.plan)
                await self._pause(deed.after_s, processes)
                await self._until_it_moves(processes, history)
                if not await self._do(deed, processes, history):
                    self._miss(deed)
                self._collect(processes)
            while self._later:
                await asyncio.wait(self._later)
        finally:
            self._let_go(processes)

    def _busy(self, processes: Processes, history: History) -> frozenset[str]:
        """Return the parts that the next deed must not be for."""
        gets_on = history.epoch > self._ended_epoch and _has_progress(history)
        first = {name for name in processes.names() if role_of(name) == _LEARNER and not gets_on}
        return frozenset(first | self._ordered.keys() | self._stopped.keys())

    async def _until_one_is_free(self, processes: Processes, history: History) -> None:
        ends_s = time.monotonic() + _TAKEN_WAIT_S
        while self.targets and self.targets <= self._busy(processes, history):
            if time.monotonic() > ends_s:
                return
            await asyncio.sleep(_LOOK_S)
            self._collect(processes)

    async def _pause(self, seconds: float, processes: Processes) -> None:
        ends_s = time.monotonic() + seconds
        while (left_s := ends_s - time.monotonic()) > 0:
            await asyncio.sleep(min(_LOOK_S, left_s))
            self._collect(processes)

    async def _until_it_moves(self, processes: Processes, history: History) -> None:
        seen = self._seen_tokens
        ends_s = time.monotonic() + (_MOVES_WAIT_S if self.done else _WORKS_WAIT_S)
        while not (history.steps and history.action_tokens > seen) and time.monotonic() < ends_s:
            await asyncio.sleep(_LOOK_S)
            self._collect(processes)
        self._seen_tokens = history.action_tokens

    async def _do(self, deed: Deed, processes: Processes, history: History) -> bool:
        """Do a deed, or order it; return whether its target could be hit."""
        if deed.act in (Act.BROKER_KILL, Act.BROKER_STOP):
            await self._at_broker(deed)
            return True
        if deed.target in self._busy(processes, history):
            return False
        pid = await self._alive(deed.target, processes)
        if pid is None:
            return False
        if deed.point is None:
            self._ends(deed, history.epoch)
            return await self._hit(deed, pid, processes)
        act = CrashAct.STOP if deed.act is Act.STOP else CrashAct.KILL
        order = CrashOrder(point=deed.point, nth=deed.nth, act=act)
        give_order(self.orders, deed.target, order)
        wait_s = _LEARNER_WAIT_S if role_of(deed.target) == _LEARNER else _EDGE_WAIT_S
        until_s = time.monotonic() + wait_s
        self._ordered[deed.target] = _Ordered(
            deed=deed, pid=pid, epoch=history.epoch, until_s=until_s
        )
        return True

    def _ends(self, deed: Deed, epoch: int) -> None:
        if role_of(deed.target) == _LEARNER and deed.act in ENDS_A_PROCESS:
            self._ended_epoch = epoch

    def _miss(self, deed: Deed) -> None:
        self.missed += 1
        self.tally.give_back(deed)

    async def _hit(self, deed: Deed, pid: int, processes: Processes) -> bool:
        """Do what a deed says to a living process; return whether it could be done."""
        match deed.act:
            case Act.STOP:
                processes.signal(deed.target, signal.SIGSTOP)
                self._stands_still(deed, pid, processes)
                return True
            case Act.CUT:
                if not await asyncio.to_thread(cut_connections, pid):
                    return False
            case Act.ENGINE:
                engine = engine_processes(pid)
                if not engine:
                    return False
                os.kill(engine[0], signal.SIGKILL)
            case Act.PREEMPT:
                processes.signal(deed.target, signal.SIGTERM)
            case _:
                processes.signal(deed.target, signal.SIGKILL)
        self._note(deed, pid)
        if deed.act is Act.KILL:
            await self._until_gone(deed.target, pid, processes)
        return True

    async def _until_gone(self, name: str, pid: int, processes: Processes) -> None:
        """Wait until the kernel has ended what was killed: no process is counted twice."""
        ends_s = time.monotonic() + _ALIVE_WAIT_S
        while processes.pid(name) == pid and time.monotonic() < ends_s:
            await asyncio.sleep(_LOOK_S)

    async def _at_broker(self, deed: Deed) -> None:
        assert self.broker is not None, "the plan spares a broker that is not ours"
        self._note(deed, self.broker.pid)
        if deed.act is Act.BROKER_KILL:
            await asyncio.to_thread(self.broker.kill_and_start)
        else:
            await self.broker.stand_still(deed.lasts_s)

    async def _alive(self, name: str, processes: Processes) -> int | None:
        """Return the pid of a part, waiting for its restart for a while."""
        ends_s = time.monotonic() + _ALIVE_WAIT_S
        while time.monotonic() < ends_s:
            pid = processes.pid(name)
            if pid is not None:
                return pid
            await asyncio.sleep(_LOOK_S)
        return None

    def _stands_still(self, deed: Deed, pid: int, processes: Processes) -> None:
        self._note(deed, pid)
        self._stopped[deed.target] = pid
        self._in_background(self._continue(deed, processes))

    async def _continue(self, deed: Deed, processes: Processes) -> None:
        await asyncio.sleep(deed.lasts_s)
        self._stopped.pop(deed.target, None)
        processes.signal(deed.target, signal.SIGCONT)

    def _collect(self, processes: Processes) -> None:
        """Note the orders that were carried out; withdraw those whose edge did not come."""
        for name, ordered in tuple(self._ordered.items()):
            carried_out = fired(self.orders, name)
            if carried_out is not None:
                if ordered.deed.act is Act.STOP:
                    self._stands_still(ordered.deed, ordered.pid, processes)
                else:
                    self._ends(ordered.deed, ordered.epoch)
                    self._note(ordered.deed, ordered.pid, at_ms=carried_out.at_ms)
            elif time.monotonic() > ordered.until_s or processes.pid(name) != ordered.pid:
                withdraw_order(self.orders, name)
                self._miss(ordered.deed)
            else:
                continue
            del self._ordered[name]

    def _note(self, deed: Deed, pid: int, *, at_ms: int | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.done.append(Done(deed=deed, at_ms=now_ms if at_ms is None else at_ms, pid=pid))
        at = f" at {deed.point} #{deed.nth}" if deed.point else ""
        lasts = f" for {deed.lasts_s:.1f} s" if deed.lasts_s else ""
        _LOG.info("%d: %s %s%s%s", len(self.done), deed.act, deed.target, at, lasts)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _let_go(self, processes: Processes) -> None:
        for task in self._later:
            task.cancel()
        for name in tuple(self._stopped):
            processes.signal(name, signal.SIGCONT)
        self._stopped.clear()
        for name in tuple(self._ordered):
            withdraw_order(self.orders, name)
        self._ordered.clear()
        if self.broker is not None:
            self.broker.go_on()


def _has_progress(history: History) -> bool:
    """Whether the learner's present epoch has kept something that its next one starts from."""
    return history.checkpointed_epoch == history.epoch

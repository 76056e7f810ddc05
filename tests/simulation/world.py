"""The machines of a simulated run: starts roles as processes, strikes them with faults, starts them
again, and carries what passes between processes beside the bus.

A role that ends with an error is started again, as `infra/run` does, unless the error says that a
state is not to be believed: that is a violation.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import InvariantError, SluiceError
from schemas.ids import RunId, WorkerId
from schemas.ports import Context, Delivered, Message
from schemas.topics import ALL
from tests.simulation.bus import SimBus, SimClock
from tests.simulation.codec import SimCodec
from tests.simulation.faults import WRITER, AtRecord, Blow, ProcessFault
from tests.simulation.loop import Process, SimLoop
from tests.simulation.outside import Outside
from tests.simulation.producing import SimProducer
from tests.simulation.reading import SimConsumers, SimGroupReader

RUN = RunId("run-1")
_SESSION_S = 6.0
_RESTART_S = 1.0
_STARTS_MAX = 60

Main = Callable[[Context], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Role:
    """One name under which processes are started, one after the other."""

    name: str
    main: Main
    is_member: bool = False
    """Joins a consumer group under its name."""
    starts: int = 0
    process: Process | None = None
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event | None = None
    is_over: bool = False
    """Its last process ended by itself and in order."""
    engine: Any = None
    """The engine of its process, when it has one."""


@dataclass(slots=True, eq=False)
class World:
    """See the module."""

    loop: SimLoop
    bus: SimBus
    chance: random.Random
    codec: SimCodec = field(default_factory=SimCodec)
    outside: Outside = field(default_factory=Outside)
    roles: dict[str, Role] = field(default_factory=dict)
    servers: dict[str, Any] = field(default_factory=dict)
    """What listens, by address."""
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    is_told: bool = False
    """Whether the story is kept: only when somebody reads it."""
    watch: Any = None
    _zombies: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Hear what the bus does."""
        self.bus.told = self.tell

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        if self.is_told:
            self.story.append(f"{self.loop.time():9.3f} s  {what}")

    def broken(self, name: str, what: str) -> None:
        """Keep a violation under one of Jepsen's names."""
        line = f"{name}: {what}"
        if line not in self.violations:
            self.violations.append(line)
            self.tell(f"VIOLATION {line}")

    def add(self, name: str, main: Main, *, is_member: bool = False, after_s: float = 0.0) -> None:
        """Start a role, now or later."""
        role = self.roles[name] = Role(name, main, is_member)
        self.loop.call_later(after_s, self.start, role)

    def start(self, role: Role) -> None:
        """Start a process of a role, if none runs."""
        if role.process is not None or role.is_over:
            return
        role.starts += 1
        if role.starts > _STARTS_MAX:
            self.broken("no-progress", f"{role.name} was started {_STARTS_MAX} times")
            return
        process = role.process = Process(role.name, role.starts)
        process.context.run(self._begin, role, process)
        self.tell(f"start {process.incarnation}")

    def _begin(self, role: Role, process: Process) -> None:
        clock = SimClock(
            self.loop,
            skew_ms=self.chance.randint(-20, 20),
            up_ms=self.chance.randrange(1_000_000),
        )
        stop = role.stop = asyncio.Event()
        context = Context(
            run_id=RUN,
            worker_id=WorkerId(role.name),
            incarnation=process.incarnation,
            producer=SimProducer(self.bus, process),
            consumers=SimConsumers(self.bus, process),
            clock=clock,
            starts={t.name: dict.fromkeys(range(self.bus.partitions), 0) for t in ALL},
            secret=b"secret",
            stop=stop,
        )
        role.task = self.loop.create_task(_coroutine(role.main, context), name=role.name)
        role.task.add_done_callback(lambda task: self._ended(role, process, task, stop))

    def _ended(
        self, role: Role, process: Process, task: asyncio.Task[None], stop: asyncio.Event
    ) -> None:
        stopped = stop.is_set()
        error = None if task.cancelled() else task.exception()
        self.loop.kill(process)
        is_zombie = role.process is not process
        if not is_zombie:
            role.process = role.task = None
        how = f"{type(error).__name__}: {error}" if error else "in order"
        self.tell(f"end {process.incarnation}: {how}")
        if error is not None and (
            isinstance(error, InvariantError) or not isinstance(error, SluiceError)
        ):
            self.broken("crash", f"{process.incarnation}: {type(error).__name__}: {error}")
        if is_zombie:
            return
        if error is None and not stopped:
            role.is_over = True
            return
        self._start_after(role, _RESTART_S)

    def _start_after(self, role: Role, delay_s: float) -> None:
        self.loop.call_later(delay_s, self.start, role).process = None

    def strike(self, fault: ProcessFault) -> None:
        """Let a fault happen."""
        role = self.roles.get(fault.who)
        if role is None or role.process is None or self.bus.is_calm:
            return
        self.tell(f"{fault.blow} {role.process.incarnation}")
        process, for_s = role.process, fault.for_ms / 1000
        match fault.blow:
            case Blow.KILL:
                self.loop.kill(process)
                self._replace(role, process, for_s)
            case Blow.PAUSE | Blow.ZOMBIE | Blow.DEAF:
                self.loop.pause(process)
                self.loop.call_later(for_s, self.resume, process).process = None
                if fault.blow is not Blow.PAUSE:
                    # Its supervisor believes it dead; it comes back when another has its name.
                    process.is_deaf = fault.blow is Blow.DEAF
                    self._zombies.append(process)
                    self._replace(role, process, 0.2)
                self._expel_later(role, process)
            case _:
                self._touch(role, process, fault.blow)

    def at_records(self, faults: Iterable[AtRecord]) -> Callable[[Message], None]:
        """Return what looks at each record that lands and strikes those whose moment it is."""
        waiting, counts = tuple(faults), Counter[tuple[str, str]]()

        def look(message: Message) -> None:
            record = message.record if isinstance(message, Delivered) else None
            kinds = dict.fromkeys(("", str(getattr(record, "kind", ""))))
            for fault in waiting:
                is_place = fault.topic == message.topic and fault.kind in kinds
                if is_place and fault.nth == counts[fault.topic, fault.kind]:
                    who = record.writer_id if fault.who == WRITER and record else fault.who
                    blow = ProcessFault(0, who, fault.blow, fault.for_ms)
                    self.loop.call_later(fault.after_ms / 1000, self.strike, blow).process = None
            counts.update((message.topic, kind) for kind in kinds)

        return look

    def _replace(self, role: Role, process: Process, delay_s: float) -> None:
        role.process = role.task = None
        self._start_after(role, delay_s)
        self._expel_later(role, process)

    def _touch(self, role: Role, process: Process, blow: Blow) -> None:
        if blow is Blow.STOP and role.stop is not None:
            role.stop.set()
        elif blow is Blow.EXPEL:
            self._expel(role, process)
        elif blow is Blow.ENGINE and role.engine is not None:
            role.engine.die()
        elif blow is Blow.CUT:
            for server in self.servers.values():
                if server.process is process:
                    server.cut()

    def resume(self, process: Process) -> None:
        """Let a paused process go on."""
        if process.is_paused:
            self.tell(f"resume {process.incarnation}")
            self.loop.resume(process)

    def _expel_later(self, role: Role, process: Process) -> None:
        def look() -> None:
            if not process.is_alive or process.is_paused:
                self._expel(role, process)

        if role.is_member:
            self.loop.call_later(_SESSION_S, look).process = None

    def _expel(self, role: Role, process: Process) -> None:
        """End the session of one process; a successor that has its name by now has its own."""
        for group in self.bus.groups.values():
            reader = group.readers.get(role.name)
            is_its = isinstance(reader, SimGroupReader) and reader.process is process
            if is_its and role.name in group.members:
                group.expel(role.name)
                self.bus.wake(group.topic)

    def calm(self) -> None:
        """End all faults: what is down starts, what is paused goes on."""
        self.tell("calm: no more faults")
        self.bus.is_calm = True
        for role in self.roles.values():
            if role.process is not None:
                self.resume(role.process)
        for process in self._zombies:
            self.resume(process)


async def _coroutine(main: Main, context: Context) -> None:
    await main(context)

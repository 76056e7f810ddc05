"""The doors as Protocols: what a shell may ask of the bus, and the values that cross it.

Real Kafka (`producers/kafka.py`, `consumers/kafka.py`) and the memory bus
(`tests/support/memory_bus.py`) pass one contract suite. Nothing above the doors sees a Kafka
client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from schemas.deadline import Deadline
from schemas.ids import RunId, WorkerId
from schemas.topics import Record, Topic

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the log. `topic` is the logical name; another topic id under it is another log."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(Generic[R_co]):
    """A decoded record with its place and the broker's time (LogAppendTime)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    record: R_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoned:
    """A record that could not be decoded; it counts for nobody, and its reader owes a dead
    letter.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    raw: bytes
    schema_id: int | None
    error_class: str
    error: str


Message: TypeAlias = Delivered[Any] | Poisoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Records of one partition as their bytes lie in the log, side by side in offset order: for
    whoever decodes many at once. Whether they decode, nobody has looked.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    raws: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.raws)

    def __getitem__(self, some: slice) -> Frames:
        return Frames(
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets[some],
            timestamps_ms=self.timestamps_ms[some],
            keys=self.keys[some],
            raws=self.raws[some],
        )

    @property
    def offset(self) -> int:
        """Offset of the last of them."""
        return self.offsets[-1]


class Acked(NamedTuple):
    """The record is in the log, at this offset. A tuple: one is made per record, and a dataclass
    costs thrice.
    """

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The record is certainly not in the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may or may not be, or come to be, in the log; only a fence and a read up to it
    settle it.
    """

    reason: str


Acknowledgement: TypeAlias = Acked | Rejected | Unknown


class Pending(Protocol):
    """The acknowledgement to come; asyncio's Future is one."""

    def done(self) -> bool: ...

    def result(self) -> Acknowledgement: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...

    def __await__(self) -> Generator[Any, None, Acknowledgement]: ...


class Producer(Protocol):
    """The write door of one process."""

    @property
    def number(self) -> int:
        """How often this process has opened a producer, from 1; it rises with `renew`."""
        ...

    @property
    def queued(self) -> int:
        """Records handed over and not yet acknowledged."""
        ...

    def offer(self, topic: Topic[R], record: R, *, partition: int | None = None) -> Pending:
        """Hand a record over without waiting and return its acknowledgement.

        Key and partition come from the topic; `partition` overrides (fences of schedulers). A full
        queue resolves to Rejected("queue full ...") at once, and so does a record over the size
        limit. Never raises for the bus.
        """
        ...

    async def send(
        self, topic: Topic[R], record: R, *, partition: int | None = None, deadline: Deadline
    ) -> Acked:
        """Send and wait. A full queue is waited out inside the deadline.

        Raises RejectedError, UnknownOutcomeError (also when the deadline passes first),
        FieldTypeError.
        """
        ...

    async def renew(self) -> None:
        """Discard the producer (what was in flight resolves to Unknown) and open a new one;
        `number` rises.
        """
        ...

    async def close(self, *, deadline: Deadline) -> int:
        """Flush inside the deadline; return how many records stay Unknown."""
        ...


Starts: TypeAlias = Mapping[str, Mapping[int, int]]
"""Logical topic name to partition to the next offset to read."""


class FrameReader(Protocol):
    """Reads given partitions from given offsets; some topics' records come undecoded."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message | Frames]:
        """Return what is there, waiting at most `timeout_s` for the first record: at most
        `records_max`, but that the last Frames are not split.

        In offset order within a partition. Raises BusUnreachableError when no broker answers for
        longer than the settings allow, InvariantError when the offset asked for is below the log
        start or the topic was re-created.
        """
        ...

    def positions(self) -> Mapping[tuple[str, int], int]:
        """Return the next offset to deliver per (topic, partition)."""
        ...

    async def ends(
        self, topic: Topic[Any], partitions: Collection[int] | None = None
    ) -> Mapping[int, int]:
        """Return the end offset (high watermark) now of each partition of the topic, assigned or
        not.
        """
        ...

    def add(self, topic: Topic[Any], starts: Mapping[int, int]) -> None:
        """Also read these partitions from these offsets."""
        ...

    def remove(self, topic: Topic[Any], partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        ...

    async def close(self) -> None:
        """Release the client."""
        ...


class LogReader(FrameReader, Protocol):
    """Reads given partitions from given offsets; no consumer group."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Message]:
        """Return what is there, as a FrameReader does, every record decoded."""
        ...

    async def read_to(
        self, ends: Mapping[tuple[str, int], int], *, deadline: Deadline
    ) -> Sequence[Message]:
        """Return everything from the current positions up to the given ends (exclusive), for the
        given partitions.

        Other assigned partitions are not lost: what arrives for them is kept for the next poll.
        Raises TransientError when the deadline passes.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A committed input offset with its metadata (UTF-8 text, at most 4,000 bytes)."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """These partitions are owned from here on; `committed` has a Floor where the group has
    committed one.
    """

    generation: int
    partitions: tuple[int, ...]
    committed: Mapping[int, Floor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """These partitions are no longer owned. `lost` means that nothing could be committed
    for them.
    """

    partitions: tuple[int, ...]
    lost: bool


GroupEvent: TypeAlias = Message | Assigned | Revoked


class GroupReader(Protocol):
    """Member of a consumer group on one topic; assignments arrive in the same stream as records."""

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[GroupEvent]:
        """Return records and assignment changes in the order in which they take effect."""
        ...

    async def commit(self, floors: Mapping[int, Floor]) -> None:
        """Commit floors of partitions owned now; others are left out. Raises TransientError when it
        fails.
        """
        ...

    @property
    def owned(self) -> frozenset[int]:
        """Partitions owned now."""
        ...

    def pause(self) -> None:
        """Stop fetching records (membership stays alive) until `resume`."""
        ...

    def resume(self) -> None:
        """Fetch again."""
        ...

    async def close(self) -> None:
        """Commit the floors given by the floors callback and leave the group."""
        ...


class Consumers(Protocol):
    """The read door of one process: makes readers."""

    def reader(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, jumps: bool = False
    ) -> LogReader:
        """Return a reader that reads the given partitions from the given offsets.

        One that `jumps`, adding and removing partitions all the time, sees each change take effect
        sooner and costs the broker more while it is idle.
        """
        ...

    def frames(
        self, starts: Mapping[Topic[Any], Mapping[int, int]], *, framed: Collection[Topic[Any]]
    ) -> FrameReader:
        """Return a reader that may give the records of the topics `framed` as Frames; its caller
        then decodes them, and owes the dead letters.
        """
        ...

    def group(
        self,
        topic: Topic[Any],
        *,
        group: str,
        member: str,
        starts: Mapping[int, int],
        floors: Callable[[Collection[int]], Mapping[int, Floor]],
    ) -> GroupReader:
        """Join a group (static member). Partitions without a committed floor start at `starts`.

        `floors` is called when partitions are revoked and on close, from the polling call, and must
        answer at once from memory; the door commits what it returns before it gives the partitions
        up.
        """
        ...

    async def mark(self, topic: Topic[Any], *, group: str, floors: Mapping[int, Floor]) -> None:
        """Commit floors for a group that nobody joins, so that tools show how far its reader is.

        Nothing reads them back: such a reader keeps its positions elsewhere. Raises TransientError
        when it fails or somebody has joined the group.
        """
        ...

    async def fetch(self, position: Position, *, deadline: Deadline) -> Message:
        """Return the record at exactly this position; raise TransientError on the deadline,
        InvariantError if gone.
        """
        ...

    async def partitions(self, topic: Topic[Any]) -> int:
        """Return the number of partitions of the topic."""
        ...

    async def ends(self, topic: Topic[Any]) -> Mapping[int, int]:
        """Return the end offset now of every partition."""
        ...


class StopSignal(Protocol):
    """Says that the process is asked to stop; asyncio's Event is one."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class Clock(Protocol):
    """Wall and monotonic time, given to shells so that tests can hold it."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970 UTC."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""

    def monotonic_us(self) -> int:
        """Microseconds that never go back: what a length of time is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every role's shell is given when it starts."""

    run_id: RunId
    worker_id: WorkerId
    incarnation: str
    """Unique per process start."""
    producer: Producer
    consumers: Consumers
    clock: Clock
    starts: Starts
    """Where the run begins in each topic, from its Start record."""
    secret: bytes
    """The run's secret for bearer tokens; never logged, never on a topic."""
    stop: StopSignal
    """Set when the process is asked to stop; the shell drains within its own bound and returns."""

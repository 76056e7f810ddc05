"""Dead letters as an operator sees them: which records no consumer could take, and how one is
produced again once it decodes.

A retry is marked in `dead-letters` before and after, so that a repeat is refused and whoever
follows a retry that broke off looks for its copy first. The first RetryBegun of an origin holds the
right to write for `RIGHT_MS` of broker time; a later one takes over and keeps the earlier floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from consumers.dead_letters import whole
from infra.reissue import how_it_ended, reissue
from infra.standing import standing
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import LetterKind, Role
from schemas.errors import PoisonRecordError, SettingsError, SluiceError
from schemas.ids import EpisodeId, WorkerId
from schemas.ports import Clock, Consumers, Delivered, Message, Position, Producer
from schemas.records.dead_letter import DeadLetter
from schemas.topics import (
    BY_NAME,
    CONTROL,
    DEAD_LETTERS,
    GATE_DECISIONS,
    GATED,
    LEARNER_STEPS,
    PAYLOADS,
    REFRESHES,
    TASKS,
    TRAJECTORIES,
    WORKERS,
    Topic,
)

RIGHT_MS = 120_000
"""How long a begun retry keeps others from writing. Unit: ms."""
READ_MS = 60_000
_SEND_MS = 30_000
_WRITER = WorkerId("cli")
DECIDED_BY_PLACE = frozenset(
    {
        CONTROL, LEARNER_STEPS, REFRESHES, WORKERS, GATE_DECISIONS, GATED, TRAJECTORIES, PAYLOADS,
    }
)  # fmt: skip
"""Topics whose records mean something only where they stand: produced again, they would say it of
another moment, or of an episode that is already dropped.
"""
Letter: TypeAlias = Delivered[DeadLetter]


@dataclass(slots=True, kw_only=True)
class Case:
    """All that `dead-letters` says of one record that could not be taken."""

    origin: Position
    letters: list[Letter] = field(default_factory=list)
    begun: Letter | None = None
    """The RetryBegun that holds the right to write."""
    floor: int = -1
    """A copy of an earlier retry lies at or above it. Unit: records."""
    retried: Letter | None = None

    @property
    def state(self) -> LetterKind:
        """How far it has come."""
        if self.retried is not None:
            return LetterKind.RETRIED
        return LetterKind.LETTER if self.begun is None else LetterKind.RETRY_BEGUN

    @property
    def raw(self) -> bytes:
        """The bytes as they stand at the origin; raises PoisonRecordError when a part lacks."""
        try:
            return whole([letter.record for letter in self.letters])
        except ValueError as error:
            raise PoisonRecordError(
                f"the letter of {shown(self.origin)} is not whole: {error}",
                hint="its other parts were trimmed or never written",
            ) from error

    def take(self, message: Letter) -> None:
        """Take the next record about this origin, in log order."""
        match message.record.kind:
            case LetterKind.RETRY_BEGUN:
                self._begin(message)
            case LetterKind.RETRIED if self.retried is None:
                self.retried = message
            case LetterKind.LETTER:
                self.letters.append(message)
            case _:
                pass

    def _begin(self, message: Letter) -> None:
        before = self.begun
        if before is None or message.timestamp_ms - before.timestamp_ms >= RIGHT_MS:
            self.begun = message
            at = message.record.copy_offset
            self.floor = at if before is None else min(self.floor, at)


def shown(position: Position) -> str:
    """Return a position as people read it."""
    return f"{position.topic}/{position.partition}@{position.offset}"


def origin_of(letter: DeadLetter) -> Position:
    """Return where the record of a letter stands."""
    return Position(letter.origin_topic, letter.origin_partition, letter.origin_offset)


def cases_of(messages: list[Message]) -> dict[Position, Case]:
    """Return the cases of what stands in `dead-letters`, in the order of their first letter."""
    cases: dict[Position, Case] = {}
    for message in messages:
        if isinstance(message, Delivered):
            origin = origin_of(message.record)
            cases.setdefault(origin, Case(origin=origin)).take(message)
    return {origin: case for origin, case in cases.items() if case.letters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a command needs to read and to retry letters."""

    producer: Producer
    consumers: Consumers
    codec: Codec
    clock: Clock

    def deadline(self, budget_ms: int, waiting_for: str) -> Deadline:
        """Return a deadline from now. Unit: ms."""
        return Deadline.after(budget_ms, now_ms=self.clock.monotonic_ms(), waiting_for=waiting_for)

    async def read(
        self, topic: Topic[Any], starts: Mapping[int, int] | None = None
    ) -> list[Message]:
        """Return what stands in a topic now, from the given offsets or its beginning."""
        deadline = self.deadline(READ_MS, f"what stands in {topic.name}")
        return await standing(self.consumers, {topic: starts}, deadline=deadline)

    async def cases(self) -> dict[Position, Case]:
        """Return every case."""
        return cases_of(await self.read(DEAD_LETTERS))

    async def case_at(self, place: str) -> Case:
        """Return the case of the letter at `partition:offset`; raise SettingsError if none."""
        for case in (await self.cases()).values():
            if any(f"{one.partition}:{one.offset}" == place for one in case.letters):
                return case
        raise SettingsError(
            f"no dead letter at {place!r}", hint="`sluice dead-letters list` names them"
        )

    def decode(self, case: Case) -> Any:
        """Return the record of a case as it decodes now.

        Raises PoisonRecordError while it does not, SettingsError when its topic is unknown.
        """
        topic = BY_NAME.get(case.origin.topic)
        if topic is None:
            raise SettingsError(f"the topic {case.origin.topic!r} is not one of this version's")
        return self.codec.decode(topic, case.raw)

    async def refusal(self, case: Case) -> SluiceError | None:
        """Return why a case cannot be retried now, or None."""
        at = shown(case.origin)
        if case.retried is not None:
            copy = case.retried.record
            where = f"{copy.copy_topic}/{copy.copy_partition}@{copy.copy_offset}"
            return SettingsError(f"{at} was retried before: its copy stands at {where}")
        if BY_NAME.get(case.origin.topic) in DECIDED_BY_PLACE:
            return SettingsError(
                f"a record of {case.origin.topic} means something only where it stands",
                hint="what it led to stands in the log; --reissue offers its task anew",
            )
        try:
            record = self.decode(case)
        except SluiceError as error:
            return error
        episode = EpisodeId(getattr(record, "episode_id", ""))
        ended = await how_it_ended(self, episode, case.origin) if episode else ""
        if ended:
            return SettingsError(
                f"{episode} {ended}: a retry never reopens an episode",
                hint="--reissue offers its task anew, as a new one",
            )
        return None

    async def retry(self, case: Case, *, retry_id: str) -> Position:
        """Produce the record of a case again, once, and return where the copy stands.

        Raises the refusal, or UnknownOutcomeError when nobody knows whether the copy was written;
        after `RIGHT_MS` a repeat finds out.
        """
        refused = await self.refusal(case)
        if refused is not None:
            raise refused
        topic, record = BY_NAME[case.origin.topic], self.decode(case)
        began_ms = self.clock.monotonic_ms()
        held = await self.begin(case, topic, case.origin.partition, retry_id=retry_id)
        copy = await self._find(topic, held, record)
        if copy is None:
            left_ms = RIGHT_MS // 2 - (self.clock.monotonic_ms() - began_ms)
            deadline = self.deadline(min(_SEND_MS, left_ms), f"the copy of {shown(case.origin)}")
            acked = await self.producer.send(
                topic, record, partition=case.origin.partition, deadline=deadline
            )
            copy = acked.offset
        at = Position(topic.name, case.origin.partition, copy)
        await self.finish(case, at, retry_id=retry_id)
        return at

    async def reissue(self, case: Case, *, retry_id: str) -> Position:
        """Offer the task of a case anew, as a new one, and return where the new Task stands."""
        if case.retried is not None:
            refused = await self.refusal(case)
            assert refused is not None
            raise refused
        held = await self.begin(case, TASKS, 0, retry_id=retry_id)
        key = case.letters[0].record.origin_key
        at = await reissue(self, key, origin=shown(case.origin))
        await self.finish(held, at, retry_id=retry_id)
        return at

    async def begin(self, case: Case, topic: Topic[Any], partition: int, *, retry_id: str) -> Case:
        """Mark a retry as begun and return the case as it stands then.

        Raises SettingsError when another retry holds the right to write.
        """
        ends = await self.consumers.ends(topic)
        await self._mark(
            case, LetterKind.RETRY_BEGUN, Position(topic.name, partition, ends[partition]),
            retry_id=retry_id,
        )  # fmt: skip
        now = (await self.cases())[case.origin]
        if now.retried is not None or now.begun is None or now.begun.record.retry_id != retry_id:
            raise SettingsError(
                f"another retry of {shown(case.origin)} is under way or done",
                hint=f"if it broke off, retry after {RIGHT_MS // 1000} s: it looks for its copy",
            )
        return now

    async def finish(self, case: Case, copy: Position, *, retry_id: str) -> None:
        """Mark a case as retried."""
        await self._mark(case, LetterKind.RETRIED, copy, retry_id=retry_id)

    async def _find(self, topic: Topic[Any], held: Case, record: Any) -> int | None:
        """Return the offset of a copy that stands at or above the floor of a case, or None."""
        frame = self.codec.encode(topic, record)
        for message in await self.read(topic, {held.origin.partition: held.floor}):
            if (
                isinstance(message, Delivered)
                and message.offset != held.origin.offset
                and self.codec.encode(topic, message.record) == frame
            ):
                return message.offset
        return None

    async def _mark(self, case: Case, kind: LetterKind, copy: Position, *, retry_id: str) -> None:
        letter = case.letters[0].record
        mark = DeadLetter(
            run_id=letter.run_id,
            origin_topic=letter.origin_topic,
            origin_partition=letter.origin_partition,
            origin_offset=letter.origin_offset,
            origin_key=letter.origin_key,
            schema_id=letter.schema_id,
            error_class=kind.value,
            consumer=Role.CLI.value,
            kind=kind,
            retry_id=retry_id,
            copy_topic=copy.topic,
            copy_partition=copy.partition,
            copy_offset=copy.offset,
            at_us=self.clock.now_us(),
            writer_id=_WRITER,
        )
        await self.producer.send(
            DEAD_LETTERS, mark, deadline=self.deadline(_SEND_MS, f"the {kind.value} mark")
        )

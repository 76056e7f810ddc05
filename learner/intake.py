"""Reads `gated`, decodes and checks what comes, and hands it to the consumption.

Consumes: `gated`; `gate-decisions` once per poison record. Produces: dead letters, and the members
to write as Skipped. Waits for: the broker, a bounded time per call. Unblocked by: its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consumers.dead_letters import bury
from learner.core.consume import Consumption
from learner.core.validate import Refusal, refuse_light
from learner.settings import LearnerSettings
from schemas.codec import Codec
from schemas.deadline import Deadline
from schemas.enums import DropReason, GateOutcome, Role
from schemas.errors import Boundary, PoisonRecordError, SettingsError
from schemas.ids import EpisodeId, GroupId
from schemas.ports import Context, Delivered, LogReader, Message, Poisoned
from schemas.records.gate_decision import GateDecision
from schemas.records.gated_trajectory import GatedTrajectory
from schemas.records.parts import SkippedMember
from schemas.records.trajectory import Trajectory
from schemas.topics import GATE_DECISIONS, GATED, TRAJECTORIES

_RECORDS_MAX = 1_000


class Intake:
    """The learner's reader of trajectories."""

    def __init__(
        self,
        context: Context,
        settings: LearnerSettings,
        codec: Codec,
        consumption: Consumption,
        judged_by: Mapping[str, str],
    ) -> None:
        """Read from the consumption's offsets; judged_by: verifier digest by environment, as
        restored.
        """
        self._context, self._settings, self._codec = context, settings, codec
        self.consumption = consumption
        self.judged_by: dict[str, str] = dict(judged_by)
        self.poisoned = 0
        self._reader: LogReader = context.consumers.reader({GATED: consumption.next_offsets()})

    async def poll(self, *, timeout_s: float) -> tuple[int, tuple[SkippedMember, ...]]:
        """Read what is there; return how many trajectories arrived and what could not be used."""
        return await self._take_all(
            await self._reader.poll(records_max=_RECORDS_MAX, timeout_s=timeout_s)
        )

    async def read_to(
        self, ends: Mapping[int, int], *, deadline: Deadline
    ) -> tuple[SkippedMember, ...]:
        """Read every partition up to an end offset."""
        places = {(GATED.name, partition): end for partition, end in ends.items()}
        _, skipped = await self._take_all(await self._reader.read_to(places, deadline=deadline))
        return skipped

    async def _take_all(self, messages: Sequence[Message]) -> tuple[int, tuple[SkippedMember, ...]]:
        arrived = 0
        skipped: list[SkippedMember] = []
        for message in messages:
            if isinstance(message, Poisoned):
                skipped.extend(await self._take_poison(message))
            elif message.record.run_id != self._context.run_id:
                self.consumption.take_foreign(message.partition, message.offset)
            else:
                refused = await self._take(message)
                arrived += refused is None
                skipped.extend(refused or ())
        return arrived, tuple(skipped)

    async def _take(self, message: Delivered[GatedTrajectory]) -> tuple[SkippedMember, ...] | None:
        """Take one record; None when it waits now, else what is skipped for it (nothing for a
        repeat).
        """
        gated = message.record
        if self.consumption.is_repeat(message.partition, gated):
            self.consumption.take_repeat(message.partition, message.offset, gated)
            return ()
        try:
            trajectory = self._codec.decode(TRAJECTORIES, gated.trajectory_frame)
        except PoisonRecordError as error:
            refusal = Refusal(reason=DropReason.INVALID_RECORD, rule="V5", message=str(error))
            return (await self._refuse(message, refusal, action_tokens=0),)
        refused = refuse_light(trajectory)
        if refused is not None:
            return (await self._refuse(message, refused, action_tokens=trajectory.action_tokens),)
        self._must_be_judged_alike(trajectory)
        self.consumption.take(message.partition, message.offset, gated, trajectory)
        return None

    def _must_be_judged_alike(self, trajectory: Trajectory) -> None:
        known = self.judged_by.setdefault(trajectory.environment, trajectory.verifier_digest)
        if known != trajectory.verifier_digest:
            raise SettingsError(
                f"verifier of {trajectory.environment} is {trajectory.verifier_digest}, this run "
                f"was judged by {known}",
                boundary=Boundary.VERIFIER,
                hint="rewards of two verifiers do not mix: start a new run for the new one",
            )

    async def _refuse(
        self, message: Delivered[GatedTrajectory], refusal: Refusal, *, action_tokens: int
    ) -> SkippedMember:
        gated = message.record
        await self.dead_letter(message.partition, message.offset, gated, refusal)
        self.consumption.take_unusable(
            message.partition, message.offset, [gated.trajectory_offset], gated.input_offset
        )
        return SkippedMember(
            episode_id=gated.episode_id,
            partition=message.partition,
            offset=message.offset,
            reason=refusal.reason,
            action_tokens=action_tokens,
        )

    async def dead_letter(
        self, partition: int, offset: int, gated: GatedTrajectory, refusal: Refusal
    ) -> None:
        """Keep the evidence of a refused trajectory."""
        poisoned = Poisoned(
            topic=GATED.name,
            partition=partition,
            offset=offset,
            timestamp_ms=gated.at_us // 1000,
            key=gated.group_id.encode(),
            raw=self._codec.encode(GATED, gated),
            schema_id=None,
            error_class=refusal.reason.value,
            error=f"{gated.episode_id}: {refusal}",
        )
        await bury(self._context, poisoned, role=Role.LEARNER)

    async def _take_poison(self, message: Poisoned) -> tuple[SkippedMember, ...]:
        """Bury a record that cannot be read and drop its group's admitted members that are not
        trained.

        Which member it was cannot be told, so all of them are given up; the decision names them.
        """
        self.poisoned += 1
        await bury(self._context, message, role=Role.LEARNER)
        group = GroupId((message.key or b"").decode(errors="replace"))
        skipped = []
        admitted: dict[EpisodeId, int] = await self._admitted(group, message.partition)
        waiting = {w.episode_id: w for w in self.consumption.members_waiting(group)}
        unseen = {}
        for episode, trajectory_offset in admitted.items():
            if episode in waiting:
                skipped.append(
                    self.consumption.discard(waiting[episode], DropReason.INVALID_RECORD)
                )
            elif not self.consumption.is_taken(message.partition, trajectory_offset):
                unseen[episode] = trajectory_offset
        skipped += [
            SkippedMember(
                episode_id=episode,
                partition=message.partition,
                offset=message.offset,
                reason=DropReason.INVALID_RECORD,
            )
            for episode in unseen
        ]
        self.consumption.take_unusable(message.partition, message.offset, unseen.values())
        return tuple(skipped)

    async def _admitted(self, group: GroupId, partition: int) -> dict[EpisodeId, int]:
        """Return the admitted members of a group by its first decision, with their trajectory
        offsets.
        """
        start = self._context.starts[GATE_DECISIONS.name].get(partition, 0)
        reader = self._context.consumers.reader({GATE_DECISIONS: {partition: start}})
        try:
            ends = await reader.ends(GATE_DECISIONS, [partition])
            deadline = Deadline.after(
                int(1000 * self._settings.fetch_s),
                now_ms=self._context.clock.monotonic_ms(),
                waiting_for=f"the decision on {group}",
            )
            messages = await reader.read_to(
                {(GATE_DECISIONS.name, partition): ends[partition]}, deadline=deadline
            )
        finally:
            await reader.close()
        for message in messages:
            if isinstance(message, Delivered) and message.record.group_id == group:
                decision: GateDecision = message.record
                return {
                    member.episode_id: member.trajectory_offset
                    for member in decision.members
                    if member.outcome is GateOutcome.ADMIT
                }
        return {}

    async def close(self) -> None:
        """Release the reader."""
        await self._reader.close()

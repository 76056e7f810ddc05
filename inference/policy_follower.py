"""Follows the policy's life for one worker: loads what the coordinator prepares, leaves an orphaned
version.

Consumes: policies.v1, refreshes.v1 (Prepare for this worker), learner-steps.v1. Produces:
refreshes.v1 (Loaded, Serving, Failed). Waits for: records, in short polls, and a load inside its
budget. Unblocked by: the coordinator's next Prepare, or a version on the learner's lineage. A load
that failed, or log-probs that are not the learner's, leave the worker at the last version that it
loaded whole and that stood its probe.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consumers.dead_letters import bury
from inference.engine import SwapReport
from inference.engine_keeper import EngineKeeper
from inference.model_files import read_probe, verify_version
from inference.settings import PROBE_TOLERANCE_NATS
from schemas.deadline import Deadline
from schemas.enums import RefreshEventKind, Role
from schemas.errors import (
    Boundary,
    InvariantError,
    RejectedError,
    SluiceError,
    TransientError,
    UnknownOutcomeError,
)
from schemas.ids import Version
from schemas.ports import Context, Delivered, LogReader, Message, Poisoned
from schemas.probe import Probe, largest_difference
from schemas.records.policy_version import PolicyVersion
from schemas.records.refresh_event import RefreshEvent
from schemas.rules.lineage import LearnerLog
from schemas.topics import LEARNER_STEPS, POLICIES, REFRESHES

_LOG = logging.getLogger(__name__)
_POLL_S = 0.5
_AGAIN_S = 1.0
_BURY_TRIES = 20
_RECORDS_MAX = 1000
_SEND_MS = 10_000
_READ_MS = 10_000
_PROBE_PROMPT, _PROBE_IDS = (1, 2, 3, 4), (5, 6, 7)
_NOT_PROBED = -1.0
_ORPHANED, _UNPROBED = "orphaned", "unprobed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A version that this worker is to serve."""

    version: Version
    digest: str


class PolicyFollower:
    """Keeps the engine of one worker at a version that may be served."""

    def __init__(
        self,
        context: Context,
        keeper: EngineKeeper,
        *,
        inflight: Callable[[], int],
        interrupt: Callable[[], Awaitable[None]],
        on_change: Callable[[str], Awaitable[None]],
        refresh_timeout_s: float,
        checks_files: bool = True,
        probe_tolerance_nats: float = PROBE_TOLERANCE_NATS,
    ) -> None:
        """`interrupt` makes turns in flight leave the engine. `on_change` is given a sentence
        whenever the served version or its state changes.

        `checks_files` is off for the scripted engine only, which loads nothing.
        """
        self._context = context
        self._keeper = keeper
        self._inflight = inflight
        self._interrupt = interrupt
        self._on_change = on_change
        self._refresh_timeout_s = refresh_timeout_s
        self._checks_files = checks_files
        self._probe_tolerance_nats = probe_tolerance_nats
        self._policies: dict[Version, PolicyVersion] = {}
        self._learner = LearnerLog()
        self._target: Target | None = None
        self._doubtful = False
        self._has_begun = False
        self.published = asyncio.Event()
        """Set once the registry was seen to hold the version that is served."""

    async def run(self) -> None:
        """Follow until cancelled."""
        starts = self._context.starts
        reader = self._context.consumers.reader(
            {t: dict(starts.get(t.name, {})) for t in (POLICIES, LEARNER_STEPS, REFRESHES)}
        )
        try:
            while True:
                try:
                    if not self._has_begun:
                        await self._begin(reader)
                    await self._follow(reader)
                except TransientError as error:
                    # The bus may be away for a while; what is served stays as it is meanwhile.
                    _LOG.warning("following the policy: %s", error)
                    await asyncio.sleep(_AGAIN_S)
        finally:
            await reader.close()

    async def _begin(self, reader: LogReader) -> None:
        """Load the newest version of the lineage before anything is sampled: a worker that was
        started again has the starting weights, and what it sampled under them would be stale.
        """
        await self._catch_up(reader)
        newest = self._newest()
        if newest is not None and newest.version != self._keeper.version:
            self._target = newest
            await self._refresh(reader)
        self._has_begun = True
        self._note_published()

    def _newest(self) -> Target | None:
        """Return the newest published version on the learner's lineage, None before the first."""
        known = [v for v in self._policies if self._learner.is_ancestor(v)]
        if not known:
            return None
        newest = max(known, key=lambda v: v.number)
        return Target(version=newest, digest=self._policies[newest].digest)

    def _note_published(self) -> None:
        if self._has_begun and self._keeper.version in self._policies:
            self.published.set()

    async def _follow(self, reader: LogReader) -> None:
        await self._take_all(await reader.poll(records_max=_RECORDS_MAX, timeout_s=_POLL_S))
        if self._doubtful:
            await self._leave_orphan(reader)
        if self._target is not None:
            await self._refresh(reader)

    async def _take_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Poisoned):
                await self._bury(message)
            else:
                self.take(message)

    async def _bury(self, message: Poisoned) -> None:
        """Bury a record that cannot be read; it is not skipped before its letter is written."""
        for _ in range(_BURY_TRIES):
            try:
                await bury(self._context, message, role=Role.INFERENCE)
                return
            except (RejectedError, UnknownOutcomeError) as error:
                _LOG.warning("a dead letter was not acknowledged: %s", error)
                await asyncio.sleep(_AGAIN_S)
        raise InvariantError(
            f"no dead letter could be written for {message.topic}/{message.partition}@"
            f"{message.offset} in {_BURY_TRIES} tries",
            boundary=Boundary.BUS,
            hint="is the broker up, and may this worker write to dead-letters?",
        )

    def take(self, message: Delivered[Any]) -> None:
        """Take one record of the three topics."""
        if message.record.run_id != self._context.run_id:
            return
        record = message.record
        if isinstance(record, PolicyVersion):
            self._policies[Version(record.epoch, record.number)] = record
            self._note_published()
        elif isinstance(record, RefreshEvent):
            self._take_prepare(record)
        elif self._learner.take(message.offset, message.timestamp_ms, record):
            self._doubtful = True

    def _take_prepare(self, event: RefreshEvent) -> None:
        for_us = event.worker_id == self._context.worker_id and event.incarnation in (
            "",
            self._context.incarnation,
        )
        if event.kind is RefreshEventKind.PREPARE and for_us:
            self._target = Target(version=Version(event.epoch, event.number), digest=event.digest)

    async def _refresh(self, reader: LogReader) -> None:
        target, self._target = self._target, None
        assert target is not None, "called only with a target"
        if target.version == self._keeper.version:
            await self._tell(RefreshEventKind.SERVING, target)
            return
        began_us = self._context.clock.monotonic_us()
        try:
            await self._must_be_on_lineage(reader, target.version)
            await self._load(target, began_us)
        except SluiceError as error:
            _LOG.error("version %s could not be loaded: %s", target.version, error)
            await self._tell(RefreshEventKind.FAILED, target, detail=str(error))
            await self._on_change(f"version {target.version} failed to load")

    async def _load(self, target: Target, began_us: int) -> None:
        policy = self._policies.get(target.version)
        if policy is None:
            raise TransientError(
                f"version {target.version} is not in policies", hint="it was prepared too early"
            )
        digest = target.digest or policy.digest
        folder = Path(policy.location)
        if self._checks_files:
            await asyncio.to_thread(verify_version, folder, manifest=policy.manifest, digest=digest)
        probe = await asyncio.to_thread(read_probe, folder) if self._checks_files else None
        fetch_us = self._context.clock.monotonic_us() - began_us
        inflight = self._inflight()
        # No turn begins under weights that were not probed; those in flight go on.
        self._keeper.hold(_UNPROBED)
        try:
            report = await self._swap(folder, target.version)
            await self._tell(
                RefreshEventKind.LOADED, target, report=report, fetch_us=fetch_us, inflight=inflight
            )
            error = await self._check_probe(target.version, probe)
        finally:
            self._keeper.release(_UNPROBED)
        await self._tell(
            RefreshEventKind.SERVING, target, report=report, fetch_us=fetch_us, inflight=inflight,
            probe_error=error,
        )  # fmt: skip
        await self._on_change("")

    async def _swap(self, folder: Path, version: Version) -> SwapReport:
        try:
            async with asyncio.timeout(self._refresh_timeout_s):
                return await self._keeper.swap(folder, version)
        except TimeoutError as error:
            # Half loaded is not loaded: the engine starts anew at the last whole version.
            await self._keeper.stop()
            raise TransientError(
                f"loading {version} took longer than {self._refresh_timeout_s:.0f} s",
                boundary=Boundary.ENGINE,
                hint="raise inference.refresh_timeout_s, or look at the disk",
            ) from error

    async def _check_probe(self, version: Version, probe: Probe | None) -> float:
        """Refuse weights whose log-probs are not those that the learner published with them, or are
        not finite where it published none. Return the largest difference, -1 without a reference.
        Unit: nats.
        """
        prompt, ids = (
            (_PROBE_PROMPT, _PROBE_IDS) if probe is None else (probe.prompt_ids, probe.ids)
        )
        try:
            async with asyncio.timeout(self._refresh_timeout_s):
                values = await self._keeper.score(prompt, ids)
        except TimeoutError:
            values = []
        if probe is None:
            is_sound = len(values) == len(ids) and all(map(math.isfinite, values))
            error, told = _NOT_PROBED, f"gives log-probs {values} on the probe"
        else:
            error = largest_difference(probe, values)
            is_sound = error <= self._probe_tolerance_nats
            told = (
                f"is {error:.3g} nats off the learner's log-probs on its probe, "
                f"{self._probe_tolerance_nats:g} are allowed"
            )
        if is_sound:
            return error
        await self._keeper.reject()
        raise TransientError(
            f"version {version} {told}",
            boundary=Boundary.ENGINE,
            hint="the weights were not loaded as they are, or are damaged or diverged; the "
            "learner's last steps say more",
        )

    async def _must_be_on_lineage(self, reader: LogReader, version: Version) -> None:
        if not self._learner.is_ancestor(version):
            await self._catch_up(reader)
        if not self._learner.is_ancestor(version):
            raise TransientError(
                f"no Step that counts has made version {version}",
                boundary=Boundary.INSIDE,
                hint="its learner was fenced, or died before its Step",
            )

    async def _leave_orphan(self, reader: LogReader) -> None:
        """Load an ancestor before anything more is sampled, when the served version is none."""
        self._doubtful = False
        if self._learner.is_ancestor(self._keeper.version):
            self._keeper.release(_ORPHANED)
            return
        await self._catch_up(reader)
        if self._learner.is_ancestor(self._keeper.version):
            return
        self._keeper.hold(_ORPHANED)
        await self._interrupt()
        await self._on_change(f"version {self._keeper.version} is orphaned")
        self._target = self._newest()
        if self._target is None:
            self._doubtful = True
            return
        await self._refresh(reader)
        self._doubtful = not self._learner.is_ancestor(self._keeper.version)
        if not self._doubtful:
            self._keeper.release(_ORPHANED)

    async def _catch_up(self, reader: LogReader) -> None:
        """Read learner-steps and policies past ends sampled now: what is still missing then is not
        there yet.
        """
        ends = {
            (topic.name, partition): end
            for topic in (LEARNER_STEPS, POLICIES)
            for partition, end in (await reader.ends(topic)).items()
            if partition in self._context.starts.get(topic.name, {})
        }
        now_ms = self._context.clock.monotonic_ms()
        deadline = Deadline.after(_READ_MS, now_ms=now_ms, waiting_for="reading learner-steps")
        await self._take_all(await reader.read_to(ends, deadline=deadline))

    async def _tell(
        self,
        kind: RefreshEventKind,
        target: Target,
        *,
        report: SwapReport | None = None,
        fetch_us: int = 0,
        inflight: int = 0,
        probe_error: float = _NOT_PROBED,
        detail: str = "",
    ) -> None:
        event = RefreshEvent(
            run_id=self._context.run_id,
            worker_id=self._context.worker_id,
            incarnation=self._context.incarnation,
            kind=kind,
            epoch=target.version.epoch,
            number=target.version.number,
            digest=target.digest,
            fetch_us=fetch_us,
            pause_us=report.pause_us if report else 0,
            load_us=report.load_us if report else 0,
            inflight=inflight,
            probe_error=probe_error,
            detail=detail,
            at_us=self._context.clock.now_us(),
            writer_id=self._context.worker_id,
        )
        now_ms = self._context.clock.monotonic_ms()
        deadline = Deadline.after(_SEND_MS, now_ms=now_ms, waiting_for=f"{kind.value} of a refresh")
        try:
            await self._context.producer.send(REFRESHES, event, deadline=deadline)
        except SluiceError as error:
            # The worker's own state carries the version too; the coordinator asks again after its
            # deadline.
            _LOG.warning("%s of %s was not acknowledged: %s", kind.value, target.version, error)

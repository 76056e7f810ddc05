"""The audit of a run as its own commands make it: with what a trim has deleted, on every core."""

from __future__ import annotations

import asyncio

from consumers.settings import ConsumerSettings
from infra.audit.audit import audit
from infra.audit.processes import helpers
from infra.audit.report import AuditReport
from infra.run.bus import Doors, log_ends
from infra.topic_admin import log_starts, topic_ids
from schemas.enums import ControlKind
from schemas.ids import RunId
from schemas.ports import Starts
from schemas.topics import PAYLOADS, TOKENS, TOOL_EVENTS

_TRIMMED = (TOKENS, TOOL_EVENTS, PAYLOADS)


async def prove(doors: Doors, run_id: RunId, starts: Starts) -> AuditReport:
    """Audit a run; see `infra.audit.audit.audit` for the errors."""
    address = doors.address
    found = await asyncio.to_thread(
        log_starts, address.bootstrap, prefix=address.prefix, topics=_TRIMMED
    )
    lows: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in found.items():
        lows.setdefault(topic, {})[partition] = offset
    settings = ConsumerSettings(
        bootstrap=address.bootstrap, prefix=address.prefix, client_id="audit"
    )
    shared = helpers(settings, doors.codec, run_id, starts, lows=lows)
    return await audit(doors.consumers, run_id, starts, lows=lows, helpers=shared)


async def record(doors: Doors, report: AuditReport) -> None:
    """Append Audited: how far a clean audit went, from which trims and later audits go on.

    Raises BusUnreachableError, UnknownOutcomeError.
    """
    assert report.is_clean, "only a clean audit is recorded"
    address = doors.address
    ids = await asyncio.to_thread(topic_ids, address.bootstrap, prefix=address.prefix)
    tokens = {f"tokens {name}": n for name, n in report.tokens.items()}
    await doors.control(
        RunId(report.run_id),
        ControlKind.AUDITED,
        ends=log_ends(report.cut, ids),
        counts={**report.counts, **tokens},
    )

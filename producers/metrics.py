"""Samples that no other record carries, sent without waiting.

Invariants: observing never blocks and never fails for the bus; when too much is queued the sample
is dropped and counted, since a late metric is worth less than the record it would hold up.
"""

from __future__ import annotations

from schemas.ports import Context
from schemas.records.metric_point import MetricPoint
from schemas.topics import METRICS

QUEUED_MAX = 20_000


class Metrics:
    """The samples of one process."""

    def __init__(self, context: Context, *, queued_max: int = QUEUED_MAX) -> None:
        """queued_max: samples are dropped while so many records wait in the producer."""
        self._context = context
        self._queued_max = queued_max
        self.dropped = 0
        """Samples that were not sent because too much was queued. Unit: samples."""

    def observe(self, name: str, value: float, unit: str, **labels: str) -> None:
        """Send one sample; the name ends in the unit, label values come from small sets.

        Raises FieldTypeError when the name, unit or a label is no text.
        """
        context = self._context
        if context.producer.queued >= self._queued_max:
            self.dropped += 1
            return
        context.producer.offer(
            METRICS,
            MetricPoint(
                run_id=context.run_id,
                name=name,
                unit=unit,
                value=float(value),
                labels=labels,
                at_us=context.clock.now_us(),
                writer_id=context.worker_id,
            ),
        )

"""The quantities of one process: plain numbers while it works, Prometheus' families when asked.

Counting is on the way of every record, so it costs a look-up and an addition; families are built
at a scrape, from a copy, on the server's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from math import isfinite
from pathlib import Path
from shutil import disk_usage
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from infra.exporter import catalogue
from infra.exporter.catalogue import OTHER, SERIES_MAX, Kind, Quantity
from infra.exporter.records import Sample

PREFIX = "sluice_"
Labels: TypeAlias = tuple[str, ...]


class _Buckets:
    """A histogram's counts, the last one beyond all bounds, and the sum of its values."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        self.total = 0.0


class Instruments(Collector):
    """Takes samples; bounded in the number of series per quantity."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._buckets: dict[str, dict[Labels, _Buckets]] = {}
        self._looked_up: list[tuple[Quantity, Labels, Callable[[], float]]] = []
        for one in catalogue.ALL:
            if one.kind is Kind.HISTOGRAM:
                self._buckets[one.name] = {}
            else:
                self._numbers[one.name] = {}
        registry.register(self)

    def take(self, samples: Iterable[Sample]) -> None:
        """Count, set or observe each sample."""
        for quantity, value, labels in samples:
            self.add(quantity, value, *labels)

    def add(self, quantity: Quantity, value: float = 1.0, *labels: str) -> None:
        """Take one sample. A value that is not finite is left out of histograms and counters, whose
        sums it would spoil for ever.
        """
        kind = quantity.kind
        if kind is Kind.GAUGE:
            series = self._numbers[quantity.name]
            series[_place(series, labels)] = value
        elif not isfinite(value):
            return
        elif kind is Kind.COUNTER:
            series = self._numbers[quantity.name]
            labels = _place(series, labels)
            series[labels] = series.get(labels, 0.0) + value
        else:
            made = self._buckets[quantity.name]
            labels = _place(made, labels)
            if (buckets := made.get(labels)) is None:
                buckets = made[labels] = _Buckets(len(quantity.bounds))
            buckets.counts[bisect_left(quantity.bounds, value)] += 1
            buckets.total += value

    def watch_disk(self, folders: dict[str, Path]) -> None:
        """Export the free share of the disks under these folders, looked up at each scrape."""
        for name, folder in folders.items():
            self._looked_up.append((catalogue.DISK_FREE, (name,), lambda at=folder: _free(at)))  # type: ignore[misc]  # mypy types no defaults of lambdas

    def collect(self) -> Iterator[Metric]:
        """Yield every quantity of which there is a value."""
        for quantity, labels, look in self._looked_up:
            self._numbers[quantity.name][labels] = look()
        for one in catalogue.ALL:
            if one.kind is Kind.HISTOGRAM:
                yield _histogram(one, self._buckets[one.name].copy())
            else:
                yield _plain(one, self._numbers[one.name].copy())


def _place(series: dict[Labels, float] | dict[Labels, _Buckets], labels: Labels) -> Labels:
    """Return the labels, or those of all that came when there were too many."""
    if labels in series or len(series) < SERIES_MAX:
        return labels
    return (OTHER,) * len(labels)


def _plain(quantity: Quantity, series: dict[Labels, float]) -> Metric:
    family = CounterMetricFamily if quantity.kind is Kind.COUNTER else GaugeMetricFamily
    made = family(PREFIX + quantity.name, quantity.text, labels=quantity.labels)
    for labels, value in series.items():
        made.add_metric(labels, value)
    return made


def _histogram(quantity: Quantity, series: dict[Labels, _Buckets]) -> Metric:
    made = HistogramMetricFamily(PREFIX + quantity.name, quantity.text, labels=quantity.labels)
    bounds = [*map(str, quantity.bounds), "+Inf"]
    for labels, one in series.items():
        counts = list(accumulate(one.counts.copy()))
        made.add_metric(labels, list(zip(bounds, counts, strict=True)), one.total)
    return made


def _free(folder: Path) -> float:
    try:
        usage = disk_usage(folder)
    except OSError:
        return 0.0
    return usage.free / usage.total

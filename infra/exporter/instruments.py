"""The quantities of one process as prometheus_client holds them."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from shutil import disk_usage
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from infra.exporter import catalogue
from infra.exporter.catalogue import OTHER, SERIES_MAX, Kind, Quantity
from infra.exporter.records import Sample

PREFIX = "sluice_"


class Instruments:
    """Takes samples; bounded in the number of series per quantity."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = {one.name: _made(one, registry) for one in catalogue.ALL}
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._series: dict[str, int] = {}

    def take(self, samples: Iterable[Sample]) -> None:
        """Count, set or observe each sample. A value that is not finite is left out of histograms
        and counters, whose sums it would spoil for ever.
        """
        for quantity, value, labels in samples:
            child = self._child(quantity, labels)
            if quantity.kind is Kind.GAUGE:
                child.set(value)
            elif not isfinite(value):
                continue
            elif quantity.kind is Kind.COUNTER:
                child.inc(value)
            else:
                child.observe(value)

    def add(self, quantity: Quantity, value: float = 1.0, *labels: str) -> None:
        """Take one sample."""
        self.take((Sample(quantity, value, labels),))

    def watch_disk(self, folders: dict[str, Path]) -> None:
        """Export the free share of the disks under these folders, looked up at each scrape."""
        for name, folder in folders.items():
            self._child(catalogue.DISK_FREE, (name,)).set_function(lambda at=folder: _free(at))

    def _child(self, quantity: Quantity, labels: tuple[str, ...]) -> Any:
        key = (quantity.name, labels)
        child = self._children.get(key)
        if child is None:
            made = self._series.get(quantity.name, 0)
            if made >= SERIES_MAX and labels != (folded := (OTHER,) * len(labels)):
                return self._child(quantity, folded)
            self._series[quantity.name] = made + 1
            metric = self._metrics[quantity.name]
            child = self._children[key] = metric.labels(*labels) if labels else metric
        return child


def _made(quantity: Quantity, registry: CollectorRegistry) -> Any:
    name = PREFIX + quantity.name
    if quantity.kind is Kind.HISTOGRAM:
        return Histogram(
            name, quantity.text, quantity.labels, buckets=quantity.bounds, registry=registry
        )
    made = Counter if quantity.kind is Kind.COUNTER else Gauge
    return made(name, quantity.text, quantity.labels, registry=registry)


def _free(folder: Path) -> float:
    try:
        usage = disk_usage(folder)
    except OSError:
        return 0.0
    return usage.free / usage.total

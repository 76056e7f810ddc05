"""One `up`: what to start, in which order, and the wait until all of it answers.

Invariants: all ports are looked at before anything starts, so that a refusal leaves nothing behind;
a cluster's stores are made once, and only a state that says so lets its nodes start.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from infra.platform.kafka import format_node, node_store, node_words, start_node
from infra.platform.nodes import Node, bootstrap_address, new_cluster_id, plan_nodes
from infra.platform.ports import require_free
from infra.platform.process import POLL_S, is_alive, last_lines, monotonic_ms
from infra.platform.registry import (
    NAME,
    registry_answers,
    registry_log,
    registry_url,
    start_registry,
)
from infra.platform.settings import PlatformSettings
from infra.platform.state import PlatformState, ProcessRecord, read_state, write_state
from infra.platform.status import brokers_wanted
from infra.setup.places import Places
from infra.topic_admin import wait_for_brokers
from schemas.deadline import Deadline
from schemas.errors import Boundary, SettingsError, TransientError

_ROOM_BYTES_MIN = 16 * 1_048_576
"""With less room than this a disk counts as full."""


class PlatformStart:
    """One `up`: which services to start, in which order, and the wait for all of them."""

    def __init__(self, settings: PlatformSettings, places: Places, deadline: Deadline) -> None:
        self._settings = settings
        self._places = places
        self._deadline = deadline
        self._started: list[str] = []
        self._state = _fresh_or_known(settings, read_state(settings.data))

    def run(self) -> tuple[str, ...]:
        """Start what does not run; returns the names of what was started, once all answer."""
        nodes = plan_nodes(self._settings, self._state.brokers)
        wants_kafka = not self._settings.external_bootstrap
        dead_nodes = [node for node in nodes if wants_kafka and not self._runs(node.name)]
        wants_registry = not self._settings.external_registry and not self._runs(NAME)
        for node in dead_nodes:
            require_free(node.port, node.name)
            if node.is_controller and node.is_broker:
                require_free(self._settings.controller_port, f"{node.name} (controller)")
        if wants_registry:
            require_free(self._settings.registry_port, NAME)
            require_free(self._settings.registry_management_port, f"{NAME} (management)")
            self._remember(start_registry(self._settings, self._places))
        if dead_nodes:
            self._format(nodes)
        for node in dead_nodes:
            self._remember(start_node(node, self._settings, self._places))
        if wants_kafka:
            self._await_kafka(nodes)
        if not self._settings.external_registry:
            self._await_registry()
        return tuple(self._started)

    def _runs(self, name: str) -> bool:
        record = self._state.process(name)
        return record is not None and is_alive(record)

    def _format(self, nodes: Sequence[Node]) -> None:
        # The cluster's id is kept first: an `up` cut short here goes on with the same one.
        write_state(self._settings.data, self._state)
        for node in nodes:
            format_node(node, self._settings, self._places, state=self._state)
        self._state = replace(self._state, is_formatted=True)

    def _remember(self, record: ProcessRecord) -> None:
        self._state = self._state.with_process(record)
        write_state(self._settings.data, self._state)
        self._started.append(record.name)

    def _await_kafka(self, nodes: Sequence[Node]) -> None:
        def check() -> None:
            for node in nodes:
                if not self._runs(node.name):
                    data = self._settings.data
                    raise _start_failed(node.name, node_words(data, node), node_store(data, node))

        count = sum(node.is_broker for node in nodes)
        wait_for_brokers(self._state.bootstrap, count, self._deadline, check=check)

    def _await_registry(self) -> None:
        log = registry_log(self._settings.data)
        while not registry_answers(self._state.registry_url):
            if not self._runs(NAME):
                raise _start_failed(NAME, last_lines(log), self._settings.data)
            if self._deadline.is_over(now_ms=monotonic_ms()):
                raise TransientError(
                    f"gave up on {self._deadline.waiting_for}: the registry at "
                    f"{self._state.registry_url} does not answer; its last words:\n"
                    f"{last_lines(log)}",
                    boundary=Boundary.PLATFORM,
                    hint="`sluice down`, then `sluice up` again",
                )
            time.sleep(POLL_S)


def _fresh_or_known(settings: PlatformSettings, known: PlatformState | None) -> PlatformState:
    """The state to start from, with today's ports where nothing runs on the old ones."""
    brokers = brokers_wanted(settings, known)
    bootstrap = bootstrap_address(settings, brokers)
    url = registry_url(settings.registry_port)
    if known is None:
        return PlatformState(
            cluster_id=new_cluster_id(), brokers=brokers, bootstrap=bootstrap, registry_url=url
        )
    moved = (known.bootstrap, known.registry_url) != (bootstrap, url)
    alive = [one.name for one in known.processes if is_alive(one)]
    if moved and alive:
        raise SettingsError(
            f"{', '.join(alive)} of {settings.data} run on other ports "
            f"({known.bootstrap}, {known.registry_url}) than asked for",
            boundary=Boundary.PLATFORM,
            hint="`sluice down` first, or ask for the same ports",
        )
    return replace(known, bootstrap=bootstrap, registry_url=url)


def _start_failed(name: str, words: str, folder: Path) -> TransientError:
    found = os.statvfs(folder)
    is_full = found.f_bavail * found.f_frsize < _ROOM_BYTES_MIN
    why = f": the disk of {folder} is full" if is_full else ""
    return TransientError(
        f"{name} ended while it was starting{why}; its last words:\n{words}",
        boundary=Boundary.PLATFORM,
        hint="make room there, then `sluice up` again; nothing else need be done"
        if is_full
        else "`sluice doctor` looks at memory, disk and ports; the log lies in the data folder",
    )

"""Which function runs each role, and which part of the settings it is given; modules are imported
when a role starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.enums import Role
from schemas.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """How one role is started."""

    role: Role
    section: str
    """Attribute of RunSettings that holds its settings."""
    entry: str
    """module:function of `async run(context, settings, ...)`."""
    counted: bool = False
    """Whether `[processes]` says how many run; else one does."""
    extras: tuple[str, ...] = ()
    """What its function takes besides context and settings; `infra/run/worker.py` knows each."""
    called: str = ""
    """Its name where that is not the role's: a process that writes nothing to the bus needs no role
    of its own there, and reads with the rights of `role`.
    """
    wanted_by: str = ""
    """The key of its section that must not be empty for it to run; empty: it always does."""

    @property
    def name(self) -> str:
        """Name on the command line and in the names of workers."""
        return self.called or self.role.value.replace("_", "-")

    def function(self) -> Callable[..., Awaitable[None]]:
        """Import and return the role's function."""
        module, _, attribute = self.entry.partition(":")
        function: Callable[..., Awaitable[None]] = getattr(
            importlib.import_module(module), attribute
        )
        return function


ROLES: Mapping[str, RoleSpec] = {
    spec.name: spec
    for spec in (
        RoleSpec(
            role=Role.LEARNER,
            section="learner",
            entry="learner.trainer:run",
            extras=("codec", "observe"),
        ),
        RoleSpec(
            role=Role.INFERENCE, section="inference", entry="inference.worker:run", counted=True
        ),
        RoleSpec(role=Role.REFRESH, section="refresh", entry="inference.refresh:run"),
        RoleSpec(role=Role.TASK_SOURCE, section="task_source", entry="stream_jobs.task_source:run"),
        RoleSpec(
            role=Role.SCHEDULER,
            section="scheduler",
            entry="stream_jobs.scheduler:run",
            counted=True,
            extras=("codec",),
        ),
        RoleSpec(
            role=Role.ENVIRONMENT,
            section="environment",
            entry="environments.worker:run",
            counted=True,
            extras=("codec",),
        ),
        RoleSpec(
            role=Role.VERIFIER,
            section="verifier",
            entry="verifier.worker:run",
            counted=True,
            extras=("codec",),
        ),
        RoleSpec(
            role=Role.ASSEMBLER,
            section="assembler",
            entry="stream_jobs.assembler:run",
            counted=True,
            extras=("codec",),
        ),
        RoleSpec(
            role=Role.GATE,
            section="gate",
            entry="stream_jobs.gate:run",
            counted=True,
            extras=("codec",),
        ),
        RoleSpec(
            role=Role.LAG_AGE,
            section="lag_age",
            entry="stream_jobs.lag_age:run",
            extras=("codec", "bootstrap", "prefix"),
        ),
        RoleSpec(
            role=Role.SINK,
            section="sink",
            entry="stream_jobs.sink:run",
            extras=("codec", "migrations", "pages"),
        ),
        RoleSpec(
            role=Role.SINK,
            called="tracer",
            section="tracing",
            entry="infra.tracing.tracer:run",
            extras=("instruments", "folder"),
            wanted_by="endpoint",
        ),
    )
}


def spec_of(name: str) -> RoleSpec:
    """Return a role by its name; raise SettingsError when there is no such role."""
    spec = ROLES.get(name.replace("_", "-"))
    if spec is None:
        raise SettingsError(f"no role {name!r}", hint=f"one of {', '.join(ROLES)}")
    return spec


def count_of(spec: RoleSpec, settings: Any) -> int:
    """Return how many processes of a role the settings ask for."""
    if spec.wanted_by and not getattr(getattr(settings, spec.section), spec.wanted_by):
        return 0
    return int(getattr(settings.processes, spec.section)) if spec.counted else 1

"""Builders of Task records for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from environments import registry
from schemas.enums import Purpose
from schemas.ids import RunId, WorkerId, group_id, task_id
from schemas.records.task import Task

RUN = RunId("run-1")


def task_of(name: str, payload: str | None = None, *, ordinal: int = 0, **changes: Any) -> Task:
    """Return the Task record that a task source would write for a package."""
    package = registry.load(name)
    defaults = package.defaults
    task = Task(
        run_id=RUN,
        task_id=task_id(RUN, ordinal),
        group_id=group_id(RUN, ordinal),
        ordinal=ordinal,
        purpose=Purpose.TRAIN,
        environment=name,
        environment_digest=package.digest(),
        verifier_digest=package.verifier_digest(),
        payload=package.payload(None, 1, ordinal) if payload is None else payload,
        tokens_max=defaults.tokens_max,
        turn_tokens_max=defaults.turn_tokens_max,
        turns_max=defaults.turns_max,
        seconds_max=defaults.seconds_max,
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
        at_us=1,
        writer_id=WorkerId("task-source-1"),
    )
    return replace(task, **changes)

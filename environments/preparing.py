"""From a lease to what its attempt starts with, or the reason why it cannot."""

from __future__ import annotations

from environments import registry
from environments.lease_facts import Lease, Start
from schemas.codec import Codec
from schemas.errors import SluiceError
from schemas.topics import TASKS


def prepare(lease: Lease, codec: Codec) -> Start | str:
    """Return the task and its environment, or a sentence that says why there are none.

    Whatever a task package raises when it builds its environment is such a reason, not our end.
    """
    try:
        task = codec.decode(TASKS, lease.task_frame)
        package = registry.load(task.environment)
        return Start(lease=lease, task=task, environment=package.environment(task))
    except SluiceError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  a task's own code may raise anything
        return f"{type(error).__name__}: {error}"

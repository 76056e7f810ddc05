"""Identifiers as distinct types, and the one place where they are derived.

Task, group and episode ids derive from (run, stream ordinal, member), so that issuing the same work
twice names it the same and the first Issued of an id counts (design section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

RunId = NewType("RunId", str)
TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", str)
EpisodeId = NewType("EpisodeId", str)
WorkerId = NewType("WorkerId", str)

_FIRST_EPOCH = 0


def task_id(run: RunId, ordinal: int) -> TaskId:
    """Return the id of the task at a stream ordinal."""
    return TaskId(f"{run}.{ordinal}")


def group_id(run: RunId, ordinal: int) -> GroupId:
    """Return the id of the group of rollouts of a task."""
    return GroupId(f"{run}.{ordinal}.g")


def episode_id(run: RunId, ordinal: int, member: int) -> EpisodeId:
    """Return the id of one rollout of a group."""
    return EpisodeId(f"{run}.{ordinal}.{member}")


def group_of_episode(episode: EpisodeId) -> GroupId:
    """Return the group of an episode id; raise ValueError when the text is not an episode id."""
    head, _, member = episode.rpartition(".")
    if not head or not member.isdigit():
        raise ValueError(f"not an episode id: {episode!r}; expected RUN.ORDINAL.MEMBER")
    return GroupId(f"{head}.g")


def run_of_episode(episode: EpisodeId) -> RunId:
    """Return the run of an episode id; raise ValueError when the text is not an episode id."""
    parts = episode.rsplit(".", 2)
    if len(parts) != 3 or not (parts[0] and parts[1].isdigit() and parts[2].isdigit()):
        raise ValueError(f"not an episode id: {episode!r}; expected RUN.ORDINAL.MEMBER")
    return RunId(parts[0])


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A policy version: (epoch, number). "latest" is not a version, and neither is anything mutable
    (rules V7, V8).
    """

    epoch: int
    number: int

    def __post_init__(self) -> None:
        if self.epoch < _FIRST_EPOCH or self.number < 0:
            raise ValueError(
                f"not a policy version: {self.epoch}/{self.number}; both must be 0 or more"
            )

    def __str__(self) -> str:
        return f"{self.epoch}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `epoch/number`; raise ValueError for anything else, mutable names such as "latest"
        included.
        """
        epoch, _, number = text.partition("/")
        if not (epoch.isdigit() and number.isdigit()):
            raise ValueError(
                f"not a policy version: {text!r}; expected EPOCH/NUMBER, never a mutable name"
            )
        return cls(int(epoch), int(number))

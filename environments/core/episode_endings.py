"""How an attempt ends, and the check that an event fits its phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from environments.core.episode_commands import AskVerdict, Command, LetGo, WriteEnded
from environments.core.episode_events import Event
from environments.core.episode_state import Episode, Phase
from environments.ports import Done
from schemas.enums import StopCause
from schemas.errors import InvariantError

Next: TypeAlias = tuple[Episode, Command | None]
"""The episode after an event, and the command that follows from it."""


def must_be(episode: Episode, event: Event, allowed: bool) -> None:
    """Raise InvariantError unless the phase allows the event."""
    if not allowed:
        raise InvariantError(
            f"episode {episode.episode_id}: {type(event).__name__} in phase {episode.phase}",
            hint="the shell reported an event that it was not asked for",
        )


def finish(episode: Episode, done: Done) -> Next:
    """Return the way to the end: by a verdict, unless the attempt is retried or cancelled.

    An end that cannot be written is no end: the lease runs out instead.
    """
    if episode.phase in (Phase.ENDING, Phase.PAUSING):
        return let_go(episode, done.detail)
    ended = replace(episode, done=done)
    if done.cause.is_retried or done.cause is StopCause.USER_CANCEL:
        return replace(ended, phase=Phase.ENDING), WriteEnded(done=done)
    return replace(ended, phase=Phase.JUDGING), AskVerdict(done=done)


def let_go(episode: Episode, reason: str) -> Next:
    """Return the attempt as over, with nothing more to write."""
    return replace(episode, phase=Phase.OVER), LetGo(reason=reason)

"""How the rules of WAL, tools and environments are left out; `mutants.py` names each rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import environments.core.episode
import environments.core.episode_tools
import inference.refresh
import inference.wal_writer
from environments.core.episode_commands import FenceTools, OpenSession
from environments.core.episode_events import SessionOpened, ToolsFenced
from environments.core.tool_calls import Run
from environments.core.tool_calls import plan as plan_of_call
from environments.hands import Hands
from inference.release import DurableTokens
from inference.wal_reading import Prefix
from inference.wal_stream import EpisodeStream
from schemas.ports import Acked, Unknown
from schemas.rules.episodes import EpisodeLife
from schemas.rules.wal import EpisodeWal, Verdict
from tests.simulation import rollout


async def no_fence_read(_: Any, *, fence: Any, fence_offset: int, **__: Any) -> Prefix:
    await asyncio.sleep(0.001)
    wal = EpisodeWal()
    wal.take(fence_offset, fence)
    return Prefix(wal=wal, delivered={}, fence_offset=fence_offset, verdict=Verdict.CURRENT)


def expose_before_ack(self: Any, entry: Any) -> None:
    shown, entry.on_durable = entry.on_durable, None
    _ADD(self, entry)
    if shown is not None:
        guess = max(self.last_offset, self.fence_offset) + 1
        shown(
            DurableTokens(entry.record, Acked(self.identity.partition, guess), entry.record.count)
        )


_ADD = EpisodeStream._add


def takes_a_number(self: Any, why: str) -> None:
    """Fence anew under a number of its own and write what is owed again."""
    if self.broken is not None or getattr(self._writer, "took", 0) > 3:
        _LOSE(self, why)
        return
    self._writer.took = getattr(self._writer, "took", 0) + 1
    asyncio.get_running_loop().create_task(fences_itself(self))


_LOSE = EpisodeStream._lose


async def fences_itself(stream: Any) -> None:
    await asyncio.sleep(0.05)
    line = rollout.NOW[0].watch.lines.get(stream.identity.episode_id)
    highest = line.fence[1] if line is not None else 0
    stream.identity = replace(
        stream.identity,
        fence_number=highest + 1,
        producer_number=stream._writer.producer_number,
    )
    stream._writer.offer(stream._writer._fence(stream.identity))
    owed = [*stream._unsettled, *stream._unoffered]
    stream._unsettled.clear()
    stream._unoffered.clear()
    for seq, entry in enumerate(owed):
        identity = stream.identity
        entry.acked = None
        entry.record = replace(
            entry.record,
            seq=seq,
            fence_number=identity.fence_number,
            producer_number=identity.producer_number,
        )
        stream._unoffered.append(entry)
    stream._next_seq = len(owed)
    stream._offer()


def closes_nobody(self: Any, why: str) -> None:  # noqa: ARG001  the streams go on
    if self._renewal is None or self._renewal.done():
        self._renewal = asyncio.get_running_loop().create_task(self._context.producer.renew())


def put_takes_a_number(stack: ExitStack) -> None:
    stack.enter_context(mock.patch.object(EpisodeStream, "_lose", takes_a_number))
    writer = inference.wal_writer.WalWriter
    stack.enter_context(mock.patch.object(writer, "unknown", closes_nobody))
    # What an answer says is the number that the environment asked for, as a liar would.
    answers = mock.patch.object(environments.core.episode, "_is_refused", return_value=None)
    stack.enter_context(answers)


async def wal_first(self: Any, episode: Any, command: Any) -> Any:
    if isinstance(command, FenceTools):
        return ToolsFenced(offset=-1)
    event = await _OBEY(self, episode, command)
    is_first = isinstance(command, OpenSession) and not episode.is_built and episode.attempt > 1
    if is_first and isinstance(event, SessionOpened):
        # A slow broker: between the two fences an earlier attempt still may write to one log.
        await asyncio.sleep(1.0)
        _, self._turns.log = await self._tools.fence()
        return replace(event, recorded=self._turns.log.calls)
    return event


_OBEY = Hands.obey


async def clear(*_: Any, **__: Any) -> bool:
    await asyncio.sleep(0)
    return True


def produces_again(self: Any, entry: Any, pending: Any) -> None:
    if isinstance(pending.result(), Unknown) and self.broken is None:
        again = self._writer.offer(entry.record)
        again.add_done_callback(lambda done: _SETTLE(self, entry, done))
        return
    _SETTLE(self, entry, pending)


_SETTLE = EpisodeStream._settle


def any_fence(self: Any, offset: int, commit: Any) -> Verdict:
    self._attempt = self._number = -1
    return _TAKE_FENCE(self, offset, commit)


_TAKE_FENCE = EpisodeWal._take_fence


def any_lease(self: Any, mark: Any) -> bool:
    self.attempt = min(self.attempt, mark.event.attempt - 1)
    return _BEGIN_LEASE(self, mark)


_BEGIN_LEASE = EpisodeLife._begin_lease


def any_process(self: Any, leased: Any) -> bool:
    return bool(leased.worker_id == self._worker_id)


def forgets_attempts(self: Any, leased: Any) -> bool:
    return bool(self._is_ours(leased))


def runs_again(asked: type[Any]) -> Callable[..., Any]:
    def plan(tool: Any, recorded: Any) -> Any:
        found = _PLAN(tool, recorded)
        return Run(again=True) if isinstance(found, asked) else found

    return plan


_PLAN = plan_of_call

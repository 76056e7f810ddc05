"""The life of one attempt at an episode, as a pure function: `step(episode, event)`.

Invariants:
- The environment alone names fence numbers: 1 first, higher when it turns to another worker or is
  told `refence`. An answer under a lower pair (attempt, fence number) than it asked for is refused.
- A new attempt fences the tool log before it opens a gateway session, and rebuilds the environment
  from the accepted prefix alone: finished turns and recorded Results are replayed, never run.
- Intent before tool, Result before the model sees it, VerifyRequest before Ended.
- Once the lease is lost nothing is written.

An event that the phase does not allow raises InvariantError and leaves the episode as it was.
"""

from __future__ import annotations

from dataclasses import replace

from environments.core.episode_commands import (
    ActOn,
    AskGateway,
    FenceTools,
    Interrupt,
    OpenSession,
    ResetEnvironment,
    WriteEnded,
    WritePaused,
)
from environments.core.episode_endings import Next, finish, let_go, must_be
from environments.core.episode_events import (
    Begun,
    Broke,
    EndedWritten,
    EnvironmentReset,
    Event,
    GatewayLost,
    Interrupted,
    LeaseLost,
    PauseAsked,
    Refenced,
    Replied,
    SessionOpened,
    Stepped,
    ToolsFenced,
    VerdictAsked,
)
from environments.core.episode_state import Episode, Phase
from environments.core.episode_tools import at_tool, next_call
from environments.core.tool_text import read_reply
from environments.ports import CallTools, Continue, Done, Reply
from schemas.enums import StopCause
from schemas.errors import InvariantError


def step(episode: Episode, event: Event) -> Next:
    """Return the episode after an event, and the command that follows from it."""
    if episode.phase is Phase.OVER:
        # What was in flight when the attempt ended may still report.
        return episode, None
    match event:
        case LeaseLost(reason=reason):
            return let_go(episode, reason)
        case PauseAsked(at_once=at_once):
            asked = replace(episode, pause_asked=True)
            drops = at_once and episode.phase.can_be_interrupted
            return asked, Interrupt() if drops else None
        case Interrupted():
            must_be(episode, event, episode.phase.can_be_interrupted)
            return replace(episode, phase=Phase.PAUSING), WritePaused()
        case Broke(cause=cause, detail=detail):
            return finish(episode, Done(cause=cause, detail=detail))
        case Begun() | ToolsFenced() | SessionOpened() | Refenced() | GatewayLost() | Replied():
            return _at_gateway(episode, event)
        case EnvironmentReset() | Stepped() | VerdictAsked() | EndedWritten():
            return _at_environment(episode, event)
        case _:
            return at_tool(episode, event)


def _at_gateway(
    episode: Episode,
    event: Begun | ToolsFenced | SessionOpened | Refenced | GatewayLost | Replied,
) -> Next:
    phase = episode.phase
    match event:
        case Begun(now_ms=now_ms):
            must_be(episode, event, phase is Phase.LEASED)
            begun = replace(episode, began_ms=now_ms)
            if episode.attempt > 1:
                return replace(begun, phase=Phase.FENCING), FenceTools()
            return _open(begun, 1, first=True)
        case ToolsFenced(offset=offset):
            must_be(episode, event, phase is Phase.FENCING)
            return _open(replace(episode, tool_position=offset), 1)
        case SessionOpened():
            must_be(episode, event, phase is Phase.OPENING)
            return _opened(episode, event)
        case Refenced(highest=highest):
            must_be(episode, event, phase.is_at_gateway)
            return _open(episode, max(episode.fence_number, highest) + 1)
        case GatewayLost():
            must_be(episode, event, phase.is_at_gateway)
            return _open(episode, episode.fence_number + 1)
        case Replied():
            must_be(episode, event, phase is Phase.ASKING)
            return _replied(episode, event)


def _open(episode: Episode, fence_number: int, *, first: bool = False) -> Next:
    opening = replace(episode, phase=Phase.OPENING, fence_number=fence_number)
    return opening, OpenSession(fence_number=fence_number, first=first)


def _is_refused(episode: Episode, event: SessionOpened | Replied) -> Next | None:
    """Return what follows when the answer's pair is not the one asked for, else None."""
    asked = (episode.attempt, episode.fence_number)
    if (event.attempt, event.fence_number) == asked:
        return None
    if event.attempt > episode.attempt:
        reason = f"attempt {event.attempt} owns the WAL"
        return let_go(episode, reason)
    return _open(episode, max(episode.fence_number, event.fence_number) + 1)


def _opened(episode: Episode, event: SessionOpened) -> Next:
    if (refused := _is_refused(episode, event)) is not None:
        return refused
    fenced = replace(
        episode,
        wal_position=max(episode.wal_position, event.position),
        length=event.length,
    )
    if not episode.is_built:
        known = replace(fenced, past=event.turns, recorded=event.recorded)
        return replace(known, phase=Phase.RESETTING), ResetEnvironment()
    if len(event.turns) < episode.turns:
        detail = f"the accepted prefix holds {len(event.turns)} of {episode.turns} turns acted upon"
        return finish(fenced, Done(cause=StopCause.INFRASTRUCTURE_ERROR, detail=detail))
    return _ask(fenced)


def _replied(episode: Episode, event: Replied) -> Next:
    if (refused := _is_refused(episode, event)) is not None:
        return refused
    durable = replace(
        episode,
        wal_position=max(episode.wal_position, event.position),
        length=event.length,
        branch=event.branch,
    )
    return _take_reply(durable, event.reply.tokens, ActOn(reply=event.reply))


def _take_reply(episode: Episode, tokens: int, command: ActOn) -> Next:
    taken = replace(
        episode,
        phase=Phase.ACTING,
        messages=(*episode.messages, command.reply.message),
        turns=episode.turns + 1,
        tokens=episode.tokens + tokens,
        result_offsets=(),
    )
    return taken, command


def _at_environment(
    episode: Episode, event: EnvironmentReset | Stepped | VerdictAsked | EndedWritten
) -> Next:
    phase = episode.phase
    match event:
        case EnvironmentReset(opening=opening, now_ms=now_ms):
            must_be(episode, event, phase is Phase.RESETTING)
            built = replace(episode, is_built=True, messages=opening.messages, tools=opening.tools)
            return _next_turn(built, now_ms)
        case Stepped(step=Continue(messages=messages), now_ms=now_ms):
            must_be(episode, event, phase in (Phase.ACTING, Phase.OBSERVING))
            return _next_turn(replace(episode, messages=(*episode.messages, *messages)), now_ms)
        case Stepped(step=CallTools(calls=calls)):
            must_be(episode, event, phase is Phase.ACTING and bool(calls))
            return next_call(replace(episode, calls=calls, outputs=()))
        case Stepped(step=Done() as done):
            must_be(episode, event, phase in (Phase.ACTING, Phase.OBSERVING))
            return finish(episode, done)
        case VerdictAsked():
            must_be(episode, event, phase is Phase.JUDGING and episode.done is not None)
            assert episode.done is not None
            return replace(episode, phase=Phase.ENDING), WriteEnded(done=episode.done)
        case EndedWritten():
            must_be(episode, event, phase in (Phase.ENDING, Phase.PAUSING))
            return replace(episode, phase=Phase.OVER), None
        case _:
            raise InvariantError(f"episode {episode.episode_id}: {event!r} in phase {phase}")


def _next_turn(episode: Episode, now_ms: int) -> Next:
    budgets = episode.budgets
    if 0 < budgets.turns_max <= episode.turns:
        return _truncate(episode, f"{episode.turns} turns")
    if 0 < budgets.tokens_max <= episode.tokens:
        return _truncate(episode, f"{episode.tokens} action tokens")
    if episode.past:
        turn, *rest = episode.past
        replayed = replace(episode, past=tuple(rest), branch=turn.branch)
        reply = _as_handed_out(episode, turn.reply)
        return _take_reply(replayed, reply.tokens, ActOn(reply=reply))
    if 0 < budgets.seconds_max * 1000 <= now_ms - episode.began_ms:
        return _truncate(episode, f"{budgets.seconds_max} s of wall clock")
    return _ask(episode)


def _as_handed_out(episode: Episode, reply: Reply) -> Reply:
    """Return a replayed reply with its calls read, as the gateway did when tools were announced."""
    if not any(tool.announced for tool in episode.tools):
        return reply
    text, calls = read_reply(reply.text)
    return replace(reply, text=text, tool_calls=calls)


def _truncate(episode: Episode, budget: str) -> Next:
    done = Done(cause=StopCause.BUDGET_TRUNCATION, detail=f"the budget is spent: {budget}")
    return finish(episode, done)


def _ask(episode: Episode) -> Next:
    if episode.pause_asked:
        return replace(episode, phase=Phase.PAUSING), WritePaused()
    bounds = [
        bound
        for bound, is_set in (
            (episode.budgets.turn_tokens_max, episode.budgets.turn_tokens_max > 0),
            (episode.budgets.tokens_max - episode.tokens, episode.budgets.tokens_max > 0),
        )
        if is_set
    ]
    command = AskGateway(
        turn=episode.turns,
        branch=episode.branch,
        fence_number=episode.fence_number,
        messages=episode.messages,
        tools=episode.tools,
        max_tokens=min(bounds, default=0),
        result_offsets=episode.result_offsets,
    )
    return replace(episode, phase=Phase.ASKING), command

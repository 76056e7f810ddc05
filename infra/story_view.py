"""How `sluice replay` prints a story for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.story import Commit
from schemas.rules.wal import Verdict

if TYPE_CHECKING:
    from infra.replay import Story

_TOKENS_SHOWN = 400


def print_story(
    story: Story, texts: Mapping[int, tuple[str, ...]], *, console: Console | None = None
) -> None:
    """Print what happened in the order of time, the tokens by commit, and how it ended."""
    out = console or Console(soft_wrap=True)
    out.print(escape(f"{story.episode_id}  group {story.group_id}  partition {story.partition}"))
    if story.task is not None:
        out.print(escape(f"task: {story.task.environment} {story.task.payload[:200]}"))
    out.print(_timeline(story))
    for commit in story.commits:
        if commit.record.kind.carries_tokens:
            out.print(escape(_tokens(commit, texts.get(commit.offset))))
    for line in _endings(story):
        out.print(escape(line))


def _timeline(story: Story) -> Table:
    table = Table("ms", "record", "kind", "", "what")
    begin = story.moments[0].timestamp_ms
    for moment in story.moments:
        table.add_row(
            str(moment.timestamp_ms - begin),
            f"{moment.topic}@{moment.offset}",
            moment.kind,
            "" if moment.counts else "superseded",
            escape(moment.what),
        )
    return table


def _tokens(commit: Commit, texts: tuple[str, ...] | None) -> str:
    record = commit.record
    mark = "" if commit.verdict is Verdict.ACCEPTED else f" [{commit.verdict}]"
    versions = ", ".join(str(span.version) for span in commit.spans)
    head = f"{record.kind} turn {record.turn} tokens {record.start}+{record.count}{mark}"
    if versions:
        mean = sum(commit.logprobs) / max(1, len(commit.logprobs))
        head += f" version {versions}, mean log-prob {mean:.3f}"
    if texts is not None:
        return f"{head}\n  {''.join(texts)}"
    return f"{head}\n  {' '.join(map(str, commit.token_ids[:_TOKENS_SHOWN]))}"


def _endings(story: Story) -> list[str]:
    wal: Any = story.wal
    lines = [
        f"tokens: {wal.accepted_tokens} on the main line ({wal.accepted_action_tokens} sampled), "
        f"{wal.sibling_tokens} on sibling branches, {wal.superseded_tokens} superseded, "
        f"{wal.undecodable_tokens} undecodable"
    ]
    if story.verdict is not None:
        lines.append(f"verdict: {story.verdict.code}, reward {story.verdict.reward}")
    if story.decision is not None:
        told = [
            f"{m.outcome} {m.reason} at lag {m.lag_steps}, age {m.age_ms} ms"
            for m in story.decision.members
            if m.episode_id == story.episode_id
        ]
        lines.append(f"gate: {told[0] if told else 'not among the members'}")
    if story.skipped:
        lines.append(f"the learner discarded it: {story.skipped}")
    if story.step is not None:
        state = "survives" if story.survives else "provisional"
        lines.append(
            f"trained by step {story.step.epoch}/{story.step.number}, "
            f"ordinal {story.step.ordinal} ({state})"
        )
    elif story.life.abandoned is not None:
        lines.append(f"abandoned: {story.life.abandoned.abandon_reason}")
    return lines

"""How `sluice replay` prints a story for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.story import Commit
from infra.story_tokens import Standing, standings, timing_of, token_rows
from schemas.enums import DropReason
from schemas.records.parts import MemberDecision
from schemas.rules.wal import Verdict

if TYPE_CHECKING:
    from infra.replay import Story

_TOKENS_SHOWN = 400


def print_story(
    story: Story,
    texts: Mapping[int, tuple[str, ...]],
    *,
    console: Console | None = None,
    each_token: bool = False,
) -> None:
    """Print what happened in the order of time, the tokens by commit, and how it ended."""
    out = console or Console(soft_wrap=True)
    out.print(escape(f"{story.episode_id}  group {story.group_id}  partition {story.partition}"))
    if story.task is not None:
        out.print(escape(f"task: {story.task.environment} {story.task.payload[:200]}"))
    out.print(_timeline(story))
    stands = standings(story.commits)
    for commit in story.commits:
        if commit.record.kind.carries_tokens:
            out.print(escape(_tokens(commit, stands[commit.offset], texts.get(commit.offset))))
    if each_token:
        out.print(_each_token(story, stands, texts))
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


def _each_token(
    story: Story, stands: Mapping[int, Sequence[Standing]], texts: Mapping[int, tuple[str, ...]]
) -> Table:
    table = Table()
    for name in ("token", "id", "text", "log-prob", "version", "kind", "stands", "ms", "WAL"):
        table.add_column(name, overflow="fold")
    begin = story.moments[0].timestamp_ms
    for commit in story.commits:
        for row in token_rows(commit, stands[commit.offset], texts.get(commit.offset)):
            table.add_row(
                str(row["index"]),
                str(row["id"]),
                escape("" if row["text"] is None else repr(row["text"])),
                "" if row["logprob"] is None else f"{row['logprob']:.4f}",
                row["version"] or "",
                row["kind"],
                row["stands"],
                str(row["committed_ms"] - begin),
                str(row["offset"]),
            )
    return table


def _tokens(commit: Commit, stands: Sequence[Standing], texts: tuple[str, ...] | None) -> str:
    record = commit.record
    mark = "" if commit.verdict is Verdict.ACCEPTED else f" [{commit.verdict}]"
    if not mark:
        taken = Counter(one.value for one in stands if one is not Standing.MAIN)
        mark = "".join(f" [{n} {name}]" for name, n in sorted(taken.items()))
    versions = ", ".join(str(span.version) for span in commit.spans)
    head = f"{record.kind} turn {record.turn} tokens {record.start}+{record.count}{mark}"
    if versions:
        mean = sum(commit.logprobs) / max(1, len(commit.logprobs))
        head += f" version {versions}, mean log-prob {mean:.3f}"
    timing = timing_of(commit)
    if timing is not None and record.finish_reason != "none":
        head += f", {timing['prefilled_tokens']} prefilled, {timing['reused_tokens']} reused"
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
            f"{m.outcome}{_why(m)} at lag {m.lag_steps}, age {m.age_ms} ms"
            for m in story.decision.members
            if m.episode_id == story.episode_id
        ]
        lines.append(f"gate: {told[0] if told else 'not among the members'}")
    if story.skipped:
        lines.append(f"the learner discarded it: {story.skipped}")
    for ref in story.rolled_back:
        lines.append(f"trained by step {ref.epoch}/{ref.number} too, which a restore rolled back")
    if story.step is not None:
        state = "survives" if story.survives else "provisional"
        lines.append(
            f"trained by step {story.step.epoch}/{story.step.number}, "
            f"ordinal {story.step.ordinal} ({state})"
        )
    elif story.life.abandoned is not None:
        lines.append(f"abandoned: {story.life.abandoned.abandon_reason}")
        lines += [f"  {one}" for one in story.life.abandoned.detail.split("; ") if one]
    return lines


def _why(member: MemberDecision) -> str:
    return "" if member.reason is DropReason.NONE else f" ({member.reason})"

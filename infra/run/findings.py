"""What the tables of a run say for its report, asked in a process of its own.

The embedded ClickHouse stays in a process for good and must not be in one that forks later, so that
`python -m infra.run.findings FOLDER RUN_ID` asks, and prints JSON. A question that is not answered
leaves a reason in its place: a report is written whatever has become of the tables.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from infra.run.asking import asking
from infra.run.folder import RunFolder
from schemas.errors import Boundary, RejectedError, SluiceError

LIMIT_S = 300.0
"""All questions of a report together."""
_REASON_MAX = 200
_WHOLE = frozenset(
    f"{nullable}{sign}Int64{end}"
    for sign in ("U", "")
    for nullable, end in (("", ""), ("Nullable(", ")"))
)
_LEVELS = ", ".join(str(percent / 100) for percent in range(101))
Row: TypeAlias = Mapping[str, Any]

QUESTIONS: Mapping[str, str] = {
    "throughput": "SELECT * FROM throughput WHERE run_id = {run_id:String}",
    "stages": """SELECT stage, busy_s, workers FROM stage_busy WHERE run_id = {run_id:String}
        ORDER BY busy_s DESC""",
    "waits": """SELECT kind, cause, spent_s FROM wait_totals WHERE run_id = {run_id:String}
        ORDER BY kind, spent_s DESC, cause""",
    "wait_check": "SELECT * FROM wait_check WHERE run_id = {run_id:String}",
    "held_out": """SELECT e.environment AS environment, e.epoch AS epoch, e.number AS number,
        if(p.run_id = '', NULL, p.ordinal) AS ordinal, e.successes AS successes, e.n AS n,
        e.reward_mean AS reward_mean
        FROM (
          SELECT * FROM evaluation_by_version
          WHERE run_id = {run_id:String} AND purpose = 'evaluate'
        ) AS e
        LEFT JOIN (
          SELECT DISTINCT run_id, epoch, number, ordinal FROM policies
          WHERE run_id = {run_id:String}
        ) AS p ON e.epoch = p.epoch AND e.number = p.number
        ORDER BY environment, epoch, number""",
    "lag_buckets": """SELECT * FROM policy_lag_by_bucket WHERE run_id = {run_id:String}
        ORDER BY place""",
    # What a restore rolled back is no step of the run.
    "ratios": """SELECT ordinal, bucket, ratio_p50, ratio_p95, ratio_p99, tokens,
        effective_sample_tokens FROM ratio_by_lag_bucket
        WHERE run_id = {run_id:String} AND (ordinal, epoch) IN (
          SELECT ordinal, epoch FROM steps_counted WHERE run_id = {run_id:String}
        ) ORDER BY ordinal""",
    "lengths": """SELECT * FROM selection_by_length WHERE run_id = {run_id:String}
        ORDER BY part""",
    "length_curves": f"""SELECT count() AS offered, countIf(is_trained) AS trained,
        quantilesExact({_LEVELS})(toFloat64(action_tokens)) AS offered_tokens,
        quantilesExactIf({_LEVELS})(toFloat64(action_tokens), is_trained) AS trained_tokens
        FROM settled_lengths WHERE run_id = {{run_id:String}}""",
    "retries": """SELECT cause, n FROM retries_by_cause WHERE run_id = {run_id:String}
        ORDER BY n DESC, cause""",
    "tasks": """SELECT stream, environment, environment_digest, verifier_digest, count() AS n
        FROM tasks WHERE run_id = {run_id:String}
        GROUP BY stream, environment, environment_digest, verifier_digest ORDER BY ALL""",
    "first_policy": """SELECT digest, tokenizer_digest, template_digest, `precision` FROM policies
        WHERE run_id = {run_id:String} ORDER BY ordinal, epoch LIMIT 1""",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Answers by question; a question has rows or a reason why it has none."""

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def of(self, *names: str) -> tuple[Sequence[Row], ...]:
        """Return the rows of some questions. Raises RejectedError with the reason of the first that
        was not answered.
        """
        for name in names:
            if name not in self.rows:
                reason = self.reasons.get(name, "they were not asked")
                raise RejectedError(reason, boundary=Boundary.STORE, hint="`sluice sql` asks them")
        return tuple(self.rows[name] for name in names)


def nothing(reason: str) -> Findings:
    """Return that no question was answered."""
    return Findings(reasons=dict.fromkeys(QUESTIONS, reason))


def gather(ask: Callable[[str, Mapping[str, str]], bytes], run_id: str) -> Findings:
    """Ask every question; what fails is a reason."""
    rows: dict[str, Sequence[Row]] = {}
    reasons: dict[str, str] = {}
    for name, statement in QUESTIONS.items():
        try:
            rows[name] = read_rows(ask(statement, {"run_id": run_id}))
        except SluiceError as error:
            reasons[name] = (
                "they were made by another version of Sluice"
                if "UNKNOWN_TABLE" in error.message
                else _short(error.message)
            )
    return Findings(rows=rows, reasons=reasons)


def read_rows(answer: bytes) -> list[Row]:
    """Return the rows of an answer in ClickHouse's JSON, whose 64-bit numbers may be texts."""
    told = orjson.loads(answer)
    whole = [one["name"] for one in told["meta"] if one["type"] in _WHOLE]
    return [
        row | {name: int(row[name]) for name in whole if row[name] is not None}
        for row in told["data"]
    ]


def find_out(folder: RunFolder, run_id: str) -> Findings:
    """Ask the tables of a run in a process of its own; never fails, takes `LIMIT_S` at most."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(folder.root.absolute()), run_id],
            cwd=Path(__file__).resolve().parents[2], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            return nothing(f"the process that asks them ended with {done.returncode}")
        told = orjson.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return nothing(f"they did not answer within {LIMIT_S:.0f} s")
    except (OSError, ValueError) as error:
        return nothing(_short(f"what asks them failed: {error}"))
    return Findings(rows=told["rows"], reasons=told["reasons"])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_MAX else f"{line[:_REASON_MAX]}..."


def main(folder: RunFolder, run_id: str) -> None:
    """Print the findings as JSON."""
    try:
        with asking(folder) as ask:
            found = gather(ask, run_id)
    except SluiceError as error:
        # A report is shown to others, whom a path on this machine tells nothing.
        found = nothing(_short(error.message.replace(str(folder.root), "the run")))
    told = {"rows": found.rows, "reasons": found.reasons}
    sys.stdout.buffer.write(orjson.dumps(told))


if __name__ == "__main__":
    main(RunFolder(root=Path(sys.argv[1])), sys.argv[2])

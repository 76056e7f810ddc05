"""A long run as rows: tables filled inside ClickHouse, for queries to be measured on.

Every figure of an episode is a function of its number, so that the same size gives the same rows.
An episode has `ROWS_PER_EPISODE` rows on average, most of them commits; lengths of time have heavy
tails. Groups of eight, four environments, four workers a role, twelve partitions; 500 rows a second
decide how long the run lasted. What is rare is there too: skipped, dropped and abandoned episodes,
letters, numbers that are not finite. Written are rows alone: minutes are for the sink's own
statements to make.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.row_fills import Fill, chance, fine, moment, pick, tail
from schemas.ids import RunId

RUN = RunId("0190a0b0-1234-7abc-8def-0123456789ab")
ROWS_PER_EPISODE = 77.4
_ROWS_PER_S = 500
_T0_MS = 1_764_442_000_000
_GROUP = 8
_BATCH = 256
"""Trajectories of an update."""
_CHUNK = 20_000
"""Episodes of one insert."""


def fills(rows: int) -> Iterator[Fill]:
    """Yield the inserts of a run of about so many rows, in portions that fit memory."""
    episodes = max(_BATCH, round(rows / ROWS_PER_EPISODE) // _GROUP * _GROUP)
    run = _Run(episodes=episodes, lasted_ms=rows * 1000 // _ROWS_PER_S)
    for first in range(0, episodes, _CHUNK):
        yield from run.of_episodes(first, min(_CHUNK, episodes - first))
    yield from run.of_updates()
    yield from run.of_workers()
    yield from run.of_rare()


_PARTITION = "intDiv(e, 8) % 12"
_ENVIRONMENT = pick(("countdown", "search", "shell", "web"), "intDiv(e, 8) % 7")
_HOST = "concat('environment-', toString(e % 4))"
_INFERENCE = "concat('inference-', toString(e % 4))"
_TASK = f"concat('{RUN}.', toString(intDiv(e, 8)))"
_OUTCOME = "cityHash64(e, 99) % 100"
"""Below 85 trained, below 87 skipped, below 93 dropped, below 96 pending, else abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    episodes: int
    lasted_ms: int

    @property
    def updates(self) -> int:
        return max(1, self.episodes // _BATCH)

    def _head(
        self, topic: str, at: str, offset: str, partition: str = _PARTITION
    ) -> dict[str, str]:
        return {
            "run_id": f"'{RUN}'", "ts": moment(at), "src_topic": f"'{topic}'",
            "src_partition": partition, "src_offset": offset,
        }  # fmt: skip

    def _timed(self, topic: str, at: str, offset: str, partition: str = "0") -> dict[str, str]:
        """Return the same with the writer's clock."""
        return self._head(topic, at, offset, partition) | {"at": fine(f"({at}) * 1000 - 4000")}

    def _ids(self) -> dict[str, str]:
        return {
            "episode_id": f"concat('{RUN}.', toString(intDiv(e, 8)), '.', toString(e % 8))",
            "group_id": f"concat('{RUN}.', toString(intDiv(e, 8)), '.g')",
        }

    def _began(self) -> str:
        return f"{_T0_MS} + intDiv(e * {self.lasted_ms}, {self.episodes})"

    def _ended(self) -> str:
        return f"{self._began()} + 500 * ({_COMMITS})"

    def of_episodes(self, first: int, count: int) -> Iterator[Fill]:
        """Yield what episodes leave behind."""
        some = f"(SELECT number AS e FROM numbers({first}, {count}))"
        yield self._commits(some)
        yield from self._events(some)
        yield from self._judged(some)
        yield from self._decided(some)
        yield self._points(some)

    def _commits(self, some: str) -> Fill:
        at = f"{self._began()} + 500 * i"
        action = "i > 0 AND i % 10 != 9"
        last = f"i % 10 = 8 OR (i = {_COMMITS} - 1 AND i % 10 NOT IN (0, 9))"
        begun = f"({at} - 500 * ((i % 10) + 1)) * 1000"
        gap = tail(300_000, 1, "e, i")
        columns = self._head("tokens.v1", at, "e * 100 + i") | self._ids() | {
            # Some writers' clocks are wild.
            "at": fine(f"({at}) * 1000 - {tail(4_000, 2, 'e, i')} "
                        "+ if(cityHash64(e, i, 3) % 100000 = 0, 9000000, 0)"),
            "attempt": "1", "fence_number": "1", "writer_id": _INFERENCE, "incarnation": "'i'",
            "kind": f"multiIf(i = 0, 'prompt', {action}, 'action', 'observation')",
            "turn": "intDiv(i, 10)", "seq": "i", "start": "i * 64", "count": "if(i = 0, 700, 64)",
            "finish_reason": f"multiIf(NOT ({action}), 'none', {last}, 'tool_calls', 'none')",
            "epoch": f"if({action}, 1, -1)", "number": f"if({action}, intDiv(e, {_BATCH}), -1)",
            "requested_at": fine(f"if({last}, {begun} - {gap}, 0)"),
            "first_token_at": fine(f"if({last}, {begun}, 0)"),
            "last_token_at": fine(f"if({last}, ({at}) * 1000 - 20000, 0)"),
            "prefilled_tokens": f"if({last}, 100, 0)",
            "reused_tokens": f"if({last}, toInt64(i * 64 - 512) * (i > 8), 0)",
        }  # fmt: skip
        return Fill(
            table="token_commits", columns=columns,
            source=f"(SELECT e, arrayJoin(range(toUInt64({_COMMITS}))) AS i FROM {some})",
        )  # fmt: skip

    def _events(self, some: str) -> Iterator[Fill]:
        began = self._began()
        at = (
            f"multiIf(p = 0, {began} - 900, p = 1, {began} - 400, p = 4, {self._ended()}, "
            f"{began} + 5000 * p)"
        )
        ended = "p = 4"
        yield Fill(
            table="episode_events",
            columns=self._head("episodes.v1", at, "e * 5 + p") | self._ids() | {
                "kind": "multiIf(p = 0, 'issued', p = 1, 'leased', p = 4, "
                f"if({_OUTCOME} >= 98, 'abandoned', 'ended'), 'progress')",
                "task_id": _TASK, "ordinal": "intDiv(e, 8)",
                "member": "e % 8", "purpose": f"if({_HELD_OUT}, 'evaluate', 'train')",
                "attempt": "if(p = 0, 0, 1)", "group_size": "8",
                "worker_id": "if(p = 1, concat('environment-', toString(e % 4)), '')",
                "writer_id": "if(p < 2, 'scheduler-0', concat('environment-', toString(e % 4)))",
                "abandon_reason": f"if({ended} AND {_OUTCOME} >= 98, 'retries_exhausted', 'none')",
                "stop_cause": f"multiIf(NOT ({ended}), 'none', {chance(5)} < 0.7, "
                "'policy_stop', 'budget_truncation')",
                "queue_us": f"if({ended}, {tail(12_000, 6)}, 0)",
                "reset_us": f"if({ended}, {tail(90_000, 7)}, 0)",
                "step_us": f"if({ended}, {tail(700_000, 8)}, 0)",
            },
            source=f"(SELECT e, arrayJoin(range(5)) AS p FROM {some})",
        )  # fmt: skip
        yield Fill(
            table="tool_events",
            columns=self._head("tool-events.v1", f"{self._began()} + 5000 * (p + 1)", "e * 6 + p")
            | self._ids() | {
                "kind": "if(p % 2 = 0, 'intent', 'result')", "attempt": "1", "turn": "intDiv(p, 2)",
                "writer_id": _HOST,
                "tool": pick(("run", "search", "read"), "cityHash64(e, p, 9)"),
                "exit_class": f"multiIf(p % 2 = 0, 'none', {chance(10, 'e, p')} < 0.03, "
                "'tool_error', 'ok')",
                "duration_us": f"if(p % 2 = 1, {tail(40_000, 11, 'e, p')}, 0)",
            },
            source=f"(SELECT e, arrayJoin(range(6)) AS p FROM {some})",
        )  # fmt: skip
        yield Fill(
            table="tasks",
            columns=self._head("tasks.v1", f"{self._began()} - 2000", "e") | {
                "task_id": _TASK, "group_id": self._ids()["group_id"],
                "ordinal": "intDiv(e, 8)", "purpose": f"if({_HELD_OUT}, 'evaluate', 'train')",
                "environment": _ENVIRONMENT, "group_size": "8", "writer_id": "'task-source-0'",
            },
            source=f"(SELECT e FROM {some} WHERE e % 8 = 0)",
        )  # fmt: skip

    def _judged(self, some: str) -> Iterator[Fill]:
        ended = self._ended()
        judged = f"(SELECT e FROM {some} WHERE {_OUTCOME} < 98)"
        took = tail(30_000, 12)
        yield Fill(
            table="verify_requests",
            columns=self._head("verify-requests.v1", f"{ended} - 1", "e") | self._ids() | {
                "attempt": "1", "purpose": "'train'", "environment": _ENVIRONMENT,
                "deadline_at": moment(f"{ended} + 60000"),
                "writer_id": _HOST,
            },
            source=judged,
        )  # fmt: skip
        yield Fill(
            table="verdicts",
            columns=self._timed("verdicts.v1", f"{ended} + 100", "e", _PARTITION) | self._ids() | {
                "attempt": "1", "code": f"if({_REWARD} > 0.5, 'correct', 'wrong_answer')",
                "reward": _REWARD, "components": f"map('right', {_REWARD}, 'short', 0.0)",
                "component_weights": "map('right', 1.0, 'short', 0.1)", "tries": "1 + (e % 97 = 0)",
                "queued_us": tail(5_000, 13), "duration_us": took,
                "writer_id": "concat('verifier-', toString(e % 4))",
            },
            source=judged,
        )  # fmt: skip
        yield Fill(
            table="trajectories",
            columns=self._head("trajectories.v1", f"{ended} + 200", "e") | self._ids() | {
                "task_id": _TASK, "ordinal": "intDiv(e, 8)",
                "member": "e % 8", "purpose": f"if({_HELD_OUT}, 'evaluate', 'train')",
                "environment": _ENVIRONMENT, "attempt": "1", "oldest_epoch": "1",
                "oldest_number": f"intDiv(e, {_BATCH})", "verdict_code": "'correct'",
                "termination": f"if({_REWARD} > 0.5, 'success', 'task_failure')",
                "stop_cause": "'policy_stop'", "reward": _REWARD, "reward_source": "'verdict'",
                "action_tokens": _ACTION_TOKENS, "turns": f"intDiv({_COMMITS}, 10) + 1",
                "tokens": f"64 * ({_COMMITS})", "tool_calls": "3", "tool_errors": "e % 40 = 0",
                "superseded_tokens": "if(e % 50 = 0, 64, 0)",
                "issued_at": moment(f"{self._began()} - 900"), "ended_at": moment(ended),
                "first_token_at": moment(self._began()), "verified_at": moment(f"{ended} + 100"),
                "writer_id": "'assembler-0'",
            },
            source=judged,
        )  # fmt: skip

    def _decided(self, some: str) -> Iterator[Fill]:
        at = f"{self._ended()} + 300"
        decided = f"(SELECT e FROM {some} WHERE {_OUTCOME} < 93 AND NOT ({_HELD_OUT}))"
        lag = "toInt64(cityHash64(e, 14) % 4)"
        yield Fill(
            table="gate_members",
            columns=self._head("gate-decisions.v1", at, "e") | self._ids() | {
                "outcome": f"if({_OUTCOME} < 87, 'admit', 'drop')",
                "reason": f"if({_OUTCOME} < 87, 'none', if(e % 3 = 0, 'age', 'lag'))",
                "weight": "1", "repeat": "1", "lag_steps": lag, "age_ms": tail(2_000, 15),
                "writer_id": "'gate-0'",
            },
            source=decided,
        )  # fmt: skip
        admitted = f"(SELECT e FROM {some} WHERE {_OUTCOME} < 87 AND NOT ({_HELD_OUT}))"
        yield Fill(
            table="gated",
            columns=self._head("gated.v1", f"{at} + 20", "e")
            | self._ids() | {"writer_id": "'gate-0'"},
            source=admitted,
        )  # fmt: skip
        update = f"intDiv(e, {_BATCH}) + 1"
        stepped = self._stepped(update)
        yield Fill(
            table="trained_members",
            columns=self._head("learner-steps.v1", stepped, update, "0") | self._ids() | {
                "epoch": "1", "number": update, "ordinal": update, "writer_id": "'learner-0'",
                "partition": "intDiv(e, 8) % 12", "offset": "e", "environment": _ENVIRONMENT,
                "lag_steps": lag, "lag_s": f"{lag} * 40", "kl": f"{chance(16)} / 50",
                "age_ms": tail(9_000, 17), "first_token_age_ms": tail(40_000, 18),
                "action_tokens": _ACTION_TOKENS,
                "kept_tokens": f"{_ACTION_TOKENS} - 3",
                "masked_low": "1", "masked_high": "1", "masked_other": "map('length', toInt64(1))",
                "reward": _REWARD, "advantage": f"{_REWARD} - 0.4", "weight": "1", "repeat": "1",
            },
            source=f"(SELECT e FROM {some} WHERE {_OUTCOME} < 85 AND NOT ({_HELD_OUT}))",
        )  # fmt: skip
        yield Fill(
            table="skipped_members",
            columns=self._head("learner-steps.v1", stepped, update, "0") | {
                "episode_id": self._ids()["episode_id"], "epoch": "1", "ordinal": update,
                "reason": "'too_old'", "lag_steps": "9", "writer_id": "'learner-0'",
                "action_tokens": _ACTION_TOKENS,
            },
            source=f"(SELECT e FROM {some} WHERE {_OUTCOME} IN (85, 86) AND NOT ({_HELD_OUT}))",
        )  # fmt: skip

    def _points(self, some: str) -> Fill:
        at = f"{self._began()} + 5000 * (intDiv(p, 2) + 1)"
        return Fill(
            table="metric_points",
            columns=self._head("metrics.v1", at, "e * 10 + p") | {
                "name": "multiIf(p = 8, 'environment_turn_s', p = 9, 'consumed_buffer_age_s', "
                "p % 3 = 0, 'exposure_wait_us', p % 3 = 1, 'gateway_overhead_us', "
                "'inter_token_us')",
                "unit": "'us'",
                "value": f"if(cityHash64(e, p, 19) % 50000 = 0, nan, {tail(3_000, 20, 'e, p')})",
                "labels": f"if(p = 8, map('environment', {_ENVIRONMENT}), map())",
                "writer_id": _INFERENCE,
            },
            source=f"(SELECT e, arrayJoin(range(10)) AS p FROM {some})",
        )  # fmt: skip

    def _stepped(self, update: str) -> str:
        return f"{_T0_MS} + intDiv(({update}) * {self.lasted_ms}, {self.updates})"

    def of_updates(self) -> Iterator[Fill]:
        """Yield what the learner and the refreshes leave behind."""
        source = f"(SELECT number + 1 AS e FROM numbers({self.updates}))"
        stepped = self._stepped("e")
        whole = self.lasted_ms * 1000 // self.updates
        buckets = ", ".join(
            f"'{name}_lag_{bucket}_{unit}', toFloat64(e % 7)"
            for bucket in ("le_0", "le_1", "le_2", "le_4")
            for name, unit in (
                ("ratio_p50", "ratio"), ("ratio_p95", "ratio"), ("ratio_p99", "ratio"),
                ("kl", "nats"), ("measured", "tokens"), ("sample_size", "tokens"),
            )
        )  # fmt: skip
        names = (
            "reward_mean_reward", "advantage_mean_reward", "advantage_variance_reward2",
            "zero_advantage_ratio", "entropy_nats", "kl_nats", "gate_fraction_ratio",
            "ratio_p50_ratio", "ratio_p95_ratio", "ratio_p99_ratio", "measured_tokens",
            "sample_size_tokens", "gradient_norm", "lag_mean_updates",
        )  # fmt: skip
        plain = ", ".join(f"'{name}', {chance(place)}" for place, name in enumerate(names))
        yield Fill(
            table="learner_events",
            columns=self._timed("learner-steps.v1", stepped, "e", "0") | {
                "kind": "'step'", "epoch": "1", "learner_id": "'learner-0'", "number": "e",
                "ordinal": "e", "loss_name": "'dis'", "losses": "map('dis', 0.5)",
                "metrics": f"map({plain}, {buckets})", "writer_id": "'learner-0'",
                "trained_n": "218",
                "phases_us": "CAST(map(" + ", ".join(
                    f"'{phase}', toInt64({share} * {whole})" for phase, share in (
                        ("wait_batch", 0.4), ("fetch", 0.05), ("forward", 0.1), ("backward", 0.2),
                        ("optimizer", 0.05), ("publish", 0.1), ("checkpoint", 0.05),
                        ("record", 0.05),
                    )) + "), 'Map(LowCardinality(String), Int64)')",
            },
            source=source,
        )  # fmt: skip
        yield Fill(
            table="policies",
            columns=self._head("policies.v1", f"{stepped} + 10", "e", "0") | {
                "epoch": "1", "number": "e", "ordinal": "e", "writer_id": "'learner-0'",
            },
            source=f"(SELECT number AS e FROM numbers({self.updates + 1}))",
        )  # fmt: skip
        at = f"{stepped} + 500 * (p % 3) + 100 * intDiv(p, 3)"
        yield Fill(
            table="refreshes",
            columns=self._timed("refreshes.v1", at, "e * 12 + p") | {
                "worker_id": "concat('inference-', toString(intDiv(p, 3)))",
                "kind": "['prepare', 'loaded', 'serving'][1 + p % 3]", "epoch": "1", "number": "e",
                "fetch_us": f"if(p % 3 = 1, {tail(80_000, 21, 'e, p')}, 0)",
                "pause_us": f"if(p % 3 = 1, {tail(150_000, 22, 'e, p')}, 0)",
                "load_us": f"if(p % 3 = 1, {tail(100_000, 23, 'e, p')}, 0)",
                "writer_id": "concat('inference-', toString(intDiv(p, 3)))",
            },
            source=f"(SELECT e, arrayJoin(range(12)) AS p FROM {source})",
        )  # fmt: skip

    def of_workers(self) -> Iterator[Fill]:
        """Yield signs of life, every ten seconds, and the gauges of waiting trajectories."""
        beats = self.lasted_ms // 10_000
        role = pick(("inference", "environment", "verifier"), "p")
        worker = f"concat({role}, '-', toString(intDiv(p, 3)))"
        yield Fill(
            table="worker_states",
            columns=self._timed("workers.v1", f"{_T0_MS} + e * 10000", "e * 12 + p", "0") | {
                "role": role, "worker_id": worker, "writer_id": worker,
                "status": "'ready'", "incarnation": "'i'",
            },
            source=f"(SELECT number AS e, arrayJoin(range(12)) AS p FROM numbers({beats}))",
        )  # fmt: skip
        gauges = (
            "waiting_trajectories",
            *(
                f"waiting_{name.format(cut)}"
                for name in ("buffer_age_{}_s", "policy_lag_{}_steps")
                for cut in ("p50", "p95", "p99", "max")
            ),
        )
        yield Fill(
            table="metric_points",
            columns=self._head("metrics.v1", f"{_T0_MS} + e * 5000", "e * 9 + p", "0") | {
                "name": pick(gauges, "p"), "unit": "'s'", "value": chance(24, "e, p"),
                "writer_id": "'lag-age-0'",
            },
            source=f"(SELECT number AS e, arrayJoin(range(9)) AS p FROM numbers({2 * beats}))",
        )  # fmt: skip

    def of_rare(self) -> Iterator[Fill]:
        """Yield the start, letters and where the sink stands."""
        yield Fill(
            table="control_events",
            columns=self._head("control.v1", f"{_T0_MS} - 5000", "e", "0") | {"kind": "'start'"},
            source="(SELECT number AS e FROM numbers(1))",
        )  # fmt: skip
        yield Fill(
            table="dead_letters",
            columns=self._head("dead-letters.v1", f"{_T0_MS} + e", "e", "0") | {
                "kind": "'letter'", "origin_topic": "'tokens.v1'", "origin_offset": "e",
                "error_class": "'PoisonRecordError'", "error": "'no schema'", "consumer": "'sink'",
            },
            source="(SELECT number AS e FROM numbers(300))",
        )  # fmt: skip
        yield Fill(
            table="sink_progress",
            columns={
                "run_id": f"'{RUN}'", "src_topic": "'tokens.v1'", "src_partition": "e",
                "first": "0", "last": "9", "state": "'after'", "progress": "1",
            },
            source="(SELECT number AS e FROM numbers(12))",
        )  # fmt: skip


_COMMITS = "20 + cityHash64(e, 0) % 61"
"""How many commits an episode has."""
_ACTION_TOKENS = f"toInt64(64 * ({_COMMITS}) * 8 / 10)"
_HELD_OUT = "intDiv(e, 8) % 50 = 49"
_REWARD = f"toFloat64({chance(4)} < 0.4)"

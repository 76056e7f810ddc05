"""The sink on a real broker and a real embedded ClickHouse: rows, restarts, SQL over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.run.asking import ask
from infra.run.folder import find
from infra.topic_admin import create_topics
from schemas.errors import RejectedError
from schemas.ids import RunId, WorkerId, group_id
from schemas.packing import pack_ids, pack_logprobs
from schemas.ports import Acked, Pending, Producer
from schemas.records.metric_point import MetricPoint
from schemas.topics import METRICS, POLICIES, TASKS, TOKENS, VERDICTS
from stream_jobs.core.sink_tables import TABLES, TOPICS
from tests.conftest import LocalPlatform
from tests.contract.conftest import KafkaHarness
from tests.support import role_process
from tests.support.fake_rollout import task
from tests.support.random_records import RecordBuilder
from tests.support.records import commit
from tests.support.small_run import made

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

PARTITIONS = 4
RUN = RunId("run-1")
OTHER = RunId("run-2")


@pytest.fixture
async def harness(local_platform: LocalPlatform) -> AsyncIterator[KafkaHarness]:
    """Topics of this test alone."""
    prefix = f"sink-{uuid.uuid4().hex[:8]}"
    create_topics(local_platform.bootstrap, prefix=prefix, partitions=PARTITIONS)
    harness = KafkaHarness(local_platform.bootstrap, prefix)
    yield harness
    await harness.close()


class SinkProcess:
    """A sink in a process of its own, asked over HTTP."""

    def __init__(self, harness: KafkaHarness, folder: Path) -> None:
        self.harness = harness
        self.folder = folder
        self.address = folder / "sink.json"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: Any) -> None:
        starts = {topic.name: dict.fromkeys(range(PARTITIONS), 0) for topic in TOPICS}
        self.process = role_process.start(
            "sink",
            bootstrap=self.harness.bootstrap,
            prefix=self.harness.prefix,
            run=RUN,
            log=self.folder / "sink.log",
            starts=starts,
            settings={
                "tables_dir": str(self.folder / "clickhouse"),
                "address_file": str(self.address),
                "batch_interval_s": 0.2,
                "busy_share_max": 1.0,
                "rollup_interval_s": 1.0,
                **settings,
            },
        )
        self.await_until(lambda: self.address.exists(), "the address file")

    def await_until(self, holds: Any, what: str, limit_s: float = 40.0) -> None:
        until = time.monotonic() + limit_s
        while not holds():
            assert self.process is not None
            log = (self.folder / "sink.log").read_text()
            assert self.process.poll() is None, f"the sink ended: {log}"
            assert time.monotonic() < until, f"no {what}: {log}"
            time.sleep(0.05)

    def ask(self, statement: str) -> str:
        url = json.loads(self.address.read_text())["url"]
        with urllib.request.urlopen(url, data=statement.encode(), timeout=20) as answer:
            text: str = answer.read().decode()
            return text.strip()

    def await_rows(self, table: str, rows: int) -> None:
        self.await_until(
            lambda: int(self.ask(f"SELECT count() FROM {table}")) >= rows, f"{rows} in {table}"
        )

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(20) == 0, (self.folder / "sink.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.address.unlink(missing_ok=True)


@pytest.fixture
def sink(harness: KafkaHarness, tmp_path: Path) -> Iterator[SinkProcess]:
    """A sink that the test starts."""
    one = SinkProcess(harness, tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


async def send_commits(
    producer: Producer, first: int, last: int, run: RunId = RUN, **fields: Any
) -> None:
    pending = [
        producer.offer(TOKENS, replace(commit(seq, group=f"{run}.{seq}.g"), run_id=run, **fields))
        for seq in range(first, last)
    ]
    for one in pending:
        await one


async def test_every_record_of_the_run_becomes_a_row_and_no_other(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    producer = harness.producer()
    builder = RecordBuilder(7, size_max=200)
    sent: list[Pending] = []
    children = dict.fromkeys(("trained_members", "skipped_members", "gate_members"), 0)
    for topic in TOPICS:
        for index in range(20):
            record = replace(builder.record(topic), run_id=OTHER if index % 4 == 3 else RUN)
            if topic is POLICIES:
                record = replace(record, epoch=index, number=index)
            sent.append(producer.offer(topic, record, partition=index % PARTITIONS))
            if index % 4 != 3:
                for table in TABLES[topic.name][1:]:
                    assert table.parts is not None
                    children[table.name] += len(table.parts(record))
    for one in sent:
        assert isinstance(await one, Acked)
    harness.append_raw(TOKENS, 1, b"no frame at all")
    harness.append_raw(TOKENS, 2, b"\x00" + (9_999).to_bytes(4, "big") + b"body")
    sink.start()
    for topic in TOPICS:
        sink.await_rows(TABLES[topic.name][0].name, 15)
    for name, rows in children.items():
        sink.await_rows(name, rows)
        assert int(sink.ask(f"SELECT count() FROM {name}")) == rows
    # The sink's own presence and its dead letter stand on these two as well.
    others = {"worker_states": "worker_id != 'sink-0'", "dead_letters": "consumer != 'sink'"}
    for topic in TOPICS:
        name = TABLES[topic.name][0].name
        counts = sink.ask(
            f"SELECT uniqExact(run_id), any(run_id), count() FROM {name} "
            f"WHERE {others.get(name, '1')}"
        )
        assert counts.split() == ["1", RUN, "15"], name
    buried = (
        "SELECT origin_partition, raw_bytes, schema_id FROM dead_letters WHERE consumer = 'sink' "
        "ORDER BY origin_partition"
    )
    sink.await_until(lambda: len(sink.ask(buried).splitlines()) == 2, "two dead letters")
    assert sink.ask(buried).splitlines() == ["1\t15\t-1", "2\t9\t9999"]
    sink.stop()
    assert not sink.address.exists()


async def test_rows_are_exactly_the_records_after_kills_at_any_moment(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    producer = harness.producer()
    await send_commits(producer, 0, 400)
    for kill in range(3):
        sink.start(batch_offsets=7)
        await send_commits(producer, 400 + 200 * kill, 600 + 200 * kill)
        sink.await_rows("token_commits", 150 * (kill + 1))
        sink.kill()
    sink.start(batch_offsets=50)
    sink.await_rows("token_commits", 1_000)
    await asyncio.sleep(0.5)
    seen = sink.ask(
        "SELECT count(), uniqExact(src_partition, src_offset), uniqExact(seq), max(seq) "
        "FROM token_commits"
    )
    assert seen.split() == ["1000", "1000", "1000", "999"]
    sink.stop()


async def test_what_stands_on_the_topics_at_the_stop_is_taken_and_can_be_asked_for_afterwards(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    sink.start(batch_interval_s=30.0)
    await send_commits(harness.producer(), 0, 300)
    sink.stop()
    program = (
        "import sys; from pathlib import Path; from stream_jobs.sink_engines import *;"
        "e = EmbeddedEngine(Path(sys.argv[1]), Limits(seconds_max=5, rows_max=9,"
        " memory_bytes_max=10**9)); print(e.ask(sys.argv[2], 'TSV', {}).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(sink.folder / "clickhouse"),
         "SELECT count() FROM token_commits"],
        cwd=role_process.ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(role_process.ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == ["300"], done.stderr


async def test_tokens_are_kept_when_they_are_asked_for_and_not_otherwise(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    producer = harness.producer()
    await send_commits(producer, 0, 200)
    sink.start()
    sink.await_rows("token_commits", 200)
    assert sink.ask("SELECT count() FROM token_contents") == "0"
    sink.stop()
    sink.address.unlink(missing_ok=True)
    await send_commits(
        producer, 200, 600, token_ids=pack_ids([7, 300, 9]),
        logprobs=pack_logprobs([-0.5, -2.0, 0.0]),
    )  # fmt: skip
    sink.start(token_contents=True)
    sink.await_rows("token_contents", 1)
    sink.kill()
    sink.start(token_contents=True)
    sink.await_rows("token_contents", 400)
    sink.await_rows("token_commits", 600)
    told = sink.ask(
        "SELECT count(), uniqExact(src_partition, src_offset), token_ids, "
        "logprobs FROM token_contents GROUP BY token_ids, logprobs"
    )
    assert told.split("\t") == ["400", "400", "[7,300,9]", "[-0.5,-2,0]"]


async def test_a_rollup_counts_each_point_once_and_bad_numbers_apart(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    producer = harness.producer()
    for value in (*map(float, range(1, 101)), float("nan"), float("inf")):
        point = MetricPoint(
            run_id=RUN, name="wait_ms", unit="ms", value=value, at_us=1, writer_id=WorkerId("w")
        )
        producer.offer(METRICS, point)
    sink.start()
    sink.await_rows("metric_points", 102)
    sink.await_until(lambda: sink.ask("SELECT count() FROM metric_quantiles") == "1", "rollup")
    row = sink.ask("SELECT round(p50), round(p99), max, n, bad FROM metric_quantiles")
    p50, p99, most, n, bad = map(float, row.split())
    assert (most, n, bad) == (100.0, 100.0, 2.0)
    assert abs(p50 - 50) <= 1
    assert abs(p99 - 99) <= 1
    sink.stop()


async def test_a_task_that_comes_after_its_verdict_tells_the_environment_also_after_a_kill(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    producer = harness.producer()

    async def judge(ordinal: int) -> None:
        fields = {"duration_us": 1_000, "group_id": group_id(RUN, ordinal)}
        await producer.offer(VERDICTS, made(VERDICTS, run_id=RUN, **fields))

    def told(expected: str) -> None:
        asked = (
            "SELECT environment, n FROM quantities_by_environment WHERE quantity = 'verifier_ms' "
            "ORDER BY environment FORMAT CSV"
        )
        sink.await_until(lambda: sink.ask(asked).replace('"', "") == expected, expected)

    for ordinal in range(3):
        await judge(ordinal)
    sink.start()
    told(",3")
    await producer.offer(TASKS, task(0, run=RUN))
    told(",2\narithmetic,1")
    sink.kill()
    sink.start()
    sink.await_rows("verdicts", 3)
    await producer.offer(TASKS, task(1, run=RUN))
    told(",1\narithmetic,2")
    sink.stop()


async def test_a_query_ends_at_its_limits_of_time_rows_and_memory_and_the_sink_goes_on(
    harness: KafkaHarness, sink: SinkProcess
) -> None:
    await send_commits(harness.producer(), 0, 50)
    sink.start(
        query_seconds_max=1.0, query_rows_max=100, memory_bytes_max=100_000_000,
        query_threads_max=3,
    )  # fmt: skip
    sink.await_rows("token_commits", 50)
    assert sink.ask("SELECT getSetting('max_threads')") == "3"
    for asked, code in (
        ("SELECT sum(cityHash64(number)) FROM numbers(1000000000000)", 159),
        ("SELECT number FROM numbers(101)", 396),
        ("SELECT number FROM numbers(1000001)", 396),
        ("SELECT throwIf(number = 50000) FROM numbers(100000)", 395),
        ("SELECT length(groupArray(toString(number))) FROM numbers(1000000000)", 241),
        ("SELECT 1 SETTINGS max_execution_time = 600", 164),
        ("SELECT * FROM quantities WHERE run_id = {run:String} FORMAT x'; DROP TABLE t", 164),
    ):
        began = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as error:
            sink.ask(asked)
        told = error.value.read().decode()
        assert f"Code: {code}." in told or error.value.code == 403, (asked, told)
        assert time.monotonic() - began < 15, asked
        # What it had written before it failed is no part of another's answer.
        for form in ("TSVWithNames", "JSONEachRow"):
            answer = sink.ask(f"SELECT 42 AS answer FORMAT {form}")
            assert answer == ("answer\n42" if form == "TSVWithNames" else '{"answer":42}'), asked
    name = "x' OR 1 = 1; DROP TABLE token_commits; --"
    given = urllib.parse.urlencode({"param_run": name, "query": "SELECT {run:String} AS r"})
    url = json.loads(sink.address.read_text())["url"]
    with urllib.request.urlopen(f"{url}/?{given}", timeout=10) as answer:
        assert answer.read().decode().strip().replace("\\'", "'") == name
    await send_commits(harness.producer(), 50, 60)
    sink.await_rows("token_commits", 60)
    sink.stop()


async def test_clients_read_over_http_and_nothing_can_be_written(
    harness: KafkaHarness, sink: SinkProcess, tmp_path: Path
) -> None:
    await send_commits(harness.producer(), 0, 50)
    sink.start(query_rows_max=2_000)
    sink.await_rows("token_commits", 50)
    assert sink.ask("SELECT getSetting('max_threads')") == str(max(1, (os.cpu_count() or 1) // 2))
    where = json.loads(sink.address.read_text())
    program = (
        "import sys, clickhouse_connect as c; k = c.get_client(host=sys.argv[1], port=sys.argv[2]);"
        "print(k.ping(), k.query('SELECT count() FROM token_commits').result_rows,"
        " k.query('SELECT seq FROM token_commits WHERE seq < {n:Int64} ORDER BY seq',"
        " parameters={'n': 2}).result_rows, k.query_arrow('SELECT 1 AS x').num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, where["host"], str(where["port"])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == "True [(50,)] [(0,), (1,)] 1", done.stderr
    asked = urllib.parse.urlencode({"query": "SELECT 1 AS one FORMAT JSONEachRow"})
    with urllib.request.urlopen(f"{where['url']}/?{asked}", timeout=10) as answer:
        assert json.loads(answer.read()) == {"one": 1}
    for refused, status in (
        ("DROP TABLE token_commits", 403),
        ("INSERT INTO tasks (run_id) VALUES ('x')", 403),
        ("SELECT 1 SETTINGS readonly = 0", 403),
        ("SELECT 1 INTO OUTFILE '/dev/null'", 403),
        ("SELECT * FROM file('/etc/passwd', 'LineAsString')", 403),
        ("SELECT `file`('/etc/passwd')", 403),
        ("SELECT arrayMap(file, ['/etc/passwd'])", 403),
        ("SELECT $$'$$, file('/etc/passwd') --'", 403),
        (f"DESCRIBE `url`('{where['url']}/?query=SELECT+1', 'CSV')", 403),
        ("SELECT 1; DROP TABLE token_commits", 403),
        ("SELECT number FROM numbers(5000)", 500),
        ("SELECT nonsense FROM token_commits", 404),
        ("SELECT * FROM nonsense", 404),
        ("SELECT 1 FORMAT Nonsense", 404),
        ("SELEC 1", 403),
        ("SELECT 1 +", 400),
        ("SELECT {run:String}", 400),
        ("SELECT throwIf(1)", 500),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            sink.ask(refused)
        told = error.value.read()
        assert error.value.code == status, (refused, told)
        assert told.count(b"Code: ") == 1, told
    assert sink.ask("SELECT count() FROM token_commits") == "50"
    (sink.folder / "start.json").write_text("{}")
    folder = find(str(sink.folder), tmp_path)
    assert ask(folder, "SELECT count() AS n FROM token_commits", "CSV") == b"50\n"
    with pytest.raises(RejectedError, match="nonsense"):
        ask(folder, "SELECT nonsense", "CSV")
    sink.stop()

"""The tables of a run, asked after it and beside it as users do: commands, HTTP, the page."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from infra.cli.sql import sql
from infra.cli.top import top
from infra.run.folder import RunFolder, RunStart, make
from infra.settings import assemble
from schemas.ids import RunId, WorkerId
from schemas.records.metric_point import MetricPoint
from schemas.topics import METRICS
from stream_jobs.core.sink_hello import who
from stream_jobs.core.sink_reading import INSIDE, OUTSIDE, OUTSIDE_ANYWHERE
from stream_jobs.sink_settings import SinkSettings
from tests.support.table_process import ROOT, Tables
from tests.unit.infra.test_settings import PLACES, SMALLEST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RUN = "run-1"
FORMATS = ("json", "csv", "table")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
AWKWARD = 'a "quoted", long\nname'
QUERY = "SELECT name, value, n FROM (SELECT name, value, 1 AS n FROM metric_points) ORDER BY value"
ROWS = [[AWKWARD, 0.5, 1], ["wait_ms", 2.0, 1]]
_SECOND_SINK = """
import asyncio, sys
from infra.run.worker import table_definitions
from schemas.errors import SluiceError
from stream_jobs.sink import run
from stream_jobs.sink_settings import SinkSettings
from tests.support.fake_rollout import context_on
from tests.support.memory_bus import MemoryBus
bus = MemoryBus(partitions=1)
settings = SinkSettings(tables_dir=sys.argv[1], address_file=sys.argv[2])
try:
    asyncio.run(run(context_on(bus, "sink-1"), settings, codec=bus.codec,
                    migrations=table_definitions()))
except SluiceError as error:
    print(f"{type(error).__name__}: {error}")
"""
_ASKING = """
import json, sys
from click.testing import CliRunner
from infra.cli.app import sluice
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(sluice, words)
    print(json.dumps([done.exit_code, done.stdout, str(done.exception)]))
"""
_HELD = "cannot be opened"
_HINT = "one process at a time; a sink that runs answers over HTTP instead"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The folder of a run that is over, whose bus is gone too."""
    folder = RunFolder(root=tmp_path_factory.mktemp("runs") / RUN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    start = RunStart(
        run_id=RunId(RUN), bootstrap=nobody, registry=f"http://{nobody}", prefix="sluice",
        starts={}, topic_ids={},
    )  # fmt: skip
    make(folder, start, assemble(SMALLEST, places=PLACES).model_dump(mode="json"))
    folder.schemas.write_text(json.dumps({"ids": {}, "writers": {}}))
    tables = Tables(folder.tables)
    points = [
        MetricPoint(
            run_id=RunId(RUN), name=name, unit="ms", value=value, at_us=1, writer_id=WorkerId("w")
        )
        for name, value in ((AWKWARD, 0.5), ("wait_ms", 2.0))
    ]
    tables.add(METRICS, points, at_ms=[1_000, 2_000])
    tables.close()
    return folder


def sluice(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a process, since only such a one may open tables."""
    return subprocess.run(
        [sys.executable, "-m", "infra.cli", *arguments],
        cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def require(form: str, text: str) -> None:
    """Require the rows above in the words of a format."""
    if form == "table":
        head, *rest = text.splitlines()
        assert head.split() == ["name", "value", "n"]
        assert rest[-1].split() == ["wait_ms", "2", "1"]
    elif form == "json":
        assert [[row["name"], row["value"], row["n"]] for row in json.loads(text)] == ROWS
    else:
        told = list(csv.reader(io.StringIO(text, newline="")))
        assert told[0] == ["name", "value", "n"]
        assert [[name, float(value), int(n)] for name, value, n in told[1:]] == ROWS


def test_the_tables_of_a_run_that_is_over_are_asked_in_each_format(finished: RunFolder) -> None:
    asked = [["sql", QUERY, "--run", str(finished.root), "--format", form] for form in FORMATS]
    wrong = ["sql", "SELECT valeu FROM metric_points", "--run", str(finished.root)]
    # One after the other in one process, which is none that starts others afterwards.
    done = subprocess.run(
        [sys.executable, "-c", _ASKING, json.dumps([*asked, wrong])],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *answers, refused = map(json.loads, done.stdout.splitlines())
    for form, (code, text, error) in zip(FORMATS, answers, strict=True):
        assert code == 0, error
        require(form, text)
    assert refused[:2] == [1, ""]
    assert "valeu" in refused[2]
    assert "SHOW TABLES" in refused[2]


def test_every_function_of_the_engine_that_leaves_the_tables_is_known(
    finished: RunFolder,
) -> None:
    kinds = {
        "table": "SELECT lower(name) FROM system.table_functions",
        "model": "SELECT lower(name) FROM system.functions WHERE categories = 'AI'",
    }
    asked = [["sql", one, "--run", str(finished.root), "--format", "csv"] for one in kinds.values()]
    done = subprocess.run(
        [sys.executable, "-c", _ASKING, json.dumps(asked)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    tables, models = (
        {row[0] for row in csv.reader(json.loads(line)[1].splitlines()[1:])}
        for line in done.stdout.splitlines()
    )
    assert "file" in tables
    assert not tables - INSIDE - OUTSIDE, "new in this engine: does it leave the tables?"
    assert models
    assert not models - OUTSIDE_ANYWHERE, "new in this engine, and asked over the network"


def test_the_user_who_only_reads_on_a_server_is_one_that_the_engine_understands_with_our_limits(
    finished: RunFolder,
) -> None:
    text = (ROOT / "infra" / "clickhouse" / "server" / "reader.sql").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    statements = [one.strip() for one in lines.split(";") if one.strip()]
    assert [one.split()[0] for one in statements] == ["CREATE", "CREATE", "GRANT", "CREATE"]
    settings = re.findall(r"^  (\w+) = ", statements[0], re.MULTILINE)
    quoted = [one.replace("\\", "\\\\").replace("'", "\\'") for one in statements]
    asked = [f"SELECT formatQuerySingleLine('{one}') AS read" for one in quoted]
    asked.append(f"SELECT name FROM system.settings WHERE name IN {tuple(settings)}")
    done = subprocess.run(
        [
            sys.executable, "-c", _ASKING,
            json.dumps([["sql", one, "--run", str(finished.root), "--json"] for one in asked]),
        ],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _, _ in answers] == [0] * len(asked), answers
    read = [json.loads(told)[0]["read"].split()[0] for _, told, _ in answers[:-1]]
    assert read == ["CREATE", "CREATE", "GRANT", "CREATE"]
    assert {row["name"] for row in json.loads(answers[-1][1])} == set(settings)
    ours = SinkSettings()
    for name, most in (
        ("max_execution_time", ours.query_seconds_max), ("max_result_rows", ours.query_rows_max),
        ("max_memory_usage", ours.memory_bytes_max),
    ):  # fmt: skip
        assert f"{name} = {most:.0f} MAX {most:.0f}" in statements[0]
    assert "readonly = 2" in statements[0]


class Served:
    """`sluice dashboard` of a run that is over."""

    def __init__(self, folder: RunFolder, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", "dashboard", str(folder.root), "--json"],
                cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        self.page: str = json.loads(line)["url"]

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def sql(self) -> str:
        return self.page.removesuffix("dashboard/")

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(self.sql + path, data=body, timeout=20) as answer:
            read: bytes = answer.read()
            return read


@pytest.fixture(scope="module")
def served(finished: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of the run that is over."""
    one = Served(finished, tmp_path_factory.mktemp("log") / "dashboard.log")
    yield one
    if one.process.poll() is None:
        one.process.kill()
    one.process.wait(10)


def test_the_page_of_a_run_that_is_over_is_served_though_its_bus_is_gone(served: Served) -> None:
    assert served.page.endswith("/dashboard/")
    assert b"<html" in served.ask("dashboard/")
    assert served.ask("", b"SELECT count() FROM metric_points").strip() == b"2"
    assert "no stories of episodes" in served.log


@pytest.mark.parametrize("form", FORMATS)
def test_the_process_that_has_the_tables_open_is_asked_in_each_format(
    served: Served, finished: RunFolder, form: str
) -> None:
    assert served.process.poll() is None
    done = CliRunner().invoke(sql, [QUERY, "--run", str(finished.root), "--format", form])
    assert done.exit_code == 0, done.output
    require(form, done.stdout)


def test_grafanas_source_is_answered_who_is_there_and_then_in_blocks_that_it_reads(
    served: Served,
) -> None:
    # As clickhouse-go sends it: the same parameters every time, the statement as body.
    given = "?client_protocol_version=54485&database=default&default_format=Native"
    asked = b"SELECT displayName(), version(), revision(), timezone()"
    version = served.ask("", b"SELECT version()").decode().strip()
    assert served.ask(given, asked) == who(name=socket.gethostname(), version=version)
    block = b"\x01\x01" + b"\x01n" + b"\x06UInt32" + b"\x07\x00\x00\x00"
    assert served.ask(given, b"SELECT toUInt32(7) AS n") == block


def test_a_second_page_tells_where_the_first_is(served: Served, finished: RunFolder) -> None:
    done = sluice("dashboard", str(finished.root))
    assert (done.returncode, done.stdout.strip()) == (0, served.page)


def test_a_second_process_on_the_same_tables_is_refused_and_the_first_goes_on(
    served: Served, finished: RunFolder, tmp_path: Path
) -> None:
    place = tmp_path / "sink.json"
    second = subprocess.run(
        [sys.executable, "-c", _SECOND_SINK, str(finished.tables), str(place)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert second.stdout.startswith(f"RejectedError: the tables in {finished.tables}"), second
    assert _HELD in second.stdout
    assert _HINT in second.stdout
    assert not place.exists(), "nobody is sent to a sink that has no tables"
    assert served.ask("", b"SELECT count() FROM metric_points").strip() == b"2"


def test_a_run_without_an_update_has_no_reward_rather_than_one_of_nought(
    served: Served, finished: RunFolder
) -> None:
    assert served.process.poll() is None
    seen = CliRunner().invoke(top, [str(finished.root), "--json"])
    assert seen.exit_code == 0, seen.output
    assert json.loads(seen.stdout)["learning"] == {}
    shown = CliRunner().invoke(top, [str(finished.root), "--once"])
    assert "update -   reward -   loss -" in shown.stdout


def test_top_into_a_pipe_tells_look_after_look_and_ctrl_c_ends_it(
    served: Served, finished: RunFolder
) -> None:
    assert served.process.poll() is None
    program = (
        # Whoever runs the tests in the background has its children ignore what Ctrl-C sends.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from infra.cli.app import main; main(sys.argv[1:])"
    )
    watching = subprocess.Popen(
        [sys.executable, "-c", program, "top", str(finished.root), "--every", "0.5"],
        cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        looks = (line for line in watching.stdout if line.startswith("update "))
        assert [next(looks).split()[1] for _ in range(3)] == ["-", "-", "-"]
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=20)[1].strip() == ""
        assert watching.returncode == 0
    finally:
        watching.kill()
        watching.wait(10)


def test_ctrl_c_ends_the_page_in_order(served: Served, finished: RunFolder) -> None:
    assert finished.sink_address.exists()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(20) == 0, served.log
    assert "Traceback" not in served.log
    assert not finished.sink_address.exists()

"""Dead letters and trimming from the command line, on a real broker and registry."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from click.testing import CliRunner, Result

from consumers.dead_letters import bury
from consumers.kafka import KafkaConsumers
from consumers.settings import ConsumerSettings
from infra.cli.app import sluice
from infra.cli.topics import create_all
from infra.run.bus import BusAddress, Doors
from schemas.codec import Codec
from schemas.enums import ControlKind, Role
from schemas.ids import RunId, WorkerId
from schemas.ports import Context, Poisoned
from schemas.records.control_event import ControlEvent
from schemas.records.parts import LogEnd
from schemas.topics import ALL, CONTROL, PAYLOADS, TOKENS, TOOL_EVENTS, VERDICTS
from tests.conftest import LocalPlatform
from tests.contract.conftest import PARTITIONS
from tests.support.clocks import RealClock
from tests.support.fake_rollout import RUN, WalWriter
from tests.support.records import within
from tests.unit.infra.test_dead_letters import verdict

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


class Line:
    """The command line on topics of this test alone."""

    def __init__(self, platform: LocalPlatform) -> None:
        self.platform = platform
        self.prefix = f"letters-{uuid.uuid4().hex[:8]}"
        create_all(
            platform.bootstrap, platform.registry_url, prefix=self.prefix, partitions=PARTITIONS
        )

    def call(self, *arguments: str) -> Result:
        bus = ("--bootstrap", self.platform.bootstrap, "--registry", self.platform.registry_url)
        return CliRunner().invoke(sluice, [*arguments, *bus, "--prefix", self.prefix])

    def ask(self, *arguments: str) -> Any:
        result = self.call(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    @property
    def address(self) -> BusAddress:
        platform = self.platform
        return BusAddress(
            bootstrap=platform.bootstrap, registry=platform.registry_url, prefix=self.prefix
        )


@pytest.fixture
def line(local_platform: LocalPlatform) -> Line:
    return Line(local_platform)


async def _bury_what_an_old_reader_meets(line: Line) -> None:
    # It started before these schemas were registered, so that it knows none of their ids.
    old = Codec(ids={topic.name: 900_000 + index for index, topic in enumerate(ALL)})
    doors = Doors(line.address)
    settings = ConsumerSettings(bootstrap=line.platform.bootstrap, prefix=line.prefix)
    context = Context(
        run_id=RUN, worker_id=WorkerId("assembler-0"), incarnation="a", producer=doors.producer,
        consumers=KafkaConsumers(settings, old), clock=RealClock(), starts={}, secret=b"s",
        stop=asyncio.Event(),
    )  # fmt: skip
    await doors.producer.send(VERDICTS, verdict(), partition=1, deadline=within(15_000))
    reader = context.consumers.reader({VERDICTS: {1: 0}})
    (met,) = await reader.poll(records_max=1, timeout_s=15)
    assert isinstance(met, Poisoned)
    await bury(context, met, role=Role.ASSEMBLER)
    await reader.close()
    await doors.close()


def test_a_letter_is_listed_shown_retried_and_then_refused(line: Line) -> None:
    asyncio.run(_bury_what_an_old_reader_meets(line))

    (listed,) = line.ask("dead-letters", "list", "--json")
    assert (listed["state"], listed["record"]["consumer"]) == ("letter", "assembler")
    place = f"{listed['partition']}:{listed['offset']}"
    shown = line.ask("dead-letters", "show", place, "--json")
    assert (shown["decoded"]["code"], shown["retry"]) == ("correct", "")
    assert line.ask("dead-letters", "retry", place, "--dry-run", "--json")["copy"] is None
    told = line.ask("dead-letters", "retry", place, "--json")
    assert told["copy"] == f"{VERDICTS.name}:1:1"
    again = line.call("dead-letters", "retry", place)
    assert "was retried before" in str(again.exception)
    assert line.ask("dead-letters", "list", "--json")[0]["state"] == "retried"
    tailed = line.call("tail", VERDICTS.name, "--from-start", "--no-follow", "--json")
    assert [json.loads(one)["offset"] for one in tailed.stdout.splitlines()] == [0, 1]


async def _write_a_run(line: Line, audited: int | None) -> None:
    doors = Doors(line.address)
    producer = doors.producer
    deadline = within(30_000)

    def control(kind: ControlKind, at: int) -> ControlEvent:
        ends = tuple(
            LogEnd(topic=topic.name, partition=partition, offset=at if topic is TOKENS else 0)
            for topic in (TOKENS, TOOL_EVENTS, PAYLOADS)
            for partition in range(PARTITIONS)
        )
        return ControlEvent(
            run_id=RunId(RUN), kind=kind, ends=ends, at_us=1, writer_id=WorkerId("cli")
        )

    if audited is None:
        await producer.send(CONTROL, control(ControlKind.START, 0), deadline=deadline)
        wal = WalWriter(episode_id=verdict().episode_id, group_id=verdict().group_id)
        for partition in range(PARTITIONS):
            for commit in (wal.fence(), wal.prompt(3), wal.action(4), wal.action(5)):
                await producer.send(TOKENS, commit, partition=partition, deadline=deadline)
    else:
        await producer.send(CONTROL, control(ControlKind.AUDITED, audited), deadline=deadline)
    await doors.close()


def test_trim_is_refused_without_an_audit_and_deletes_exactly_below_it(line: Line) -> None:
    asyncio.run(_write_a_run(line, None))
    refused = line.call("topics", "trim")
    assert "no run has a recorded audit" in str(refused.exception)
    asyncio.run(_write_a_run(line, 3))
    would = line.ask("topics", "trim", "--dry-run", "--json")
    assert sum(row["records"] for row in would["partitions"]) == 3 * PARTITIONS
    done = line.ask("topics", "trim", "--json")
    assert {row["floor"] for row in done["partitions"] if row["topic"] == TOKENS.name} == {3}
    after = line.ask("topics", "trim", "--json")
    tokens = [row for row in after["partitions"] if row["topic"] == TOKENS.name]
    assert {row["start"] for row in tokens} == {3}
    assert sum(row["records"] for row in after["partitions"]) == 0

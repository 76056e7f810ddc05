"""`sluice dead-letters` and `sluice topics trim` from the command line, on the memory bus."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from infra import topic_admin
from infra.cli.app import exit_code, sluice
from infra.run import bus as run_bus
from schemas.deadline import Deadline
from schemas.enums import ControlKind
from schemas.errors import SluiceError
from schemas.topics import CONTROL, TOKENS, VERDICTS
from tests.unit.infra.test_dead_letters import Office, verdict
from tests.unit.infra.test_trim import control


class Line:
    """The command line on an office's bus."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.office = Office()
        self.deleted: list[dict[tuple[str, int], int]] = []
        office = self.office

        class Doors:
            def __init__(self, address: Any, *, client: str) -> None:
                del address, client
                self.producer, self.consumers = office.bus.producer(), office.bus.consumers()
                self.codec, self.clock = office.codec, office.clock

            def deadline(self, budget_ms: int, waiting_for: str) -> Deadline:
                now_ms = self.clock.monotonic_ms()
                return Deadline.after(budget_ms, now_ms=now_ms, waiting_for=waiting_for)

            async def close(self) -> None:
                return None

        def delete(_: str, *, prefix: str, floors: dict[tuple[str, int], int]) -> None:
            assert prefix == "sluice"
            self.deleted.append(floors)

        address = run_bus.BusAddress(bootstrap="b", registry="r", prefix="sluice")
        monkeypatch.setattr(run_bus, "Doors", Doors)
        monkeypatch.setattr(run_bus, "find_bus", lambda *_, **__: address)
        monkeypatch.setattr(topic_admin, "delete_below", delete)
        monkeypatch.setattr(
            topic_admin,
            "log_starts",
            lambda *_, topics, **__: {(t.name, p): 0 for t in topics for p in range(2)},
        )

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(sluice, list(arguments))

    def ask(self, *arguments: str) -> Any:
        result = self.call(*arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(monkeypatch)


def refused(result: Result, *, code: int) -> str:
    assert isinstance(result.exception, SluiceError)
    assert exit_code(result.exception) == code
    return str(result.exception)


def test_a_letter_is_listed_shown_retried_and_then_refused(line: Line) -> None:
    asyncio.run(line.office.poison(VERDICTS, verdict()))
    (listed,) = line.ask("dead-letters", "list", "--json")
    assert (listed["state"], listed["record"]["consumer"]) == ("letter", "assembler")
    place = f"{listed['partition']}:{listed['offset']}"
    shown = line.ask("dead-letters", "show", place, "--json")
    assert (shown["decoded"]["code"], shown["retry"]) == ("correct", "")
    assert line.ask("dead-letters", "retry", place, "--dry-run", "--json")["copy"] is None
    assert line.ask("dead-letters", "retry", place, "--json")["copy"] == f"{VERDICTS.name}:1:1"
    for more in ((), ("--dry-run",), ("--reissue",)):
        again = line.call("dead-letters", "retry", place, *more)
        assert "was retried before" in refused(again, code=2)
    assert "retried" in line.call("dead-letters", "list").stdout
    assert "no dead letter" in refused(line.call("dead-letters", "show", "0:99"), code=2)


def test_what_does_not_decode_is_shown_with_the_reason(line: Line) -> None:
    asyncio.run(line.office.poison(VERDICTS, verdict(), raw=b"junk"))
    (listed,) = line.ask("dead-letters", "list", "--json")
    place = f"{listed['partition']}:{listed['offset']}"
    assert "magic" in line.ask("dead-letters", "show", place, "--json")["undecodable"]
    assert "magic" in refused(line.call("dead-letters", "retry", place), code=1)


def test_trim_names_what_holds_and_deletes_only_without_dry_run(line: Line) -> None:
    assert "no run has a recorded audit" in refused(line.call("topics", "trim"), code=2)
    line.office.bus.append(CONTROL, control(ControlKind.START, 0))
    line.office.bus.append(CONTROL, control(ControlKind.AUDITED, 30))
    told = line.ask("topics", "trim", "--dry-run", "--json")
    assert line.deleted == []
    (tokens,) = [row for row in told["partitions"] if row["topic"] == TOKENS.name]
    assert (tokens["records"], tokens["why"]) == (30, "the last recorded audit ends")
    assert "90 records were deleted" in line.call("topics", "trim").stderr
    assert line.deleted[0][TOKENS.name, 0] == 30

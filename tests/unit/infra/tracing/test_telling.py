"""One episode's trace can be looked at without a collector."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from infra.tracing.telling import print_trace, to_json, trace_of
from schemas.errors import SettingsError
from schemas.ids import EpisodeId
from schemas.records.learner_event import LearnerEvent
from schemas.tracing import root_span, trace_of_episode
from tests.support.recorded_run import RESUMED, TRAINED, RecordedRun
from tests.support.run_records import RUN


async def test_a_trace_is_told_parents_first_with_the_ids_that_a_collector_has() -> None:
    bus = RecordedRun(partitions=3).write()
    tree = json.loads(json.dumps(to_json(await trace_of(bus.consumers(), RUN, RESUMED))))
    assert tree["trace_id"] == f"{trace_of_episode(RESUMED):032x}"
    first, *rest = tree["spans"]
    assert first["name"] == "episode"
    assert first["span_id"] == f"{root_span(trace_of_episode(RESUMED)):016x}"
    seen = {first["span_id"]}
    for span in rest:
        assert span["parent_id"] in seen, span["name"]
        seen.add(span["span_id"])
    assert [span["name"] for span in rest].count("attempt") == 2


async def test_an_episode_that_is_not_settled_is_told_as_far_as_it_is_known() -> None:
    def change(_: object, record: object) -> object:
        return None if type(record) is LearnerEvent else record

    bus = RecordedRun(change).write()
    spans = await trace_of(bus.consumers(), RUN, TRAINED)
    assert spans[0].attributes["sluice.outcome"] == "pending"
    assert spans[0].error == ""
    assert {"attempt", "generation", "gate"} <= {span.name for span in spans}
    assert "learner wait" not in {span.name for span in spans}


async def test_people_see_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    bus = RecordedRun().write()
    out = io.StringIO()
    print_trace(await trace_of(bus.consumers(), RUN, TRAINED), console=Console(file=out, width=300))
    lines = [line for line in out.getvalue().splitlines() if "│" in line]
    names = [line.split("│")[3].rstrip() for line in lines]
    assert " episode" in names
    assert "     turn" in names, "two levels below its episode"
    assert any("outcome=trained" in line for line in lines)
    assert capsys.readouterr().out == ""


async def test_an_episode_that_nobody_wrote_of_is_refused() -> None:
    bus = RecordedRun().write()
    with pytest.raises(SettingsError, match="no record of"):
        await trace_of(bus.consumers(), RUN, EpisodeId(f"{RUN}.77.0"))

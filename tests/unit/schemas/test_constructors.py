"""The quick constructors of records make what the dataclass' own would: frozen, whole, with fresh
maps.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from schemas.ids import RunId, WorkerId
from schemas.records.metric_point import MetricPoint
from schemas.topics import ALL, Topic
from tests.support.random_records import RecordBuilder


def _point(**fields: Any) -> MetricPoint:
    return MetricPoint(
        run_id=RunId("r"), name="n", unit="u", value=1.0, at_us=1, writer_id=WorkerId("w"), **fields
    )


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_a_record_made_anew_from_its_fields_is_equal_and_frozen(topic: Topic[Any]) -> None:
    for seed in range(20):
        record = RecordBuilder(seed, size_max=40).record(topic)
        fields = {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}
        made = topic.record(**fields)
        assert made == record == dataclasses.replace(record)
        assert type(made) is topic.record
        assert copy.copy(made) == record == pickle.loads(pickle.dumps(made))
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.run_id = "another"


def test_a_map_that_is_left_out_is_a_new_one_each_time() -> None:
    one, other = _point(), _point()
    assert one.labels == {}
    assert one.labels is not other.labels


def test_a_field_without_a_default_must_be_given() -> None:
    with pytest.raises(TypeError, match="at_us"):
        MetricPoint(run_id=RunId("r"), name="n", unit="u", value=1.0, writer_id=WorkerId("w"))  # type: ignore[call-arg]

"""One librdkafka producer with its poll thread, without a broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Message

from producers.core.config import client_config
from producers.lane import Lane, Route, Ticket
from producers.settings import ProducerSettings
from schemas.ports import Acked, Acknowledgement, Unknown

NOBODY = ProducerSettings(bootstrap="127.0.0.1:1", client_id="lane", delivery_timeout_ms=1_000)


def lane() -> Lane:
    config = client_config(NOBODY, compression="none", linger_ms=1, host="here", pid=1)
    one = Lane(config)
    one.loop = asyncio.get_running_loop()
    return one


def ticket(lane: Lane) -> Ticket:
    one = Ticket(loop=lane.loop)
    one.partition = 2
    one.route = Route(
        lane=lane, settled=[], produce=lane.client.produce, full="t", hashed=str,
        partitions=4, bytes_max=100,
    )  # fmt: skip
    return one


@pytest.mark.parametrize(
    ("offset", "outcome"), [(0, Acked(2, 0)), (7, Acked(2, 7)), (-1001, Unknown), (None, Unknown)]
)
async def test_an_acknowledgement_is_one_only_where_it_names_an_offset(
    offset: int | None, outcome: Acknowledgement | type[Unknown]
) -> None:
    one = ticket(lane())
    message = Message() if offset is None else Message(offset=offset)
    one(None, message)
    assert one.route.settled == [one]
    told = one.outcome
    assert told == outcome or (outcome is Unknown and isinstance(told, Unknown))
    one.route.lane.retire("over")


async def test_a_callback_that_fails_leaves_all_in_flight_unknown_and_the_lane_dead() -> None:
    one = lane()

    def failing(_error: object, _message: object) -> None:
        raise TypeError("made by a test")

    pending = ticket(one)
    one.in_flight.add(pending)
    one.client.produce("t", b"value", on_delivery=failing)
    outcome = await asyncio.wait_for(pending, 20)
    assert isinstance(outcome, Unknown)
    assert "callback" in outcome.reason
    assert one.is_alive
    assert "callback" in one.dead
    one.retire("over")
    await asyncio.to_thread(one.join)
    assert not one.is_alive

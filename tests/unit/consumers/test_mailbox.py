"""The mailbox keeps order and bounds between a thread and the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from consumers.mailbox import Mailbox
from schemas.errors import TransientError


def test_it_is_full_by_records_or_by_bytes_and_has_space_again_when_taken_from() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=3, bytes_max=100)
    filled = []
    mailbox.put([1, 2], 10)
    filled.append(mailbox.is_full)
    mailbox.put([3], 10)
    assert not mailbox.wait_for_space(0.001)
    assert mailbox.take() == [1, 2]
    assert mailbox.wait_for_space(0.001)
    mailbox.put([4], 95)
    filled.append(mailbox.is_full)
    assert filled == [False, True]
    assert [mailbox.take(), mailbox.take(), mailbox.take()] == [[3], [4], ()]


def test_a_failure_is_raised_for_good_once_all_before_it_was_taken() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=3, bytes_max=100)
    mailbox.put([1], 1)
    mailbox.fail(TransientError("first"))
    mailbox.fail(TransientError("second"))
    mailbox.check()
    assert [mailbox.take(), mailbox.take()] == [[1], ()]
    for _ in range(2):
        with pytest.raises(TransientError, match="first"):
            mailbox.check()


def test_a_complaint_is_raised_once_and_the_stream_goes_on_behind_it() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=3, bytes_max=100)
    mailbox.complain(TransientError("no broker answers"))
    with pytest.raises(TransientError, match="no broker"):
        mailbox.check()
    mailbox.put([1], 1)
    assert [mailbox.take(), mailbox.take()] == [[1], ()]
    mailbox.check()


def test_taking_raises_nothing_and_a_withdrawn_complaint_is_not_heard() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=3, bytes_max=100)
    mailbox.complain(TransientError("no broker answers"))
    assert mailbox.take() == ()
    mailbox.withdraw()
    mailbox.check()


async def test_a_waiter_is_woken_by_the_thread_and_no_parcel_is_lost() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=50, bytes_max=10_000)

    def write() -> None:
        for number in range(2_000):
            while not mailbox.wait_for_space(1):
                pass
            mailbox.put([number], 1)

    thread = threading.Thread(target=write)
    thread.start()
    found: list[int] = []
    while len(found) < 2_000:
        if parcel := mailbox.take():
            found += parcel
        else:
            assert await mailbox.wait(5)
    thread.join()
    assert found == list(range(2_000))


async def test_a_wait_ends_by_itself_when_nothing_comes() -> None:
    mailbox: Mailbox[int] = Mailbox(records_max=1, bytes_max=1)
    assert await mailbox.wait(0.01) is False
    await asyncio.sleep(0)

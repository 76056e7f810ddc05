"""An episode's story on the live page, in a real browser: its tokens, its times, or why there is
none.
"""

from __future__ import annotations

import re

import httpx
import pytest

from tests.support import small_run
from tests.support.page_process import UNREACHED
from tests.support.page_server import Open
from tests.support.recorded_run import ABANDONED, DROPPED, RESUMED
from tests.support.shown_page import TOLD, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_an_episode_opens_by_a_click_with_its_tokens_by_version(opened: Open) -> None:
    page = opened()
    assert small_run.episode(1) == RESUMED
    page.click("#episodes tbody tr:nth-child(3) button")
    page.until(TOLD)
    assert page.value("location.hash") == f"#episode={RESUMED}"
    said = page.text("#story-body")
    assert (
        "attempts: 2 · ended by: policy_stop · verdict: correct · reward: 1 · gate: admit" in said
    )
    assert "trained by: 1/1 (update 1)" in said
    assert "sampled by: 0/0 1/1" in said
    # Markup in a model's words is text.
    assert "zero one <b>two</b> three four five" in said
    tokens = page.value(
        "[...document.querySelectorAll('div.tokens span')]"
        ".map((one) => [one.className.trim(), one.title])"
    )
    main = "version 0/0, log-prob -0.5, main"
    assert tokens[4] == ["v0", f"token 0, {main}"]
    assert tokens[9] == ["v0 old", "token 5, version 0/0, log-prob -0.5, sibling"]
    assert tokens[-3:] == [
        ["v0", f"token 0, {main}"],
        ["v1", "token 1, version 1/1, log-prob -0.5, main"],
        ["v1", "token 2, version 1/1, log-prob -0.5, main"],
    ]
    assert lines(page, "story-tools") == [
        "tool arguments output exit ms", 'add {"left": 40, "right": 2} 42 ok 12.5',
    ]  # fmt: skip
    times = lines(page, "story-times")
    assert times[0] == "s topic offset kind what"
    assert times[1] == "0 episodes.v1 2 issued as member 0 of 2"
    assert re.fullmatch(r"[\d.]+ learner-steps.v1 2 step version 1/1", times[-1])
    page.click("#story button")
    page.until("!document.querySelector('#story').open && location.hash === ''")


def test_an_episode_opens_by_its_address_whatever_became_of_it(opened: Open) -> None:
    page = opened(f"#episode={DROPPED}")
    page.until(TOLD)
    assert "gate: drop (lag)" in page.text("#story-body")
    assert "trained by: none" in page.text("#story-body")
    page = opened(f"#episode={ABANDONED}")
    page.until(TOLD)
    assert "ended by: group_deadline" in page.text("#story-body")


def test_an_episode_of_another_run_has_no_story_here(opened: Open) -> None:
    page = opened("#episode=run-2.0.0")
    page.until(TOLD)
    assert "no story: run-2.0.0 is no episode of run run-1" in page.text("#story-body")


def test_why_there_is_no_story_is_told_with_what_to_do(opened: Open, address: str) -> None:
    answer = httpx.get(f"{address}/dashboard/story/{UNREACHED}")
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    page = opened(f"#episode={UNREACHED}")
    page.until(TOLD)
    assert "no story: no broker answers [bus] -> is it running?" in page.text("#story-body")
    page = opened("#episode=run-1.0")
    page.until(TOLD)
    assert "expected RUN.ORDINAL.MEMBER -> choose one of the page" in page.text("#story-body")

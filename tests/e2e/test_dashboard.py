"""The live page in a real browser, over the real tables of runs worked out by hand."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterator

import httpx
import pytest
from rich.console import Console

from infra.cli.top import SHOWN, screen
from tests.support import page_run, selected_runs, small_run
from tests.support.browser import Browser, Page
from tests.support.page_server import SELECTED, Open
from tests.support.shown_page import (
    INKS,
    SETTLED,
    TOLD,
    bars,
    choose,
    figures,
    legend,
    lines,
    luminance,
)
from tests.support.table_process import ROOT

STATIC = ROOT / "infra" / "dashboard" / "static"
PHONE = 390
"""Pixels across."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shown(address: str, browser: Browser) -> Iterator[Page]:
    """The page of the small run, as it opens."""
    page = browser.open(f"{address}/dashboard/")
    page.until(SETTLED)
    yield page
    page.close()


def test_the_figures_and_bars_are_those_of_the_run(shown: Page) -> None:
    told = figures(shown)
    # 200 tokens sampled and 89 trained in 20 s, as `small_run` says.
    for name, value in {
        "updates": "1", "reward, newest update": "1", "episodes trained": "2", "pending": "1",
        "dropped": "1", "abandoned": "0", "sampled tokens/s": "10", "trained tokens/s": "4.45",
        "wall clock of the whole run, s": "20",
    }.items():  # fmt: skip
        assert told[name] == value, name
    assert bars(shown, "accounts") == {
        "trained": "2", "pending": "1", "evaluated": "1", "dropped: lag": "1",
    }  # fmt: skip
    waits = bars(shown, "waits")
    assert waits["waits: refresh"] == "1 s"
    assert waits["waits: straggler"] == "4 s"
    assert waits["train"] == f"{small_run.TRAIN_S} s"
    assert waits["record"] == f"{small_run.RECORD_S} s"
    # What is left of the wait of 10 s, but for the hundredths that are the broker's.
    assert waits["waits: batch_not_full"] == "5 s"


def test_the_legends_tell_the_newest_values(shown: Page) -> None:
    assert legend(shown, "reward") == {"update": "1", "counter": "1"}
    lag = {"p50": "1 updates", "p95": "1 updates", "p99": "1 updates"}
    assert legend(shown, "lag") == {"update": "1", **lag, "n": "2"}
    age = {"p50": "1 s", "p95": "1 s", "p99": "1 s"}
    assert legend(shown, "age") == {"update": "1", **age, "n": "2"}
    throughput = legend(shown, "throughput")
    assert throughput["sampled"] == "0 tokens/s"
    # 89 tokens in that minute; against 8 s in which the learner, the busiest stage, worked.
    assert throughput["trained"] == "1.48 tokens/s"
    assert throughput["bound of the whole run (learn)"] == "11.1 tokens/s"


def test_latencies_have_their_unit_and_percentiles(shown: Page) -> None:
    rows = lines(shown, "quantities")
    assert rows[0] == "quantity unit p50 p95 p99 max n"
    for row in (
        "ttft_ms ms 300 300 300 300 5",
        "inter_token_ms ms 10 10 10 10 5",
        "kv_reuse_ratio ratio 0.6 0.6 0.6 0.6 5",
        "exposure_wait_ms ms 2 3 3 3 2",
        "tool_call_ms ms 20 20 20 20 5",
        "verifier_ms ms 400 400 400 400 4",
        "environment_reset_ms ms 100 100 100 100 4",
        "environment_turn_ms ms 250 250 250 250 1",
        "refresh_pause_ms ms 2,000 2,000 2,000 2,000 1",
        "learner_step_ms ms 18,000 18,000 18,000 18,000 1",
        "episode_reward reward 1 1 1 1 4",
    ):
        assert row in rows


def test_workers_stand_with_the_version_that_they_serve(shown: Page) -> None:
    head, *rows = lines(shown, "workers")
    assert head == "worker role status version behind starts seen"
    # It serves 1/0, and the newest of the policies is one update on.
    assert rows == ["inference-0 inference ready 1/0 1 1 2025-11-29 18:46:41"]


def test_what_went_wrong_is_an_alarm_in_the_words_of_its_record(shown: Page) -> None:
    head, *rows = lines(shown, "alarms")
    assert head == "alarm where n what last"
    letters = f"verdicts.v1, assembler 2 PoisonRecordError: {page_run.POISON} 2025-11-29 18:46:46"
    assert rows == [
        f"dead letter {letters}",
        f"refresh failed inference-1 1 {page_run.REFUSED} 2025-11-29 18:46:49",
        "doubtful rows writer-0 1 not_finite -",
    ]


def test_trained_lengths_that_differ_from_those_offered_are_an_alarm(opened: Open) -> None:
    page = opened()
    choose(page, "#run", SELECTED)
    told = [row for row in lines(page, "alarms") if row.startswith("trained lengths")]
    offered = [n for n in range(selected_runs.N) if not selected_runs.is_pending(n)]
    is_trained = selected_runs.TRAINED[SELECTED]
    trained = sum(is_trained(n, random.Random(0)) for n in offered)
    parts = ("window 1 of 1,000", "window 0 of 1,000", f"whole run {len(offered) - trained}")
    assert len(told) == len(parts)
    for row, part in zip(told, parts, strict=True):
        assert row.startswith(f"trained lengths differ {part} ")
    # All that were trained are shorter than any that was dropped.
    apart = f"stand {1 - trained / len(offered):.3g} apart"
    assert f"{trained:,} of {len(offered):,} were trained, and their lengths {apart}" in told[2]


def test_alarms_stand_where_lengths_could_not_be_compared_in_time(opened: Open) -> None:
    page = opened()
    page.value(
        "(() => { const asked = window.fetch; window.fetch = (to, given) =>"
        " given.body?.includes('selection_by_length')"
        " ? Promise.resolve(new Response('too slow', { status: 500 })) : asked(to, given); })()"
    )
    choose(page, "#run", page_run.LONG)
    told = lines(page, "alarms")
    assert "lengths not compared whole run 1 too slow -" in told
    assert any(row.startswith("dead letter") for row in told)


def test_the_page_lets_the_sink_rest_and_answers_a_choice_at_once(opened: Open) -> None:
    page = opened()
    began = page.value("(restUntil = performance.now() + 60_000, renew(), busy)")
    assert began is False
    choose(page, "#run", page_run.LONG)
    assert figures(page)["updates"] == "900"
    # A look that took a second is followed by nine of rest.
    slow = "(() => { const real = window.fetch; window.fetch = async (...given) => {"
    slow += "await new Promise((done) => setTimeout(done, 1000)); return real(...given); };"
    page.value(slow + "restUntil = 0; renew(); })()")
    page.until("!busy")
    assert page.value("restUntil - performance.now()") > 5_000


def test_episodes_stand_with_their_outcome_the_newest_first(shown: Page) -> None:
    head, *rows = lines(shown, "episodes")
    assert head == "episode environment reward termination tokens turns tools at"
    assert [row.split()[0] for row in rows] == [small_run.episode(n) for n in (4, 2, 1, 0)]
    assert rows[2].startswith(f"{small_run.episode(1)} counter 1 success 55 1 1 2025-11-29")


def test_another_run_is_chosen_by_its_name_whatever_the_name_says(opened: Open) -> None:
    page = opened()
    names = "[...document.querySelector('#run').options].map((one) => one.textContent)"
    assert page.value(names) == [small_run.RUN, page_run.LONG, page_run.SILENT, SELECTED]
    choose(page, "#run", page_run.LONG)
    assert figures(page)["updates"] == "900"
    assert bars(page, "accounts") == {"pending": "2", "abandoned: group_deadline": "1"}
    assert bars(page, "waits") == {"waits: batch_not_full": "9,000 s", "train": "18,000 s"}
    assert lines(page, "workers")[1].startswith("verifier-00 verifier ready - - 1 2025-11-29")
    assert lines(page, "alarms")[1].startswith("dead letter verdicts.v1, assembler 1 Error")
    # A run that never sampled a token is looked for most when it does not begin.
    choose(page, "#run", page_run.SILENT)
    assert figures(page)["updates"] == "0"
    assert lines(page, "workers")[1].startswith("inference-7 inference starting")


def test_an_answer_to_an_earlier_choice_is_not_drawn_over_a_later_one(opened: Open) -> None:
    page = opened()
    page.choose("#run", page_run.LONG)
    long = json.dumps(str(httpx.QueryParams({"param_run": page_run.LONG})))
    page.until(f"window.answers.some((one) => one.at.includes({long}))")
    choose(page, "#run", small_run.RUN)
    assert figures(page)["updates"] == "1"
    assert len(lines(page, "workers")) == 2
    assert legend(page, "lag")["n"] == "2"


def test_a_range_ends_with_the_run_and_holds_for_every_card_that_does_not_say_otherwise(
    opened: Open,
) -> None:
    page = opened()
    choose(page, "#run", page_run.LONG)
    whole = {place: lines(page, place) for place in ("workers", "alarms")}
    choose(page, "#range", "300")
    # Five minutes before its end, and back to the minute's beginning: 350 s with 12 updates.
    assert "from 18:24:00 to 18:29:50" in page.text("#state")
    told = figures(page)
    assert told["sampled tokens/s, in the range"] == "2"
    assert told["trained tokens/s, in the range"] == "0.72"
    assert told["pending, of those issued in the range"] == "1"
    assert told["wall clock of the whole run, s"] == "27,000"
    assert bars(page, "accounts") == {"pending": "1"}
    assert bars(page, "waits") == {"waits: batch_not_full": "120 s", "train": "240 s"}
    assert "policy_lag_steps updates 0 9 9 9 36" in lines(page, "quantities")
    assert len(lines(page, "episodes")) == 2
    for place in ("reward", "lag", "age"):
        assert page.value(f"plots.get('{place}').plot.data[0]") == list(range(889, 901))
    assert page.value("plots.get('throughput').plot.data[0].length") == 6
    assert "bound of the whole run (learn)" in legend(page, "throughput")
    for place, text in whole.items():
        assert lines(page, place) == text
        assert "whatever the range" in page.text(f"section:has(#{place}) .hint")
    assert page.text("section:has(#accounts) .hint") == "every episode issued in the range once"
    # The range that is shown is the one that is chosen.
    choose(page, "#range", "0")
    assert figures(page)["pending"] == "2"


def test_a_point_of_several_updates_tells_the_percentiles_of_their_trajectories(
    opened: Open,
) -> None:
    page = opened()
    choose(page, "#run", page_run.LONG)
    # Three updates of three: six lags of 0, three of 9. The greatest of their medians is 9.
    lag = {"p50": "0 updates", "p95": "9 updates", "p99": "9 updates", "n": "9"}
    assert legend(page, "lag") == {"updates": "898 to 900", **lag}
    age = {"p50": "1 s", "p95": "3 s", "p99": "3 s", "n": "9"}
    assert legend(page, "age") == {"updates": "898 to 900", **age}
    assert legend(page, "reward") == {"updates": "898 to 900", "counter": "0.333"}
    for place in ("reward", "lag", "age"):
        assert "a point is of 3 updates together" in page.text(f"section:has(#{place}) .hint")
        assert page.value(f"plots.get('{place}').plot.data[0].length") == page_run.UPDATES / 3
    # Of nine rewards three are 1 and six 0: a deviation of a half.
    edge = page.value("plots.get('reward').plot.data[3].at(-1)")
    assert edge == pytest.approx(1 / 3 + 0.5)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_a_phone_and_can_be_read_in_both_schemes(opened: Open, dark: bool) -> None:
    page = opened(width=PHONE, dark=dark)
    # A phone shows a page that is too wide smaller: then the window is as wide as the page.
    fits = f"Math.max(innerWidth, document.documentElement.scrollWidth) <= {PHONE}"
    assert page.value(fits), "the small run"
    choose(page, "#run", page_run.LONG)
    choose(page, "#range", "3600")
    assert page.value(fits), "the long run"
    # Nothing is out of sight but what a card of its own scrolls to.
    assert page.value(
        "[...document.querySelectorAll('body *:not(.scroll *)')]"
        f".filter((one) => one.getBoundingClientRect().right > {PHONE} + 0.5)"
        ".map((one) => one.outerHTML.slice(0, 80))"
    ) == []  # fmt: skip
    choose(page, "#run", small_run.RUN)
    page.click("#episodes tbody tr:nth-child(3) button")
    page.until(TOLD)
    assert page.value(fits), "the story"
    assert page.value("document.querySelector('#story').getBoundingClientRect().width") <= PHONE
    inks = page.value(INKS)
    for place, (ink, ground) in inks.items():
        assert (luminance(ground) < 0.1) == dark, place
        # WCAG 2.2, success criterion 1.4.3: text against what is behind it.
        brighter, darker = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, place


def test_the_size_of_a_run_never_reaches_the_browser(opened: Open) -> None:
    page = opened()
    choose(page, "#run", page_run.LONG)
    points, rows, alarms, runs = page.value("[POINTS_MAX, ROWS_MAX, ALARMS_MAX, RUNS_MAX]")
    assert 4 * alarms <= rows
    for answer in page.answers():
        told = json.loads(answer["text"])
        columns = [one["name"] for one in told["meta"]]
        bound = points if columns[0] == "x" else runs if columns == ["run_id"] else rows
        assert len(told["data"]) <= bound, answer["asked"]
    # The run has more of each than that.
    assert page.value("plots.get('lag').plot.data[0].length") == 300
    assert page.value("plots.get('throughput').plot.data[0].length") == 226
    assert len(lines(page, "episodes")) == 1 + rows
    assert lines(page, "workers")[-1] == f"{rows} of {page_run.CROWD}"
    assert lines(page, "alarms")[-1] == f"{alarms} of {page_run.ERRORS}"


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_script_of_others(address: str) -> None:
    front = httpx.get(f"{address}/dashboard", follow_redirects=True)
    assert "default-src 'none'" in front.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([^"]+)"', front.text):
        if name.startswith("data:"):
            continue
        assert "/" not in name
        assert httpx.get(f"{address}/dashboard/{name}").status_code == httpx.codes.OK
    assert httpx.get(f"{address}/dashboard/..%2f..%2fetc%2fpasswd").status_code == 404


def test_the_terminal_shows_the_same_run(address: str) -> None:
    asked = {"default_format": "JSON", "param_run_id": small_run.RUN}

    def asking(statement: str) -> list[dict[str, object]]:
        answer = httpx.post(f"{address}/", params=asked, content=statement, timeout=60)
        assert answer.status_code == httpx.codes.OK, answer.text
        rows: list[dict[str, object]] = answer.json()["data"]
        return rows

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(asking))
    shown = console.export_text()
    assert re.search(r"^update 1 +reward", shown)
    assert re.search(r"trained +- +2|trained +none +2|trained +2", shown)
    assert re.search(r"dropped +lag +1", shown)
    assert re.search(r"policy_lag_steps +\S+ +\S+ +\S+ +\S+ +2", shown)
    assert "inference-0" in shown
    at = [shown.find(f"\n{name} ") for name in SHOWN]
    found = [place for place in at if place >= 0]
    assert len(found) > 5
    assert found == sorted(found), "a quantity stands where it stood at the last look"
    for lines_max in (24, 30, 60):
        low = Console(width=80, record=True, file=io.StringIO())
        low.print(screen(asking, lines_max=lines_max))
        fits = low.export_text()
        assert len(fits.splitlines()) <= lines_max
        assert re.search(r"workers: .*ready.*serving: 1/", fits)
        for title in ("trajectories", "waits of the learner", "quantities"):
            assert re.search(rf"\b{title}\b", fits), fits
        assert "max" in fits


def test_names_of_runs_are_values_and_never_statements() -> None:
    asked = ""
    for file in STATIC.glob("*.js"):
        if file.name.startswith("uPlot"):
            continue
        script = file.read_text()
        assert "innerHTML" not in script, file.name
        asked += "".join(re.findall(r"\bask\(\s*`(.*?)`", script, re.DOTALL))
    inside = re.findall(r"\$\{([^}]*)\}", asked)
    assert set(inside) == {"SURVIVORS", "ROWS_MAX", "ALARMS_MAX", "RUNS_MAX"}

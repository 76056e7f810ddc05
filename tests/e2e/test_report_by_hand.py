"""The report of a run that was worked out by hand, from its real tables and its records."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from infra.run.findings import Findings, find_out
from infra.run.folder import RunFolder, conducting
from infra.run.history import History
from infra.run.report import render
from infra.run.summary import summarise
from schemas import topics
from schemas.ports import Delivered
from tests.support import small_run
from tests.support.browser import Browser
from tests.support.small_run import RUN, fill, made
from tests.support.table_process import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

COUNTS: dict[str, Any] = {
    "issued": 5, "trained": 2, "dropped": {"lag": 1}, "abandoned": {}, "evaluated": 1, "pending": 1,
    "duplicates": {}, "tokens": {
        "sampled": 200, "trained": 89, "masked:dis_low": 2, "masked:dis_high": 4, "superseded": 5,
        "dropped:lag": 30, "evaluated": 50, "pending": 20,
    },
}  # fmt: skip
LETTERS_PX_MIN = 9
"""A line of text in a drawing is at least so high."""
ERROR = "</td><script>x</script>"


class _Rows(HTMLParser):
    """Gathers the cells of each row of each table, by the heading before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._title = self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._tag = tag
        rows = self.tables.setdefault(self._title, [])
        if tag == "h2":
            self._title = ""
        elif tag == "tr":
            rows.append([])
        elif tag in ("td", "th"):
            rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "h2":
            self._title += data
        elif self._tag in ("td", "th"):
            self.tables[self._title][-1][-1] += data


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    root = tmp_path_factory.mktemp("run")
    retried = [
        (
            topics.EPISODES, 10,
            made(topics.EPISODES, kind="leased", episode_id=small_run.episode(0), attempt=2,
                 after_failures={"lease_expired": 2, ERROR: 1}, worker_id="environment-0"),
        )
    ]  # fmt: skip
    tables = Tables(RunFolder(root=root).tables)
    fill(tables, more=retried)
    tables.roll()
    tables.close()
    # As at the end of a run: its conductor asks, which holds the run still.
    with conducting(RunFolder(root=root)):
        return find_out(RunFolder(root=root), RUN)


@pytest.fixture(scope="module")
def page(findings: Findings) -> str:
    history = History(run_id=RUN)
    for topic, at_s, record in small_run.rows():
        at_ms = round(1000 * (small_run.T0 + at_s))
        history.take(
            Delivered(
                topic=topic.name, partition=0, offset=0, timestamp_ms=at_ms, key=None, record=record
            )
        )
    settings = {"run": {"name": "small", "seed": 7}}
    summary = summarise(history, counts=COUNTS, violations=0, settings=settings, restarts=0)
    return render(history, summary, "{}", findings=findings, began_in={}, settings_digest="5" * 64)


def test_every_question_of_the_report_is_answered(findings: Findings) -> None:
    assert findings.reasons == {}


@pytest.mark.parametrize(
    ("title", "rows"),
    [
        (
            "Throughput against its bound",
            [
                ["sampled", "10.00", "tokens/s"],
                ["trained (effective)", "4.45", "tokens/s"],
                ["trained (effective)", "0.100", "trajectories/s"],
                # 89 tokens in the 8 s in which the learner worked.
                ["bound", "11.12", "tokens/s"],
                ["learn", "8.000 s", "40.0%", "1"],
                ["rollout", "6.000 s", "30.0%", "1"],
                ["verify", "1.600 s", "8.0%", "1"],
            ],
        ),
        (
            "Where the time went",
            [
                ["work", "train", "6.000 s", "33.3%"],
                ["wait", "straggler", "4.000 s", "22.2%"],
                ["work", "record", "2.000 s", "11.1%"],
                ["wait", "refresh", "1.000 s", "5.6%"],
                ["sum", "of 18.000 s wall clock", "18.000 s", "100.0%"],
            ],
        ),
        (
            "Success on the held-out set",
            [["counter", "0/0", "-", "100.0%", "20.7% to 100.0%", "1", "1"]],
        ),
        (
            "Lag by bucket",
            [
                ["0", "1", "40", "37", "1", "2"],
                ["1", "1", "55", "52", "1", "2"],
                ["0", "0", "0", "0", "0", "1"],
                ["1", "0.01", "0.01", "0.01", "0.01", "1"],
            ],
        ),
        (
            "Importance ratio by lag",
            [["0", "1", "40", "36.0", "90.0%", "1", "1", "1.2", "1.3", "1.3"]],
        ),
        (
            "Lengths trained against lengths offered",
            [
                ["offered", "40", "55", "55", "55", "3"],
                ["trained", "55", "55", "55", "55", "2"],
                # Up to 30 tokens stands a third of what was offered and nothing that was trained.
                ["whole run", "3", "2", "0.3333", "0.9906", "0", "no"],
            ],
        ),
        ("Retries by cause", [["lease_expired", "2"], [ERROR, "1"], ["sum", "3"]]),
        (
            "Funnel of trajectories",
            [
                ["trained", "", "2", "40.0%"], ["dropped", "lag", "1", "20.0%"],
                ["evaluated", "", "1", "20.0%"], ["pending", "", "1", "20.0%"],
                ["sum", "of 5 issued", "5", "100.0%"],
            ],
        ),
        (
            "Funnel of action tokens",
            [
                ["trained", "", "89", "44.5%"], ["masked", "dis_high", "4", "2.0%"],
                ["sum", "of 200 sampled", "200", "100.0%"],
            ],
        ),
    ],
)  # fmt: skip
def test_the_tables_of_the_report_hold_what_was_worked_out(
    page: str, title: str, rows: list[list[str]]
) -> None:
    read = _Rows()
    read.feed(page)
    found = read.tables[title]
    assert [row for row in rows if row not in found] == []


def test_the_bottleneck_is_named_and_no_alarm_stands(page: str) -> None:
    text = re.sub(r"\s+", " ", page)
    assert (
        "Bottleneck: learn, which worked 8.000 s; the run reached 40.0% of the bound of 11.12"
        in text
    )
    assert "The learner waited 55.6% of its wall clock." in text
    assert "No alarm is raised over 3 trajectories." in text
    assert "Alarm:" not in text


def test_a_run_without_tables_says_so_and_names_no_folder(tmp_path: Path) -> None:
    found = find_out(RunFolder(root=tmp_path), RUN)
    assert found.rows == {}
    assert set(found.reasons.values()) == {"the run has neither a sink that runs nor tables"}


def test_a_phone_and_a_screen_show_the_report_without_a_page_wider_than_they_are(
    page: str, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text(page)
    with Browser(tmp_path / "browser") as browser:
        for width, dark in ((1200, False), (1200, True), (390, False)):
            one = browser.open(f"file://{tmp_path}/report.html", width=width, dark=dark)
            assert one.value("document.documentElement.scrollWidth") <= width
            ink, paper = (
                one.value(f"getComputedStyle(document.{place})['{which}']")
                for place, which in (
                    ("querySelector('svg text')", "fill"), ("documentElement", "color"),
                )
            )  # fmt: skip
            assert ink == paper
            heights = one.value(
                "[...document.querySelectorAll('svg text')]"
                ".map((text) => text.getBoundingClientRect().height)"
            )
            assert min(heights) >= LETTERS_PX_MIN
            one.close()


def test_a_print_of_the_report_is_dark_on_paper_and_cuts_nothing_off(
    page: str, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text(page)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    with Browser(tmp_path / "browser") as browser:
        one = browser.open(f"file://{tmp_path}/report.html", width=794, dark=True)
        one.call("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
        assert one.value("getComputedStyle(document.documentElement).color") == "rgb(0, 0, 0)"
        assert one.value("document.documentElement.scrollWidth") <= 794
        cut = (
            "[...document.querySelectorAll('figure, .wide')]"
            ".filter((part) => part.scrollWidth > part.clientWidth).length"
        )
        assert one.value(cut) == 0

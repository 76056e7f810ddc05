"""The report of a run says what the summary says, in words and units, and needs nothing beside
itself.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from infra.run.history import History
from infra.run.progress import what_it_waits_for
from infra.run.report import amount, render
from infra.run.summary import summarise
from schemas.enums import LearnerEventKind, TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import Span, pack_logprobs, pack_spans
from schemas.ports import Delivered
from schemas.records.learner_event import LearnerEvent
from schemas.records.parts import TrainedMember
from schemas.records.policy_version import PolicyVersion
from schemas.records.token_commit import TokenCommit

RUN = RunId("0190a0b0-1234-7abc-8def-0123456789ab")
ME = WorkerId("w")
COUNTS: dict[str, Any] = {
    "issued": 40,
    "trained": 24,
    "dropped": {"lag": 3, "age": 1},
    "abandoned": {"retries_exhausted": 2},
    "evaluated": 4,
    "pending": 6,
    "tokens": {"sampled": 1_200, "trained": 900, "masked:dis_low": 20, "superseded": 7},
}


def _delivered(record: Any, at_ms: int = 1_000) -> Delivered[Any]:
    return Delivered(topic="t", partition=0, offset=0, timestamp_ms=at_ms, key=None, record=record)


def _commit(kind: TokenKind = TokenKind.ACTION, version: Version | None = None) -> Delivered[Any]:
    spans = pack_spans([Span(0, 1, version)]) if version else b""
    logprobs = pack_logprobs([-1.0]) if version else b""
    return _delivered(
        TokenCommit(
            run_id=RUN, episode_id=EpisodeId("e"), group_id=GroupId("g"), attempt=1,
            fence_number=1, writer_id=WorkerId("inference-0"), incarnation="i", producer_number=1,
            kind=kind, count=1 if version else 0, logprobs=logprobs,
            spans=spans, crc32c=0, at_us=1,
        )
    )  # fmt: skip


def _learner(kind: LearnerEventKind, at_ms: int = 1_000, **fields: Any) -> Delivered[Any]:
    event = LearnerEvent(
        run_id=RUN, kind=kind, epoch=1, learner_id=ME, at_us=1, writer_id=ME, **fields
    )
    return _delivered(event, at_ms)


def _history(steps: int = 8) -> History:
    history = History(run_id=RUN)
    history.take(_learner(LearnerEventKind.EPOCH_STARTED))
    for ordinal in range(1, steps + 1):
        trained = tuple(
            TrainedMember(
                episode_id=EpisodeId(f"{RUN}.{ordinal}.{i}"), group_id=GroupId(f"g{i}"),
                partition=0, offset=i, environment=("arithmetic", "calculator")[i % 2],
                reward=float(i % 3 == 0), kept_tokens=10, lag_steps=ordinal % 3, age_ms=2_500,
            )
            for i in range(4)
        )  # fmt: skip
        phases = {"train": 1_500_000, "wait_batch": 500_000}
        at = {"number": ordinal, "ordinal": ordinal, "phases_us": phases}
        history.take(_learner(LearnerEventKind.STEP, 1_000 * ordinal, trained=trained, **at))
    return history


def _report(history: History) -> tuple[str, dict[str, Any]]:
    settings = {"run": {"name": "<b>demo</b>", "seed": 7}}
    summary = summarise(history, counts=COUNTS, violations=0, settings=settings, restarts=1)
    return render(history, summary, '{"run": 1}'), summary


class _Text(HTMLParser):
    """Gathers the text outside of styles and drawings, and every address that a page names."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden += tag in ("style", "svg")
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "svg")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def _read(html: str) -> tuple[str, _Text]:
    page = _Text()
    page.feed(html)
    return re.sub(r"\s+", " ", " ".join(page.words)), page


@pytest.fixture(scope="module")
def whole() -> tuple[str, dict[str, Any]]:
    return _report(_history())


@pytest.mark.slow
def test_the_report_needs_nothing_beside_itself(whole: tuple[str, dict[str, Any]]) -> None:
    html, _ = whole
    _, page = _read(html)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


@pytest.mark.slow
def test_the_report_shows_every_quantity_with_its_unit(whole: tuple[str, dict[str, Any]]) -> None:
    html, summary = whole
    text, _ = _read(html)
    for title in (
        "Reward", "Policy lag at consumption", "Buffer age at consumption",
        "Funnel of trajectories", "Funnel of action tokens", "Stage latencies",
        "Where the learner's time goes", "Percentiles", "Accounts",
    ):  # fmt: skip
        assert title in text
    assert html.count("<svg") == 7
    assert "audit clean" in text
    assert "24 of 40" in text
    assert "4 (age 1, lag 3) trajectories" in text
    assert "learner: train 1.50 s 1.50 s 1.50 s 1.50 s 8" in text
    assert "buffer age at consumption 2.50 s" in text
    assert f"{summary['effective_tokens_per_s']:.1f} tokens/s" in text
    for reason in ("dropped: lag", "abandoned: retries_exhausted", "masked: dis_low"):
        assert reason in html
    assert "<b>demo</b>" not in html


@pytest.mark.slow
def test_what_is_drawn_takes_the_colour_of_the_page(whole: tuple[str, dict[str, Any]]) -> None:
    html, _ = whole
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert all("currentColor" in one for one in drawings)
    assert not any(re.search(r"#(000000|010203|ffffff)", one) for one in drawings)


@pytest.mark.slow
def test_a_run_without_a_step_has_a_report_too() -> None:
    text, _ = _read(_report(_history(steps=0))[0])
    assert "mean reward, last quarter - first quarter -" in text
    assert "- / - / -" in text


@pytest.mark.parametrize(
    ("value", "unit", "says"),
    [
        (None, "ms", "-"),
        (15_300.0, "ms", "15.3 s"),
        (999.4, "ms", "999 ms"),
        (0.0421, "ms", "0.042 ms"),
        (2, "updates", "2 updates"),
        (1_234.5, "tokens/s", "1,234 tokens/s"),
    ],
)
def test_amounts_read_as_people_write_them(value: float | None, unit: str, says: str) -> None:
    assert amount(value, unit) == says


def test_a_worker_that_writes_tokens_is_not_waited_for() -> None:
    history = _history(steps=0)
    policy = PolicyVersion(
        run_id=RUN, epoch=0, number=0, ordinal=0, digest="d", location="x", at_us=1, writer_id=ME
    )
    history.take(_delivered(policy))
    waits = [what_it_waits_for(history, alive=set(), batch=1)]
    history.take(_commit(TokenKind.FENCE))
    waits.append(what_it_waits_for(history, alive=set(), batch=1))
    assert waits == ["an inference worker to serve", "the scheduler to issue work"]
    assert history.serving == {}
    history.take(_commit(version=Version(0, 0)))
    assert history.serving == {"inference-0": "0/0"}

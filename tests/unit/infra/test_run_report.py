"""The report of a run says what the summary says, in words and units, and needs nothing beside
itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from infra.run.environment import settings_digest
from infra.run.findings import QUESTIONS, Findings, Row, gather, nothing
from infra.run.history import History
from infra.run.learning_sections import wilson
from infra.run.progress import what_it_waits_for
from infra.run.report import amount, render
from infra.run.summary import summarise
from schemas.enums import LearnerEventKind, TokenKind
from schemas.errors import Boundary, RejectedError
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
    "duplicates": {"trajectories": 2, "commits": 1_234},
    "tokens": {"sampled": 1_200, "trained": 900, "masked:dis_low": 20, "superseded": 280},
}


NOTHING: dict[str, Sequence[Row]] = dict.fromkeys(QUESTIONS, ())
"""What tables without a row answer."""


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


def _report(
    history: History, *, findings: Findings | None = None, counts: dict[str, Any] | None = None,
    name: str = "<b>demo</b>", began_in: dict[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    settings = {"run": {"name": name, "seed": 7}}
    summary = summarise(
        history, counts=counts or COUNTS, violations=0, settings=settings, restarts=1
    )
    page = render(
        history, summary, f'{{"name": "{name}"}}', findings=findings or nothing("they are away"),
        began_in=began_in or {}, settings_digest="5" * 64,
    )  # fmt: skip
    return page, summary


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
        "Where the learner's time goes", "Percentiles", "Accounts", "KL at consumption",
        "Environment of the run", "24 of 40",
    ):  # fmt: skip
        assert title in text
    assert html.count("<svg") == 8
    assert "audit clean" in text
    assert "4 (age 1, lag 3) trajectories" in text
    assert "counted nowhere else 1,236 (commits 1,234, trajectories 2) records" in text
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
    assert text.count("The learner has made no update yet.") == 6


@pytest.mark.slow
def test_one_update_is_told_in_words_and_not_drawn_as_a_dot() -> None:
    text, _ = _read(_report(_history(steps=1))[0])
    for sentence in (
        "One update so far: mean reward 0.5.",
        "One update so far: p50 1, p95 1, p99 1 updates over 4 trajectories.",
        "One update so far: p50 2.5, p95 2.5, p99 2.5 seconds over 4 trajectories.",
        "One update so far: train 1.500 s, wait_batch 0.500 s.",
    ):
        assert sentence in text


@pytest.mark.slow
def test_a_report_is_written_whatever_has_become_of_the_tables(
    whole: tuple[str, dict[str, Any]],
) -> None:
    text, _ = _read(whole[0])
    assert text.count("The tables of the run told nothing: they are away.") == 7
    assert "Digests of the policy and of the tasks are not known: they are away." in text
    assert "Versions and commit were not recorded when this run began." in text


def test_a_question_that_fails_leaves_the_answers_of_the_others() -> None:
    def ask(statement: str, values: Mapping[str, str]) -> bytes:
        if "stage_busy" in statement:
            raise RejectedError("Code: 159. too slow", boundary=Boundary.STORE, hint="")
        if "steps_counted" in statement:
            raise RejectedError("(UNKNOWN_TABLE)", boundary=Boundary.STORE, hint="")
        assert values == {"run_id": "r"}
        column = b'{"name": "n", "type": "UInt64"}'
        return b'{"meta": [' + column + b'], "data": [{"n": "18446744073709551615"}]}'

    found = gather(ask, "r")
    assert found.reasons == {
        "stages": "Code: 159. too slow",
        "ratios": "they were made by another version of Sluice",
    }
    assert set(found.rows) == set(QUESTIONS) - {"stages", "ratios"}
    assert found.rows["throughput"] == [{"n": 2**64 - 1}]
    with pytest.raises(RejectedError, match="too slow"):
        found.of("throughput", "stages")


@pytest.mark.slow
def test_what_the_tables_told_of_nothing_is_said_in_words() -> None:
    empty = Findings(rows=NOTHING)
    none = {
        "issued": 0, "trained": 0, "dropped": {}, "abandoned": {}, "evaluated": 0, "pending": 0,
        "duplicates": {}, "tokens": {"sampled": 0},
    }  # fmt: skip
    html, _ = _report(History(run_id=RUN), findings=empty, counts=none)
    text, _ = _read(html)
    assert "<svg" not in html
    for sentence in (
        "No held-out task has been answered: see task_source.evaluate_every.",
        "No trajectory for training has been trained or dropped yet.",
        "No attempt of an episode was tried again.",
        "No token has been sampled yet.",
        "No episode has been issued yet.",
        "No update has measured the ratio of a token by lag.",
        "Nothing has been measured yet.",
    ):
        assert sentence in text


NASTY = "it's \"</pre><script>alert(1)</script>$\\frac$ &amp; <img src=x onerror=a()>"


@pytest.mark.slow
def test_no_text_of_a_run_becomes_markup_or_a_formula() -> None:
    held_out = [
        {"environment": NASTY, "epoch": 1, "number": n, "ordinal": n, "successes": n, "n": 4,
         "reward_mean": 0.5}
        for n in (1, 2)
    ]  # fmt: skip
    waits = [{"kind": "work", "cause": NASTY, "spent_s": 2.0}]
    rows = NOTHING | {
        "held_out": held_out, "waits": waits, "wait_check": [{"wall_s": 2.0}],
        "retries": [{"cause": NASTY, "n": 3}],
        "tasks": [{"stream": NASTY, "environment": NASTY, "environment_digest": NASTY,
                   "verifier_digest": NASTY}],
    }  # fmt: skip
    counts = COUNTS | {"dropped": {NASTY: 4}}
    began_in = {"commit": NASTY, "held_out": {NASTY: NASTY}, "packages": {NASTY: NASTY}}
    html, _ = _report(
        _history(), findings=Findings(rows=rows), counts=counts, name=NASTY, began_in=began_in
    )
    plain, page = _read(html)
    assert not {"script", "img"} & set(page.tags)
    assert "<script" not in html
    assert plain.count("$\\frac$ &amp; <img src=x") >= 12
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", html))
    assert "$\\frac$ &amp;amp; &lt;img" in drawn


@pytest.mark.slow
def test_an_alarm_stands_at_its_section_and_at_the_head() -> None:
    lengths = [
        {"part": part, "offered": 2_000 if part < 0 else 1_000, "trained": 900,
         "distance": distance, "p": 1e-9, "span_p95": 2, "is_alarm": int(distance > 0.1)}
        for part, distance in ((-1, 0.25), (0, 0.04), (1, 0.31))
    ]  # fmt: skip
    curve = {
        "offered": 2_000, "trained": 900,
        "offered_tokens": [float(10 * percent) for percent in range(101)],
        "trained_tokens": [float(7 * percent) for percent in range(101)],
    }  # fmt: skip
    rows = NOTHING | {
        "lengths": lengths, "length_curves": [curve],
        "waits": [{"kind": "wait", "cause": "commit", "spent_s": 1.0}],
        "wait_check": [{"wall_s": 4.0}],
    }  # fmt: skip
    counts = COUNTS | {"pending": 5}
    text, page = _read(_report(_history(), findings=Findings(rows=rows), counts=counts)[0])
    for sentence in (
        "over the whole run the distance is 0.250.",
        "differ from those offered in 1 of 2 windows of 1,000 trajectories.",
        "1.000 s are attributed, but the wall clock is 4.000 s.",
        "39 trajectories are accounted for, 40 were issued.",
    ):
        assert text.count(sentence) == 2, sentence
    assert len([one for one in page.addresses if re.fullmatch(r"#s\d+", one)]) == 4
    assert "offered 500 950 990 1,000 2,000" in text
    assert "trained 350 665 693 700 900" in text
    assert "trajectories from 1,001 on 1,000 900 0.3100 1e-09 2 stands" in text
    assert "trajectories from 1 on" not in text


@pytest.mark.slow
def test_the_use_of_the_hardware_is_told_with_its_formula() -> None:
    history = _history(steps=0)
    for ordinal, ratio in ((1, 0.25), (2, 0.5), (3, 0.375)):
        at = {"number": ordinal, "ordinal": ordinal, "metrics": {"mfu_ratio": ratio}}
        history.take(_learner(LearnerEventKind.STEP, 1_000 * ordinal, **at))
    text, _ = _read(_report(history)[0])
    assert "3 · tokens · (2 · parameters + 4 · layers · width · row tokens)" in text
    assert "p50 37.5%, max 50.0%, n 3 updates." in text
    text, _ = _read(_report(_history())[0])
    assert "Not known: learner.peak_tflops is not set" in text


@pytest.mark.slow
def test_what_the_run_began_in_is_told() -> None:
    began_in = {
        "python": "3.11.7", "system": "Linux x86_64", "processors": 2, "commit": "c0ffee",
        "is_changed": True, "packages": {"torch": "2.13.0"}, "held_out": {"digits": "d" * 64},
    }  # fmt: skip
    tasks = [{"stream": "digits", "environment": "digits", "environment_digest": "e" * 64,
              "verifier_digest": "f" * 64}]  # fmt: skip
    policy = {"digest": "a" * 64, "tokenizer_digest": "b" * 64, "template_digest": "",
              "precision": "bf16"}  # fmt: skip
    rows = NOTHING | {"tasks": tasks, "first_policy": [policy]}
    text, _ = _read(_report(_history(), findings=Findings(rows=rows), began_in=began_in)[0])
    for cells in (
        "seed 7", f"settings, sha256 {'5' * 64}",
        "git commit c0ffee, with changes that were not committed", "Python 3.11.7",
        "system Linux x86_64, 2 processors", "torch 2.13.0", f"starting weights {'a' * 64}",
        f"tokenizer {'b' * 64}", "precision of the weights bf16",
        f"environment of digits, sha256 {'e' * 64}", f"verifier of digits, sha256 {'f' * 64}",
        f"digits {'d' * 64}",
    ):  # fmt: skip
        assert cells in text
    assert "prompt template" not in text


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(1, 1, 0.2065, 1.0), (8, 16, 0.28, 0.72), (0, 16, 0.0, 0.1936)],
)
def test_the_interval_of_a_share_is_wilsons(
    successes: int, n: int, low: float, high: float
) -> None:
    found = wilson(successes, n)
    assert found[0] == pytest.approx(low, abs=1e-4)
    assert found[1] == pytest.approx(high, abs=1e-4)


def test_equal_settings_have_equal_digests_wherever_the_run_lies() -> None:
    one, other = Path("/runs/1"), Path("/elsewhere/2")
    assert settings_digest(f"{one}/versions", one) == settings_digest(f"{other}/versions", other)
    assert settings_digest('{"seed": 1}', one) != settings_digest('{"seed": 2}', one)


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

"""The live page in a real browser, over the real tables of a run worked out by hand."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from infra.cli.top import screen
from schemas import topics
from tests.support import small_run
from tests.support.page_process import KNOWN
from tests.support.table_process import Tables

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the page."""
    folder = tmp_path_factory.mktemp("page")
    tables = Tables(folder)
    batches: dict[str, tuple[list[object], list[int]]] = {}
    for topic, at_s, record in small_run.rows():
        records, times = batches.setdefault(topic.name, ([], []))
        records.append(record)
        times.append(round((small_run.T0 + at_s) * 1000))
    for name, (records, times) in batches.items():
        tables.add(topics.BY_NAME[name], records, at_ms=times)
    tables.roll()
    tables.close()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.page_process", str(folder)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.stdin.close()
    server.wait(20)


def browse(address: str, folder: Path) -> str:
    """What the page holds once its answers are in, as the browser sees it."""
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={folder}", "--virtual-time-budget=15000", "--dump-dom", address,
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    return done.stdout


def words(html: str, place: str) -> str:
    """The text of the element with this id, up to the next section."""
    _, _, rest = html.partition(f'id="{place}"')
    assert rest, place
    return re.sub(r"<[^>]*>", " ", rest.partition("</section>")[0].partition(">")[2])


def test_the_page_shows_the_run(page: str, tmp_path: Path) -> None:
    html = browse(f"{page}/dashboard/", tmp_path)
    assert "as of" in words(html, "state").partition("\n")[0]
    assert "run-1" in words(html, "run")
    accounts = words(html, "accounts")
    assert re.search(r"trained\s+2", accounts)
    assert re.search(r"pending\s+1", accounts)
    assert "dropped" in accounts
    assert "policy_lag_steps" in words(html, "quantities")
    assert "episode_reward" in words(html, "quantities")
    assert KNOWN in words(html, "episodes")
    for drawn in ("reward", "lag", "age", "throughput"):
        assert "u-wrap" in html.partition(f'id="{drawn}"')[2].partition("</section>")[0], drawn
    # The newest update is told beside the lines, with how many trajectories its percentiles are of.
    assert re.search(
        r"update\s+1\s+p50\s+\S+ updates\s+p95.*n\s+2\s", words(html, "lag"), re.DOTALL
    )


def test_an_episode_opens_with_its_tokens_by_version(page: str, tmp_path: Path) -> None:
    html = browse(f"{page}/dashboard/#episode={KNOWN}", tmp_path)
    story = html.partition('id="story-body"')[2]
    assert re.search(r'<span class="v0 "[^>]*version 0/0[^>]*log-prob -0.5[^>]*>forty-', story)
    assert re.search(r'<span class="v1 old"[^>]*version 1/1[^>]*superseded[^>]*>two', story)
    assert "calculator" in story
    assert "issued by the scheduler" in story
    assert "trained by: 1/1 (update 1)" in story


def test_an_episode_of_another_run_has_no_story_here(page: str, tmp_path: Path) -> None:
    html = browse(f"{page}/dashboard/#episode=run-2.0.0", tmp_path)
    assert "no story: run run-1 has no episode run-2.0.0" in html


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_script_of_others(page: str) -> None:
    front = httpx.get(f"{page}/dashboard", follow_redirects=True)
    assert "default-src 'none'" in front.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([^"]+)"', front.text):
        if name.startswith("data:"):
            continue
        assert "/" not in name
        assert httpx.get(f"{page}/dashboard/{name}").status_code == httpx.codes.OK
    assert httpx.get(f"{page}/dashboard/..%2f..%2fetc%2fpasswd").status_code == 404


def test_the_terminal_shows_the_same_run(page: str) -> None:
    def asking(statement: str) -> list[dict[str, object]]:
        answer = httpx.post(f"{page}/?default_format=JSON", content=statement, timeout=20)
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


def test_names_of_runs_are_values_and_never_statements() -> None:
    script = (ROOT / "infra" / "dashboard" / "static" / "dashboard.js").read_text()
    inside = re.findall(r"\$\{([^}]*)\}", "".join(re.findall(r"ask\(`(.*?)`", script, re.DOTALL)))
    assert set(inside) == {"SURVIVORS", "ROWS_MAX"}
    assert "innerHTML" not in script

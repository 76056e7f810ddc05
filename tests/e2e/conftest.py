"""The live page in a real browser, for the tests that look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, Page
from tests.support.page_server import Open, serving
from tests.support.shown_page import SETTLED


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the page."""
    with serving(tmp_path_factory.mktemp("tables"), tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests of a module."""
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def opened(address: str, browser: Browser) -> Iterator[Open]:
    """Opens pages of a test's own, each with its answers in."""
    pages: list[Page] = []

    def opening(hash_of: str = "", *, width: int = 1200, dark: bool = False) -> Page:
        pages.append(browser.open(f"{address}/dashboard/{hash_of}", width=width, dark=dark))
        pages[-1].until(SETTLED)
        return pages[-1]

    yield opening
    for page in pages:
        page.close()

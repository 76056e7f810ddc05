"""What the live page shows, read from a browser as text, and its colours."""

from __future__ import annotations

import re

from tests.support.browser import Page

SETTLED = "document.querySelector('#state').textContent.startsWith('as of')"
TOLD = "document.querySelector('#story-times, #story-body .alarm')"
INKS = """
Object.fromEntries(
  ["h1", "h2", "label", "#run", "#state", ".figure b", ".figure span", ".hint", ".u-label",
   ".bar em", "th", "td", ".alarm", "#episodes button", "div.tokens span", "#story button",
  ].map((place) => {
    const one = document.querySelector(place);
    const ground = (part) => getComputedStyle(part).backgroundColor;
    let behind = one;
    while (ground(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    return [place, [getComputedStyle(one).color, ground(behind)]];
  })
)
"""
"""Colours of the page's texts, each with the one behind it."""


def lines(page: Page, place: str) -> list[str]:
    """Return the text of the element with this id, line by line; cells are parted by blanks."""
    return [" ".join(line.split()) for line in page.text(f"#{place}").splitlines() if line.strip()]


def bars(page: Page, place: str) -> dict[str, str]:
    """Return what the bars of a card say, by their names."""
    told = lines(page, place)
    return dict(zip(told[::2], told[1::2], strict=True))


def legend(page: Page, place: str) -> dict[str, str]:
    """Return what the legend of a plot says of its newest point, by the names of its lines."""
    told = page.value(
        f"[...document.querySelectorAll('#{place} .u-series:not(.edge)')]"
        ".map((one) => [...one.children].map((part) => part.innerText.trim()))"
    )
    return dict(told)


def figures(page: Page) -> dict[str, str]:
    """Return the figures at the top, by their names."""
    told = lines(page, "figures")
    return dict(zip(told[1::2], told[::2], strict=True))


def choose(page: Page, place: str, value: str) -> None:
    """Choose a run or a range and wait for its answers."""
    page.choose(place, value)
    page.until(SETTLED)


def luminance(colour: str) -> float:
    """Return how bright an `rgb(...)` is, 0 to 1. Source: WCAG 2.2, relative luminance."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

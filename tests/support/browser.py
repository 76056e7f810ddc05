"""A headless Chromium that tests steer: pages of any width and colour scheme, their text, clicks.

It is spoken to over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/).
Every wait ends by its limit with an AssertionError that tells what the page held.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

_START_S = 60.0
_CALL_S = 60.0
_WAIT_S = 60.0
_CLOSE_S = 20.0
_BETWEEN_S = 0.05
_HEIGHT = 900
_BYTES_MAX = 2**26
_HEARS = """
window.answers = [];
const real = window.fetch;
window.fetch = async (place, given) => {
  const answer = await real(place, given);
  const text = await answer.clone().text();
  window.answers.push({ asked: String(given?.body ?? place), at: String(place), text });
  return answer;
};
"""
"""Keeps what the page's own requests were answered."""


class Browser:
    """One browser process; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Start it with its profile in `folder`."""
        self._calls = 0
        self._loop = asyncio.Runner()
        self._process = subprocess.Popen(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--remote-debugging-port=0",
                f"--user-data-dir={folder}", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._session: aiohttp.ClientSession | None = None
        self._pipe: aiohttp.ClientWebSocketResponse | None = None
        self._port_file = folder / "DevToolsActivePort"

    def __enter__(self) -> Self:
        until = time.monotonic() + _START_S
        while not (self._port_file.exists() and "/" in self._port_file.read_text()):
            assert time.monotonic() < until, "the browser did not start"
            assert self._process.poll() is None, "the browser ended at once"
            time.sleep(_BETWEEN_S)
        port, path = self._port_file.read_text().split()
        self._loop.run(self._connect(f"ws://127.0.0.1:{port}{path}"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run(self._disconnect())
        self._loop.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_CLOSE_S)

    def open(self, address: str, *, width: int = 1200, dark: bool = False) -> Page:
        """Open a page. width: CSS pixels; up to 500 it is a phone's."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, target, session["sessionId"])
        page.call("Page.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", {"source": _HEARS})
        page.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": width <= 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.call("Page.navigate", {"url": address})
        page.until("location.href !== 'about:blank' && document.readyState === 'complete'")
        return page

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, session: str = ""
    ) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        return self._loop.run(self._call(method, parameters or {}, session))

    async def _connect(self, address: str) -> None:
        self._session = aiohttp.ClientSession()
        self._pipe = await self._session.ws_connect(address, max_msg_size=_BYTES_MAX)

    async def _disconnect(self) -> None:
        if self._pipe is not None and self._session is not None:
            await self._pipe.send_json({"id": 0, "method": "Browser.close"})
            await self._pipe.close()
            await self._session.close()

    async def _call(self, method: str, parameters: dict[str, Any], session: str) -> dict[str, Any]:
        assert self._pipe is not None
        self._calls += 1
        number = self._calls
        asked = {"id": number, "method": method, "params": parameters}
        await self._pipe.send_json(asked | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(_CALL_S):
            while True:
                # What comes between are events.
                told = json.loads(await self._pipe.receive_str())
                if told.get("id") == number:
                    assert "error" not in told, f"{method}: {told['error']}"
                    result: dict[str, Any] = told["result"]
                    return result


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        """Take the ids of the page and of the session with it."""
        self._browser, self._target, self._session = browser, target, session

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self._browser.call(method, parameters, self._session)

    def value(self, script: str) -> Any:
        """Return what an expression is worth in the page, as plain data."""
        told = self.call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True},
        )
        assert "exceptionDetails" not in told, f"{script}: {told['exceptionDetails']}"
        return told["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + _WAIT_S
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"never: {script}\n{self.text('body')}"
            time.sleep(_BETWEEN_S)

    def text(self, place: str) -> str:
        """Return the text that is seen in the first element of a selector."""
        told: str = self.value(f"document.querySelector({json.dumps(place)})?.innerText ?? ''")
        return told

    def click(self, place: str) -> None:
        """Click into the middle of the first element of a selector, scrolled into view."""
        x, y = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(place)});"
            " one.scrollIntoView({ block: 'center', behavior: 'instant' });"
            " const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1},
            )

    def choose(self, place: str, value: str) -> None:
        """Choose an option of a select, as a user does."""
        done = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(place)});"
            f" one.value = {json.dumps(value)};"
            " one.dispatchEvent(new Event('change', { bubbles: true })); return one.value; })()"
        )
        assert done == value, f"{place} has no option {value}"

    def answers(self) -> list[dict[str, str]]:
        """Return what the page's requests were answered: `asked`, `at` and `text` of each."""
        heard: list[dict[str, str]] = self.value("window.answers")
        return heard

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page, the part out of view with it."""
        shot = self.call("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Close the page."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})

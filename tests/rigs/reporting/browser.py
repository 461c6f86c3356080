"""A headless Chromium driven through its DevTools protocol, for tests, measurements and screenshots of the report.

Needs Debian's `chromium` (or `google-chrome`); nothing is downloaded. The browser gets a folder of its own and no network.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-port=0", "about:blank"),
)
PATIENCE = 120.0
"""Seconds that the browser has for one command; a busy machine is slow."""


class BrowserError(RuntimeError):
    """The browser did not start, did not answer, or its page raised an error."""


def program() -> str | None:
    """Path of the installed browser; None if there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless browser; leaving the `with` block ends it.

    `problems` collects what the page printed as an error, and every request for anything but a file.
    """

    def __init__(self, width: int = 1440, height: int = 900) -> None:
        path = program()
        if path is None:
            raise BrowserError("no Chromium: apt-get install chromium")
        self.problems: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="browser-")
        self._process = subprocess.Popen(
            [path, f"--user-data-dir={self._folder}", f"--window-size={width},{height}", *FLAGS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._number = 0
        try:
            self._run(self._connect())
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _connect(self) -> None:
        import aiohttp

        port = await self._port()
        self._session = aiohttp.ClientSession(trust_env=False)
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as reply:
            pages = [page for page in await reply.json() if page["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        self._reading = asyncio.ensure_future(self._read())
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            await self._send(f"{domain}.enable")

    async def _port(self) -> str:
        place, deadline = Path(self._folder, "DevToolsActivePort"), time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if place.is_file() and (lines := place.read_text().split()):
                return lines[0]
            if self._process.poll() is not None:
                raise BrowserError(f"the browser ended with code {self._process.returncode}")
            await asyncio.sleep(0.05)
        raise BrowserError("the browser did not start")

    async def _read(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if (waiting := self._waiting.pop(event.get("id", -1), None)) is not None:
                waiting.set_result(event)
            else:
                self._note(event.get("method", ""), event.get("params", {}))

    def _note(self, method: str, event: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.problems.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not event["request"]["url"].startswith(
            ("file:", "about:", "data:")
        ):
            self.problems.append(f"request for {event['request']['url'][:200]}")
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {event['message'][:200]}")

    async def _send(self, method: str, values: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        self._number += 1
        waiting = self._waiting[self._number] = self._loop.create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": values or {}})
        answer = await asyncio.wait_for(waiting, PATIENCE)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: Mapping[str, Any] = answer["result"]
        return result

    def send(self, method: str, **values: Any) -> Mapping[str, Any]:
        """Send one command of the DevTools protocol."""
        answer: Mapping[str, Any] = self._run(self._send(method, values))
        return answer

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value; promises are awaited.

        Raises:
            BrowserError: the expression raised an error.
        """
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(str(details.get("exception", {}).get("description") or details["text"]))
        return answer["result"].get("value")

    def open(self, page: Path, address: str = "#/overview") -> None:
        """Open a page of a report from the disk and wait until it is drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=page.resolve().as_uri() + address)
        self.wait(f"(document.getElementById('page') || {{dataset: {{}}}}).dataset.ready === {json.dumps(address)}")

    def go(self, address: str) -> None:
        """Go to another page of the open report."""
        self.run(f"location.hash = {json.dumps(address)}")
        self.wait(f"document.getElementById('page').dataset.ready === {json.dumps(address)}")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true.

        Raises:
            BrowserError: it does not become true.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited for {condition}; the page said {self.problems}")
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else ""
            )

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme: str) -> None:
        """Make `light` or `dark` the system's choice."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path) -> None:
        """Save the visible page as PNG."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def pdf(self) -> bytes:
        """Save the printed form of the page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def busy(self) -> float:
        """CPU seconds of the page's main thread since the page was opened, without waiting for the processor."""
        metrics = {each["name"]: each["value"] for each in self.send("Performance.getMetrics")["metrics"]}
        return float(metrics.get("ProcessTime", metrics["TaskDuration"]))

    def close(self) -> None:
        """End the browser and delete its folder."""
        if hasattr(self, "_socket"):
            self._run(self._end())
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _end(self) -> None:
        self._reading.cancel()
        await self._socket.close()
        await self._session.close()

"""A product for tests whose steps are coroutines: it keeps each line as it is sent, and which task and loop ran each step.

Some steps are plain and one returns something awaitable that is no coroutine, as an adapter may have them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Generator
from pathlib import Path
from typing import Any

ENVIRONMENT: dict[str, str] = {}
ABILITIES = {"sources": "exact", "score": "rank", "time": "clock"}
LAST: contextvars.ContextVar[str] = contextvars.ContextVar("last", default="nothing")


class Product:
    def __init__(self, given: dict[str, Any]) -> None:
        self._settings = given["settings"]
        self._loop = asyncio.get_event_loop_policy().get_event_loop()
        self._lines: list[dict[str, Any]] = []
        self._steps = ["built"]
        self._seen: list[str] = []
        """The context variable as each step found it."""
        LAST.set("built")

    def _enter(self, step: str) -> None:
        self._seen.append(LAST.get())
        LAST.set(step)
        self._steps.append(step)

    async def open(self, given: dict[str, Any]) -> None:
        await self._rest()
        self._enter("open")
        self._url = given["base_url"]

    async def write(self, unit: dict[str, Any]) -> dict[str, int]:
        await self._rest()
        self._enter("write")
        fault = self._settings.get("fault")
        if fault == "hang":
            await asyncio.sleep(600)
        elif fault == "raise":
            raise RuntimeError("the product broke while it was awaited")
        elif fault == "cancel":
            raise asyncio.CancelledError
        for turn in unit["turns"]:
            self._lines.append({"id": turn["id"], "text": turn["spoken"], "sources": [turn["id"]]})
        return {"stored": len(unit["turns"]), "changed": 0, "deleted": 0, "held": len(self._lines)}

    def end_session(self, _: dict[str, Any]) -> None:
        """A plain step between coroutines, which runs a loop of its own as adapters without a loop must."""
        self._enter("end_session")
        asyncio.new_event_loop().run_until_complete(asyncio.sleep(0))

    def consolidate(self, _: dict[str, Any]) -> Later:
        """Returns something awaitable that is no coroutine."""
        return Later(self._consolidated())

    async def _consolidated(self) -> None:
        await self._rest()
        self._enter("consolidate")

    async def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        await self._rest()
        self._enter("read")
        return self._lines[: question["k"]]

    async def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        """What the steps saw of one another."""
        return [{"steps": self._steps, "seen": self._seen, "url": self._url}]

    async def close(self, _: dict[str, Any]) -> None:
        await self._rest()
        if path := self._settings.get("closed"):
            Path(path).write_text(f"awaited, {LAST.get()}", encoding="utf-8")
            self._loop.close = self._told(self._loop.close, Path(path))  # type: ignore[method-assign]

    @staticmethod
    def _told(close: Any, path: Path) -> Any:
        def closed() -> None:
            close()
            path.write_text(path.read_text(encoding="utf-8") + ", closed", encoding="utf-8")

        return closed

    async def _rest(self) -> None:
        """Hand over to the loop once, and be on the loop that was there from the start.

        Raises:
            RuntimeError: it is another loop.
        """
        await asyncio.sleep(0)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("another event loop")


class Later:
    """Something awaitable that is no coroutine."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def __await__(self) -> Generator[Any, None, Any]:
        return self._step.__await__()  # type: ignore[no-any-return]

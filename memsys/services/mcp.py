"""Any MCP server as a memory, described in YAML; decisions and deviations are in `memsys.services.memory`.

A call is `{tool: add_memory, arguments: {text: "{text}"}}`; `ok` and `id` are those of `memsys.services.http`. A tool's result is its
structured content, else its text, and a list where there are several; JSON that a tool returns as a text is read as JSON.
`results.items` says where the list of hits is.

Decisions:

- A server on stdio is one process per case, in a folder of its own that is also its home and is deleted with it; it needs no `delete`.
  A server at a `url` is shared, and needs `delete`.
- The process gets the few variables that the package `mcp` passes on, those of `env`, and the keys named in `keys`.
- A tool that reports an error fails its step; so does a server that has ended, because its state is lost.
- A process gets its own home and only the variables that its settings name; the processes that it starts end with it. It runs with the
  user's rights, so it can read the user's files and connect to any machine.
- The session runs in a task of the event loop of all endpoints. The package `mcp` is imported when the first session is opened.
- With `network=false` a process is refused unless the file says that it is `local`, because its connections are not watched.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from memsys import processes
from memsys.folders import Held
from memsys.jsons import encoded, received
from memsys.llm import network, stopping
from memsys.llm.outcome import check_base_url
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.llm.secrets import redact, register
from memsys.llm.transport import event_loop
from memsys.services.leftovers import Namespaces, namespaces_at
from memsys.services.memory import LAST_WORDS, ServiceError, ServiceMemory, ServiceSettings
from memsys.services.templates import filled, mapping

POLL = 0.25
"""Seconds between two checks for a requested stop."""
MISSING = "the package mcp is not installed: pip install 'memsys-bench[mcp]'"


class SessionError(ModelError):
    """A call of a tool failed."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command to start, or the address of a server."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    keys: tuple[str, ...]
    """Environment variables that are passed to the process unchanged."""
    url: str
    headers: Mapping[str, str]
    local: bool
    """Whether the command connects to this machine only, as the author of the file states."""

    def permitted(self) -> None:
        """Check that `network=false` does not forbid this server.

        Raises:
            EndOfRun: the server is on another machine, or is a process whose connections cannot be watched.
        """
        if self.url:
            network.check_url(self.url)
        elif network.forbidden() and not self.local:
            raise EndOfRun(
                f"network=false: the connections of {self.command} cannot be watched; if it stays on this machine, "
                "set memory.build.local=true"
            )


class Session:
    """A session with a server: it opens at once, and ends with `close`.

    Raises:
        SessionError: the server does not start, or is not the version that was asked for.
        EndOfRun: it may not be started, or a key or the package `mcp` is missing.
    """

    def __init__(self, program: Program, version: str, seconds: float) -> None:
        program.permitted()
        self._program, self._secrets = program, dict[str, str]()
        for name in program.keys:
            value = os.environ.get(name, "").strip()
            if not value:
                raise EndOfRun(f"no key for the MCP server: set the environment variable {name}")
            register(value, name)
            self._secrets[name] = value
        processes.hide_this_process()
        held = processes.scratch_folder()
        self._folder = held.path
        (self._folder / "home").mkdir()
        self._said = (self._folder / "stderr.txt").open("w+", encoding="utf-8")
        self._forgotten = weakref.finalize(self, _let_go, held, self._said)
        self._open: Future[Any] = Future()
        self._ended = asyncio.Event()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), event_loop())
        try:
            self._client = self._awaited("start", self._open, seconds)
            info = self._client.server_info
            self.server = "unknown" if info is None else f"{info.name} {info.version}"
            if version and (info is None or version != info.version):
                raise SessionError(
                    f"expected version {version} of the server, found {self.server}; set memory.build.version"
                )
        except BaseException:
            self.close()
            raise

    def call(self, tool: str, arguments: Mapping[str, Any], seconds: float, *, stoppable: bool = True) -> Any:
        """Call a tool and return its result (`_value`).

        Args:
            stoppable: whether a requested stop ends the wait.

        Raises:
            SessionError: the tool reports an error, does not answer in time, or the server is gone.
        """
        if self._life.done() or self._ended.is_set():
            raise SessionError(f"{tool}: the server has ended. {self._tail()}")
        calling = asyncio.run_coroutine_threadsafe(self._client.call_tool(tool, dict(arguments)), event_loop())
        result = self._awaited(tool, calling, seconds, stoppable=stoppable)
        texts = [block.text for block in result.content if getattr(block, "type", "") == "text"]
        if result.is_error:
            raise SessionError(redact(f"{tool}: {' '.join(texts) or 'the tool reports an error without a text'}")[:500])
        return _value(texts, result.structured_content)

    def tools(self, seconds: float) -> dict[str, dict[str, Any]]:
        """The JSON schema of the arguments of each tool, by the tool's name.

        Raises:
            SessionError: the server does not answer in time, or is gone.
        """
        listing = asyncio.run_coroutine_threadsafe(self._client.list_tools(), event_loop())
        return {tool.name: dict(tool.input_schema) for tool in self._awaited("list tools", listing, seconds).tools}

    def close(self) -> None:
        """End the session, its process and its folder."""
        event_loop().call_soon_threadsafe(self._ended.set)
        try:
            self._life.result(timeout=30)
        except Exception:  # with or without an error, the session has ended
            self._life.cancel()
        self._forgotten()

    def _awaited(self, what: str, future: Future[Any], seconds: float, *, stoppable: bool = True) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return future.result(timeout=POLL)
            except NotYet:
                if future.done():
                    raise SessionError(f"{what}: the server gave up waiting. {self._tail()}") from None
                if stoppable and stopping.requested():
                    future.cancel()
                    raise stopping.Stopped("stopped before the reply came") from None
                if time.monotonic() > deadline:
                    future.cancel()
                    raise SessionError(f"{what}: no reply within {seconds:g} s. {self._tail()}") from None
            except (EndOfRun, SessionError):
                raise
            except Exception as error:
                raise SessionError(redact(f"{what}: {type(error).__name__}: {error}. {self._tail()}")[:700]) from error

    def _tail(self) -> str:
        """The last part of the process's stderr."""
        said = redact(processes.last_words(self._said))
        return f"It said: {said[-300:]}" if said else ""

    # --- in the event loop's thread ------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """The whole session, in a single task as the package demands."""
        try:
            async with self._opened() as client:
                self._open.set_result(client)
                await self._ended.wait()
        except BaseException as error:
            if not self._open.done():
                while isinstance(error, BaseExceptionGroup):  # the package raises groups of groups
                    error = error.exceptions[0]
                self._open.set_exception(error)
            elif not self._ended.is_set():
                raise

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        try:
            from mcp.client import Client
            from mcp.client.stdio import StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client
        except ImportError as error:
            raise EndOfRun(MISSING) from error
        program = self._program
        if program.url:
            headers = {name: _with(value, self._secrets) for name, value in program.headers.items()}
            async with (
                create_mcp_http_client(headers=headers) as http,
                Client(streamable_http_client(program.url, http_client=http)) as client,
            ):
                yield client
            return
        places = {"scratch": str(self._folder)}
        args = [_with(argument, places) for argument in program.args]
        env = {name: _with(value, places) for name, value in program.env.items()}
        env = {"HOME": str(self._folder / "home"), **env, **self._secrets}
        # Started by the loop's thread, which exists as long as this process.
        command, *args = processes.kept([program.command, *args])
        parameters = StdioServerParameters(command=command, args=args, env=env, cwd=self._folder)
        async with Client(stdio_client(parameters, errlog=self._said)) as client:
            yield client


def _let_go(held: Held, said: IO[str]) -> None:
    said.close()
    processes.let_go(held)


def _with(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _value(texts: list[str], structured: Mapping[str, Any] | None = None) -> Any:
    """The structured content of a tool's result, else what its text holds: JSON, or the text itself; several texts are a list.

    The package `mcp` wraps what a tool returns as text into `{"result": text}`; if it is a JSON object, list or null, it comes first.
    """
    values = [_read(text) for text in texts]
    value = values if len(values) > 1 else next(iter(values), None)
    wrapped = structured is not None and structured.keys() == {"result"} and isinstance(structured["result"], str)
    if structured is None or (wrapped and (isinstance(value, dict | list) or values == [None])):
        return value
    return received(encoded(structured))


def _read(text: str) -> Any:
    try:
        return received(text.encode(errors="replace"))
    except ValueError:
        return text


ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"tool", "arguments", "ok", "id"}


@dataclass(frozen=True)
class McpSettings(ServiceSettings):
    """Settings of an MCP server: a command, or a `url` whose `headers` name the keys of `keys` as `{NAME}`."""

    version: str = ""
    """The version that the server must report; empty: any."""
    command: str | None = None
    """The program; `{python}` is our interpreter, `{root}` the folder of our packages, `{scratch}` the scratch folder of the case."""
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    """Environment variables of the program with their values; none may be a key."""
    keys: Sequence[str] = ()
    """Names of environment variables whose values are keys; the program gets them."""
    url: str | None = None
    local: bool = False
    """Whether the command connects to this machine only."""
    open_seconds: float = 60.0
    """Time limit of opening a session."""
    step_seconds: float = 60.0
    """Time limit of a call."""


class McpMemory(ServiceMemory):
    """Recalls the hits of a tool of an MCP server.

    Raises:
        ValueError: a setting has another form, there is not exactly one of a command and a url, or a server at a url has no `delete`.
    """

    NEEDED: ClassVar = ("add", "search")

    def __init__(self, rng: np.random.Generator, settings: McpSettings = McpSettings()) -> None:
        if (settings.command is None) == (settings.url is None):
            raise ValueError("an MCP server needs a command or a url, and not both")
        if settings.url is not None and settings.delete is None:
            raise ValueError("delete is missing: a server at a url keeps what it was told")
        try:
            check_base_url(settings.url or "http://127.0.0.1")
        except ModelError as error:
            raise ValueError(f"url: {error}") from error
        super().__init__(rng, settings)
        self.settings: McpSettings = settings
        given = tuple(map(_placed, (settings.command or "", *settings.args)))
        around = {name: _placed(value) for name, value in (settings.env or {}).items()}
        headers = dict(settings.headers or {})
        self._program = Program(
            given[0], given[1:], around, tuple(settings.keys), settings.url or "", headers, settings.local
        )
        self._shared = _Shared()

    def report(self) -> dict[str, Any]:
        session = self._shared.session
        return {**super().report(), **({} if session is None else {"server": session.server})}

    def _prepared(self, where: str, given: Any) -> dict[str, Any]:
        call = mapping(where, given, FIELDS)
        if not call.get("tool") or not isinstance(call.get("arguments", {}), Mapping):
            raise ValueError(f"{where} must be {{tool: …, arguments: {{…}}}}, found {given!r}")
        return {"arguments": {}, **call}

    @property
    def _namespaces(self) -> Namespaces:
        program = self._program
        door = [
            program.command,
            program.args,
            sorted(program.env.items()),
            program.keys,
            sorted(program.headers.items()),
        ]
        if program.url:
            return namespaces_at(urlsplit(program.url).netloc, program.url, door)
        name = Path(program.command).name
        return namespaces_at(name, " ".join((name, *program.args)), door)

    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any], *, last: bool = False) -> Any:
        seconds, arguments = LAST_WORDS if last else self.settings.step_seconds, filled(call["arguments"], values)
        return self._session().call(call["tool"], arguments, seconds, stoppable=not last)

    def _session(self) -> Session:
        shared = self._shared
        with shared.lock:
            if shared.closed:
                raise ServiceError("the session is closed")
            if shared.session is None:
                shared.session = Session(self._program, self.settings.version, self.settings.open_seconds)
            return shared.session

    def _shut(self) -> None:
        with self._shared.lock:
            self._shared.closed = True
            if self._shared.session is not None:
                self._shared.session.close()


class _Shared:
    """State that copies of a memory share: the session, opened by the first step."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.closed = False


def _placed(text: str) -> str:
    return text.replace("{python}", sys.executable).replace("{root}", str(ROOT))

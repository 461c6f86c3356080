"""Any MCP server as a memory, described in YAML; decisions and deviations are in `memsys.services.memory`.

A call is `{tool: add_memory, arguments: {text: "{text}"}}`; `ok` and `id` are those of `memsys.services.http`. A tool's result is its
structured content, else its text, and a list where there are several; JSON that a tool returns as a text is read as JSON.
`results.items` says where the list of hits is.

Decisions:

- A server on stdio is one process per case, in a folder of its own that is also its home and is deleted with it; it needs no `delete`.
  A server at a `url` is shared, and needs `delete`.
- The process gets the few variables that the package `mcp` passes on, those of `env`, and the keys named in `keys`.
- A tool that reports an error fails its step; so does a server that has ended, because its state is lost.
- With `network=false` a process is refused unless the file says that it is `local`, because its connections are not watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from memsys.llm.outcome import check_base_url
from memsys.llm.protocol import ModelError
from memsys.services.leftovers import Namespaces, namespaces_at
from memsys.services.memory import LAST_WORDS, ServiceError, ServiceMemory, ServiceSettings
from memsys.services.session import Program, Session
from memsys.services.templates import filled, mapping

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

    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        return self._session().call(call["tool"], filled(call["arguments"], values), self.settings.step_seconds)

    def _send_at_last(self, call: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        arguments = filled(call["arguments"], values)
        self._session().call(call["tool"], arguments, LAST_WORDS, stoppable=False)

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

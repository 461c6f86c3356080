"""The five requests of an OpenAI-compatible batch API: upload, create, look up, list, download; sent with the openai package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memsys.jsons import encoded, received
from memsys.llm.outcome import RETRIED
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.llm.secrets import redact

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""States after which a batch does not change."""
CLOCKS = 86_400.0
"""Seconds by which the provider's clock and ours may differ."""


class UnknownBatch(ModelError):
    """The provider does not know a batch or file that we sent."""


@dataclass(frozen=True, slots=True)
class Status:
    """A batch as the provider describes it."""

    id: str
    state: str
    output: str
    """The file with the replies; empty when there is none."""
    errors: str
    """The file with the failed calls; empty when there is none."""
    code: str
    """Code of the first error of a batch that failed as a whole, such as `token_limit_exceeded`."""
    why: str
    answered: int
    """Number of calls that have a response; 0 where the provider does not count them."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Provider:
    """The batch API of one server.

    Args:
        base_url: the server's URL up to and including `/v1`.
        key: API key.
        timeout: seconds after which a request without a reply fails.
        retries: further attempts of a request that fails, made by the package.
    """

    def __init__(self, base_url: str, key: str, *, timeout: float, retries: int) -> None:
        import httpx
        import openai

        self.base_url = base_url
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=key,
            timeout=timeout,
            max_retries=retries,
            http_client=httpx.Client(timeout=timeout, follow_redirects=False),  # type: ignore[arg-type]
        )

    def upload(self, name: str, lines: bytes) -> str:
        """Upload a batch file; return the provider's name for it."""
        with self._asking():
            return str(self._client.files.create(file=(name, lines), purpose="batch").id)

    def create(self, file: str, path: str, ours: str) -> Status:
        """Create a batch of an uploaded file, with our own name of it in its metadata.

        The request is sent only once: if the reply is lost, the batch may exist all the same, and `find` shows whether it does.
        """
        with self._asking():
            made = self._client.with_options(max_retries=0).batches.create(
                input_file_id=file,
                endpoint=f"/v1{path}",  # type: ignore[arg-type]
                completion_window="24h",
                metadata={"memsys": ours},
            )
            return _status(made.to_dict())

    def status(self, batch: str) -> Status:
        """Look a batch up.

        Raises:
            UnknownBatch: the provider has no batch of this name.
        """
        with self._asking(named=True):
            return _status(self._client.batches.retrieve(batch).to_dict())

    def find(self, ours: str, begun: float | None) -> Status | None:
        """The batch with our name in its metadata; None when the provider has none.

        Args:
            begun: seconds since the epoch at which we began it; the list, newest first, is read until batches are older.
        """
        with self._asking():
            for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get("memsys") == ours:
                    return _status(batch.to_dict())
                if begun is not None and batch.created_at and batch.created_at < begun - CLOCKS:
                    break
        return None

    def replies(self, file: str) -> list[tuple[str, tuple[int, bytes]]]:
        """The replies in an output or error file, as `replies_of`.

        Raises:
            UnknownBatch: the provider has no file of this name.
        """
        with self._asking(named=True):
            return list(replies_of(self._client.files.content(file).iter_lines()))

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _asking(self, *, named: bool = False) -> Iterator[None]:
        """Turn an error of the package into a `ModelError`.

        Args:
            named: the request names a batch or a file, which the provider may not know.
        """
        import openai

        try:
            yield
        except openai.APIStatusError as error:
            if error.status_code == 404 and named:
                raise UnknownBatch(f"{self.base_url} does not know it (HTTP 404)") from error
            if error.status_code in (404, 405, 501):
                raise EndOfRun(
                    f"{self.base_url} has no batch API (HTTP {error.status_code}): set endpoint.mode=live"
                ) from error
            why = redact(f"{self.base_url}: the batch API failed: {error}")[:500]
            raise (ModelError if error.status_code in RETRIED else EndOfRun)(why) from error
        except openai.OpenAIError as error:
            raise ModelError(redact(f"{self.base_url}: the batch API failed: {error}")[:500]) from error


def best(replies: Iterable[tuple[str, tuple[int, bytes]]]) -> dict[str, tuple[int, bytes]]:
    """The replies by name; of several replies to a call, the first good reply, or else the last reply."""
    chosen: dict[str, tuple[int, bytes]] = {}
    for name, reply in replies:
        if chosen.get(name, (0, b""))[0] != 200:
            chosen[name] = reply
    return chosen


def replies_of(lines: Iterator[str]) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """Name, HTTP status and body of each undamaged line of an output file; an error without a response has status 0."""
    for line in lines:
        if not line.strip():
            continue
        try:
            value = received(line.encode("utf-8", "surrogatepass"))
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("custom_id"), str):
            response = value.get("response")
            if isinstance(response, dict) and not value.get("error"):
                code = response.get("status_code")  # vLLM leaves it out in some releases
                yield value["custom_id"], (code if type(code) is int else 200, encoded(response.get("body")))
            else:
                yield value["custom_id"], (0, encoded({"error": value.get("error")}))


def _status(batch: Mapping[str, Any]) -> Status:
    errors = (batch.get("errors") or {}).get("data") or [{}]
    answered = (batch.get("request_counts") or {}).get("completed")
    return Status(
        id=str(batch["id"]),
        state=str(batch.get("status")),
        output=batch.get("output_file_id") or "",
        errors=batch.get("error_file_id") or "",
        code=str(errors[0].get("code") or ""),
        why=str(errors[0].get("message") or ""),
        answered=answered if type(answered) is int else 0,
    )

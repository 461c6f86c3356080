"""A model for tests: it returns scripted replies and records the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock

from memsys.llm.protocol import Completion, ModelError, Request
from memsys.tokens import count_tokens

Reply = str | Completion | Exception
Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


class ScriptedLLM:
    """Replies by purpose: a text (the same every time), a sequence (one after the other), or a function of the request.

    The entry `*` serves every other purpose.

    Raises:
        AssertionError: on `submit`, for a purpose that has no entry, or whose sequence is used up.
    """

    def __init__(self, script: Mapping[str, Script] | Script) -> None:
        self._script: Mapping[str, Script] = script if isinstance(script, Mapping) else {"*": script}
        self._queues: dict[str, Iterator[Reply]] = {
            purpose: iter(replies)
            for purpose, replies in self._script.items()
            if isinstance(replies, Sequence) and not isinstance(replies, str)
        }
        self._lock = Lock()
        self.requests: list[Request] = []
        """Every request, in order of submission."""

    @property
    def purposes(self) -> list[str]:
        """The purpose of each request, in order of submission."""
        return [request.purpose for request in self.requests]

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        with self._lock:
            self.requests.append(request)
            reply = self._reply(request)
        if isinstance(reply, Exception):
            future.set_exception(reply if isinstance(reply, ModelError) else ModelError(str(reply)))
        else:
            future.set_result(reply if isinstance(reply, Completion) else _completion(request, reply))
        return future

    def _reply(self, request: Request) -> Reply:
        purpose = request.purpose if request.purpose in self._script else "*"
        if purpose not in self._script:
            raise AssertionError(f"the script has no reply for {request.purpose}")
        if purpose in self._queues:
            try:
                return next(self._queues[purpose])
            except StopIteration:
                raise AssertionError(f"the script has no further reply for {request.purpose}") from None
        script = self._script[purpose]
        return script(request) if callable(script) else script  # type: ignore[return-value]


def _completion(request: Request, text: str) -> Completion:
    prompt_tokens = sum(count_tokens(content) for _, content in request.messages)
    words = text.split()
    logprobs = tuple(-0.1 for _ in words) if request.logprobs else None
    return Completion(text, prompt_tokens, max(1, len(words)), logprobs=logprobs, model="scripted", endpoint="scripted")

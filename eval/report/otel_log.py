"""OpenTelemetry spans of memory operations and model calls (`logger=otel`), for Langfuse, Phoenix, MLflow, Weave and other collectors.

Names follow the GenAI semantic conventions 0.1.0 (open-telemetry/semantic-conventions-genai): `create_memory`, `search_memory`,
`update_memory`, `delete_memory`, `chat`, `embeddings`. Names outside the conventions begin with `memsys.`. A `write` creates, a
`read` searches, `consolidate` updates the whole store, `close` deletes it; a store is one case of a run. The reader's call belongs to the
search that it answers from. Embeddings from the cache are spans, too.

Texts (query, records, messages) are left out unless `logger.texts=true`. Errors are named by their type, because messages may quote an
address or a key. Spans go to the tracer provider that the program has set, else to the OTLP endpoint of the usual variables (`OTEL_…`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

from eval.files.store import RunError
from memsys.inert import visible
from memsys.jsons import encoded
from memsys.llm import network
from memsys.llm.protocol import Completion, EndOfRun, Request
from memsys.llm.secrets import redact

OPERATIONS = {
    "write": "create_memory",
    "consolidate": "update_memory",
    "read": "search_memory",
    "close": "delete_memory",
}
"""Names of a memory's steps in the conventions."""
SUBJECTS = {"write": "gen_ai.memory.record.id", "read": "memsys.question.id"}
MISSING = "logger=otel needs OpenTelemetry: pip install 'memsys-bench[otel]'"


class OtelSpans:
    """A recorder of `memsys.llm.meter` that creates spans of an OpenTelemetry `TracerProvider`; `texts` makes texts attributes."""

    def __init__(self, provider: Any, texts: bool) -> None:
        self._tracer, self._texts = provider.get_tracer("memsys-bench"), texts

    @contextmanager
    def operation(self, phase: str, store: str, subject: str) -> Iterator[None]:
        if phase not in OPERATIONS:
            yield
            return
        attributes = {"gen_ai.provider.name": "memsys", "gen_ai.memory.store.id": store}
        if subject and phase in SUBJECTS:
            attributes[SUBJECTS[phase]] = subject
        with self._span(OPERATIONS[phase], "", attributes):
            yield

    def query(self, text: str) -> None:
        if self._texts:
            _current().set_attribute("gen_ai.memory.query.text", _plain(text))

    def records(self, records: Sequence[tuple[str, str]]) -> None:
        span = _current()
        span.set_attribute("gen_ai.memory.record.count", len(records))
        span.set_attribute("memsys.memory.record.ids", [_plain(name) for name, _ in records])
        if self._texts:
            texts = [{"id": name, "content": text} for name, text in records]
            span.set_attribute("gen_ai.memory.records", _json(texts))

    def chat(self, model: str, request: Request) -> Callable[[Completion | BaseException], None]:
        span = self._begun("chat", model, {"memsys.purpose": request.purpose})
        if self._texts:
            said = [{"role": role, "parts": [_part(text)]} for role, text in request.messages]
            span.set_attribute("gen_ai.input.messages", _json(said))
        span.set_attribute("gen_ai.request.max_tokens", request.max_tokens)
        span.set_attribute("gen_ai.request.temperature", request.temperature)

        def ended(outcome: Completion | BaseException) -> None:
            if isinstance(outcome, BaseException):
                _failed(span, outcome)
            else:
                span.set_attributes(_usage(outcome))
                if self._texts:
                    reply = {
                        "role": "assistant",
                        "parts": [_part(outcome.text)],
                        "finish_reason": outcome.finish_reason,
                    }
                    span.set_attribute("gen_ai.output.messages", _json([reply]))
            span.end()

        return ended

    @contextmanager
    def embedding(self, model: str) -> Iterator[Callable[[int], None]]:
        with self._span("embeddings", model, {}) as span:
            yield lambda tokens: span.set_attribute("gen_ai.usage.input_tokens", tokens)

    def resumable(self) -> Callable[[], AbstractContextManager[None]]:
        from opentelemetry import context

        present = context.get_current()

        @contextmanager
        def resumed() -> Iterator[None]:
            token = context.attach(present)
            try:
                yield
            finally:
                context.detach(token)

        return resumed

    def _begun(self, operation: str, model: str, attributes: dict[str, Any]) -> Any:
        from opentelemetry.trace import SpanKind

        named = {"gen_ai.request.model": model, "gen_ai.provider.name": "openai"} if model else {}
        known = {"gen_ai.operation.name": operation, **named, **attributes}
        clean = {name: _plain(value) for name, value in known.items()}
        return self._tracer.start_span(f"{operation} {model}".strip(), kind=SpanKind.CLIENT, attributes=clean)

    @contextmanager
    def _span(self, operation: str, model: str, attributes: dict[str, Any]) -> Iterator[Any]:
        from opentelemetry import trace

        span = self._begun(operation, model, attributes)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            span.end()


def otel_spans(texts: bool) -> OtelSpans:
    """Return a recorder for the provider that the program has set, else for an OTLP collector.

    Raises:
        RunError: OpenTelemetry is not installed, or the collector is on another machine and the network is forbidden.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        raise RunError(MISSING) from error
    own = trace.get_tracer_provider()
    return OtelSpans(own if isinstance(own, TracerProvider) else _exporting(), texts)


@lru_cache(maxsize=1)
def _exporting() -> Any:
    """A provider that sends its spans to a collector in the background, and the remaining ones when the process ends."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RunError(MISSING) from error
    address = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    try:
        network.check_url(address or "http://localhost:4318")
    except EndOfRun as error:
        raise RunError(f"logger=otel: {redact(str(error))}") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "memsys-bench"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _usage(reply: Completion) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": reply.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.cached_prompt_tokens,
        "gen_ai.usage.reasoning.output_tokens": reply.reasoning_tokens,
        "gen_ai.response.finish_reasons": [reply.finish_reason],
        **({"gen_ai.response.model": _plain(reply.model)} if reply.model else {}),
        "memsys.attempts": reply.attempts,
        "memsys.cached": reply.cached,
        "memsys.provider_seconds": reply.seconds,
    }


def _failed(span: Any, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR)


def _current() -> Any:
    from opentelemetry import trace

    return trace.get_current_span()


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def _json(value: Any) -> str:
    return redact(encoded(value).decode())


def _plain(text: str) -> str:
    """The text without secrets, its control characters and lone surrogates escaped: OTLP cannot send the latter."""
    return visible(redact(text))

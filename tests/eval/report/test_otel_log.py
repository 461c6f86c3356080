"""`logger=otel`: the spans of one question, without texts and keys unless texts are asked for; nothing is imported while it is off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedLLM

from eval.files.store import RunError
from eval.report.otel_log import OtelSpans, otel_spans
from memsys.llm import meter, network, secrets
from memsys.llm.meter import Metered, metering
from memsys.llm.protocol import ModelError, Request
from scripts.assembly.steps import executor_of
from scripts.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[3]
REQUEST = Request((("user", "Who keeps bees?"),), "toy.answer")
TEXTS = {"gen_ai.memory.query.text", "gen_ai.memory.records", "gen_ai.input.messages", "gen_ai.output.messages"}
Traced = Callable[..., list[Any]]


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Calls a function while an in-memory exporter listens; the finished spans, in the order in which they ended."""
    reason = "OpenTelemetry is not installed: pip install 'memsys-bench[otel]'"
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=reason)
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    def trace(work: Callable[[], object], *, texts: bool = False) -> list[Any]:
        exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        meter.recorder = OtelSpans(provider, texts)
        work()
        return list(exporter.get_finished_spans())

    yield trace
    meter.recorder = None


def one_question(folder: Path, memory: str, texts: bool, traced: Traced) -> list[Any]:
    """The spans of a memory that is built and asked once."""
    lab = Lab("profile=smoke", f"results={folder}", "data.size=1", "data.max_cases=1")
    return traced(lambda: lab.ask(memory, "locomo"), texts=texts)


@pytest.mark.slow
@pytest.mark.parametrize("texts", [False, True])
def test_a_run_is_operations_of_one_store_and_a_question_is_one_trace(
    texts: bool, tmp_path: Path, traced: Traced
) -> None:
    found = one_question(tmp_path, "memtree", texts, traced)
    named: dict[str, list[Any]] = {}
    for span in found:
        named.setdefault(span.attributes["gen_ai.operation.name"], []).append(span)
    memory = ("create_memory", "update_memory", "search_memory", "delete_memory")
    assert set(named) == {*memory, "chat", "embeddings"}
    assert len({span.attributes["gen_ai.memory.store.id"] for name in memory for span in named[name]}) == 1
    units = [span.attributes["gen_ai.memory.record.id"] for span in named["create_memory"]]
    assert len(units) == len(set(units)) > 50
    (search,) = named["search_memory"]
    recalled = search.attributes["memsys.memory.record.ids"]
    assert search.attributes["gen_ai.memory.record.count"] == len(recalled) > 0
    assert search.attributes["memsys.question.id"]
    (answer,) = [span for span in named["chat"] if "reader" in span.attributes["memsys.purpose"]]
    assert answer.parent.span_id == search.context.span_id, "the reader's call belongs to its search"
    assert answer.name == "chat extractive"
    assert answer.attributes["gen_ai.usage.input_tokens"] > 0
    writes = {span.context.span_id for span in named["create_memory"]}
    assert any(span.parent and span.parent.span_id in writes for span in named["chat"]), "a build's calls, too"
    assert all(span.attributes["gen_ai.usage.input_tokens"] > 0 for span in named["embeddings"])
    shown = {name for span in found for name in span.attributes}
    assert TEXTS & shown == (TEXTS if texts else set())
    if texts:
        assert [each["id"] for each in json.loads(search.attributes["gen_ai.memory.records"])] == list(recalled)
        assert json.loads(answer.attributes["gen_ai.input.messages"])[-1]["parts"][0]["content"]


@pytest.mark.slow
def test_no_text_of_the_history_is_in_any_attribute_unless_asked_for(tmp_path: Path, traced: Traced) -> None:
    sample = json.loads((ROOT / "data_loaders/samples/locomo.json").read_text())
    said = [turn["text"] for case in sample for key, value in case["conversation"].items()
            if isinstance(value, list) for turn in value]  # fmt: skip
    values = json.dumps([dict(span.attributes) for span in one_question(tmp_path, "bm25", False, traced)])
    assert not [text for text in said if text in values]


def test_a_failed_call_is_named_by_its_type_and_no_key_is_in_a_span(traced: Traced) -> None:
    secrets.register("sk-very-secret-key", "A_KEY")

    def fail(request: Request) -> str:
        raise ModelError("refused for sk-very-secret-key")

    def work() -> None:
        told = Request((("user", "my key is sk-very-secret-key"),), "toy.answer")
        with metering():
            assert Metered(ScriptedLLM(lambda _: "yes, sk-very-secret-key"), model="toy").submit(told).result().text
            with pytest.raises(ModelError):
                Metered(ScriptedLLM(fail), model="toy").submit(told).result()
            with pytest.raises(ModelError), meter.operation("read", "store", "q1"):
                raise ModelError("refused for sk-very-secret-key")

    answered, *failed = traced(work, texts=True)
    assert "error.type" not in answered.attributes
    assert [span.attributes["error.type"] for span in failed] == ["ModelError"] * 2
    assert "very-secret" not in "".join(span.to_json() for span in (answered, *failed))


def test_a_span_holds_no_lone_surrogate_because_otlp_cannot_send_it(traced: Traced) -> None:
    def work() -> None:
        with meter.operation("read", "store", "q\ud800"):
            assert meter.recorder is not None
            meter.recorder.query("who\ud800?")
            meter.recorder.records([("id\x1b\ud800", "text\ud800")])

    (span,) = traced(work, texts=True)
    assert span.attributes["memsys.memory.record.ids"] == (r"id\x1b\ud800",)
    assert json.loads(span.attributes["gen_ai.memory.records"])[0]["content"] == "text\ud800"
    str(dict(span.attributes)).encode()


@pytest.mark.slow
def test_spans_change_no_line_of_a_run(tmp_path: Path, traced: Traced) -> None:
    off, on = (Lab("profile=smoke", f"results={tmp_path / name}", "data.size=2") for name in ("off", "on"))
    plain = off.ask("bm25", "locomo")
    watched: list[Any] = []
    traced(lambda: watched.append(on.ask("bm25", "locomo")))
    assert watched[0].folder.name == plain.folder.name, "the same identity"
    for file in plain.folder.rglob("predictions.jsonl"):
        assert (watched[0].folder / file.relative_to(plain.folder)).read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_while_it_is_off_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from scripts.lab.lab import Lab; import tempfile\n"
        "lab = Lab('profile=smoke', f'results={tempfile.mkdtemp()}', 'data.size=1'); lab.ask('bm25', 'locomo')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.slow
def test_without_the_package_or_with_a_collector_elsewhere_the_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example.org")
    with pytest.raises(RunError, match="logger=otel: network=false: https://collector"):
        Lab("profile=smoke", f"results={tmp_path}", "logger=otel")
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(RunError, match=r"memsys-bench\[otel\]"):
        otel_spans(False)
    network.forbid_network(False)


@pytest.mark.slow
def test_worker_processes_are_refused_because_spans_are_those_of_this_process(tmp_path: Path) -> None:
    lab = Lab("profile=smoke", f"results={tmp_path}")
    traced = lab.cfg.changed(logger={"name": "otel"}, executor="processes")
    with pytest.raises(RunError, match="executor=threads"):
        executor_of(traced, [])

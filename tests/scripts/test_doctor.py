"""What the doctor finds out about endpoints with known quirks, what it writes, and what is refused because of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

import scripts.commands.doctor as doctor_report
import scripts.setup.probes as probes
from eval.files.store import RunError
from eval.running.reader import Reader
from memsys.llm.pricing import ModelSettings, Purse, SpendingCapReached
from memsys.llm.transport import HttpReply, Unconnected
from scripts.assembly.datasets import data
from scripts.assembly.models import build_models
from scripts.assembly.runs import memory_run, recipe_of
from scripts.command import verb
from scripts.commands.doctor import file_name, settings_file, write
from scripts.mock.endpoint import Mock, application, serving
from scripts.mock.shapes import SETS, Quirks
from scripts.setup.launch import composed
from scripts.setup.options import CONF, load_option
from scripts.setup.probe_calls import EndpointProbe, ProbeReply
from scripts.setup.probes import Examination, examine, examine_embedder, pace, reported, table


@contextmanager
def served(quirks: Quirks) -> Iterator[str]:
    with serving(application(Mock(quirks=quirks))) as url:
        yield url


def examined(quirks: Quirks, *, key: str = "", start: ModelSettings | None = None) -> Examination:
    start = start or ModelSettings("m")
    with served(quirks) as url, EndpointProbe(url, "NO_SUCH_VARIABLE", key=key, settings=start) as line:
        return examine(line, start, window=16000)


def found(examination: Examination) -> dict[str, str]:
    return {one.asked: f"{one.level}: {one.found}" for one in examination.findings}


def test_an_endpoint_that_does_everything_gets_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "pace", lambda few, many: pace(1.0, 4.0))  # how busy this machine is decides nothing
    examination = examined(SETS["plain"])
    assert [one.asked for one in examination.findings if one.level != "ok"] == []
    assert examination.settings == ModelSettings("m", logprobs=True)
    assert examination.in_flight is None


def test_fewer_calls_are_advised_where_more_are_slower() -> None:
    advised, finding = pace(10.0, 6.9)
    assert advised == 4
    assert finding.level == "note"
    assert pace(10.0, 7.1)[0] is None


@pytest.mark.slow
def test_the_quirks_of_a_local_server_are_found() -> None:
    examination = examined(SETS["ollama"])
    said = found(examination)
    assert said["window"].startswith("stop: the server cuts prompts without an error: 4096 of")
    assert said["JSON"] == "note: a schema is ignored; an object is given"
    assert said["log-probabilities"] == "note: left out"
    assert "429" in said["calls at once"]
    assert examination.in_flight is not None
    assert examination.in_flight < 16
    assert examination.settings == ModelSettings("m", json_output="object", logprobs=False, context_tokens=4096)


def test_the_quirks_of_a_reasoning_model_are_found() -> None:
    examination = examined(SETS["reasoning"], key="sk-quirks")
    said = found(examination)
    assert said["token limit field"] == "stop: max_tokens is refused, max_completion_tokens taken"
    assert said["key"] == "ok: taken from NO_SUCH_VARIABLE; a wrong one is refused"
    assert said["thinking"] == "note: in a field of its own; stopped by reasoning_effort: none"
    assert said["log-probabilities"].startswith("note: refused")
    assert said["window"] == "ok: 8192 tokens; longer ones are refused"
    assert {one.asked for one in examination.stops} == {"token limit field", "temperature"}
    assert examination.settings == ModelSettings(
        "m",
        token_limit_field="max_completion_tokens",
        send_temperature=False,
        reasoning_effort="none",
        logprobs=False,
        context_tokens=8192,
    )


def test_the_quirks_of_a_bare_server_are_found() -> None:
    examination = examined(SETS["bare"])
    said = found(examination)
    assert said["usage"] == "note: not reported"
    assert said["window"].startswith("ok: at least ")
    assert said["window"].endswith(" tokens, and the beginning is recalled")
    assert said["temperature"].startswith("note: ignored")
    assert said["thinking"] == "note: in the text; no switch stops it"
    assert said["JSON"].startswith("stop: a schema is refused")
    assert examination.settings == ModelSettings("m", json_output="none", logprobs=False)


@pytest.mark.slow
def test_each_quirk_alone_is_found(subtests: pytest.Subtests) -> None:
    for quirk, asked, said in [
        ({"temperature": "refused"}, "temperature", "stop: refused"),
        ({"temperature": "ignored"}, "temperature", "note: ignored"),
        ({"limit_field": "max_completion_tokens"}, "token limit field", "stop: max_tokens is refused"),
        ({"schema": "refused"}, "JSON", "stop: a schema is refused"),
        ({"schema": "ignored"}, "JSON", "note: a schema is ignored"),
        ({"schema": "ignored", "json_object": "refused"}, "JSON", "note: a schema is ignored; an object is refused"),
        ({"logprobs": "refused"}, "log-probabilities", "note: refused"),
        ({"window": 3000, "cuts": True}, "window", "stop: the server cuts prompts without an error"),
        ({"window": 3000, "cuts": True, "usage": False}, "window", "stop: the server cuts prompts without an error"),
        ({"window": 3000}, "window", "ok: 3000 tokens; longer ones are refused"),
        ({"thinks": "field", "switch": "enable_thinking"}, "thinking", "note: in a field of its own; stopped by extra"),
        ({"at_once": 2}, "calls at once", "note: 2 of 4 were answered"),
    ]:
        with subtests.test(quirk=quirk, asked=asked, said=said):
            assert found(examined(replace(Quirks(), **quirk)))[asked].startswith(said)  # type: ignore[arg-type]


def test_the_settings_it_found_need_no_further_change() -> None:
    first = examined(SETS["reasoning"], key="sk-quirks")
    again = examined(SETS["reasoning"], key="sk-quirks", start=first.settings)
    assert again.stops == []
    assert again.settings == first.settings


def test_the_doctor_does_not_recommend_itself_for_an_unknown_error() -> None:
    class Garbled(EndpointProbe):
        def together(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[ProbeReply]:
            return [ProbeReply(200, {}, "the reply is not JSON: '{\"cho'", 0.0)]

    with Garbled("http://127.0.0.1:9/v1", "NO_SUCH_VARIABLE") as line:
        (chat,) = examine(line, ModelSettings("m"), window=9000).findings
        (vectors,) = examine_embedder(line, ModelSettings("e"))
    assert chat.means == vectors.means == "read the server's log"


def test_a_wrong_key_an_absent_server_and_a_wrong_path_end_with_their_remedy() -> None:
    (refused,) = examined(SETS["reasoning"], key="sk-wrong").findings
    assert "401" in refused.found
    assert "key" in refused.means
    with EndpointProbe("http://127.0.0.1:9/v1", "NO_SUCH_VARIABLE") as line:
        (absent,) = examine(line, ModelSettings("m"), window=9000).findings
    assert absent.level == "stop"
    assert "start the server" in absent.means
    with served(Quirks()) as url, EndpointProbe(url.removesuffix("/v1"), "NO_SUCH_VARIABLE") as line:
        (lost,) = examine(line, ModelSettings("m"), window=9000).findings
    assert "ends in /v1" in lost.means


@pytest.mark.parametrize(
    ("quirks", "level", "said"),
    [
        (Quirks(), "ok", "each text gets its own vector"),
        (Quirks(reversed_batches=True), "stop", "WRONG ORDER: the vectors of a batch of 4 come as [3, 2, 1, 0]"),
    ],
)
def test_vectors_in_the_wrong_order_are_found_though_their_index_looks_right(
    quirks: Quirks, level: str, said: str
) -> None:
    with served(quirks) as url, EndpointProbe(url, "NO_SUCH_VARIABLE") as line:
        order = next(one for one in examine_embedder(line, ModelSettings("e")) if one.asked == "embedding order")
    assert order.level == level
    assert said in order.found


def test_a_small_embedding_is_pointed_at() -> None:
    with served(Quirks(dimension=32)) as url, EndpointProbe(url, "NO_SUCH_VARIABLE") as line:
        size = examine_embedder(line, ModelSettings("e"))[0]
    assert (size.found, size.level) == ("32 numbers", "note")


def test_the_doctor_spends_within_the_cap() -> None:
    priced = ModelSettings("m", usd_per_million_in=1e6, usd_per_million_out=1e6)
    with (
        served(Quirks()) as url,
        EndpointProbe(url, "NO_SUCH_VARIABLE", settings=priced, purse=Purse(1.0)) as line,
        pytest.raises(SpendingCapReached),
    ):
        examine(line, priced, window=9000)


@pytest.mark.parametrize(
    ("reply", "usd"),
    [
        ({"choices": [{}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, 3.0 + 2.0 * 10.0),
        ({"data": [{}], "usage": {"prompt_tokens": 3}}, 3.0),
        ({"choices": [{}]}, None),
        (HttpReply(200, b"no JSON"), None),
        (HttpReply(504, b"gave up waiting"), None),
        (HttpReply(401, b"no key"), 0.0),
        (Unconnected("nobody is there"), 0.0),
        (ConnectionResetError("gone"), None),
        (TimeoutError(), None),
        (asyncio.CancelledError(), None),
    ],
)
def test_a_call_of_the_doctor_costs_what_is_counted_nothing_if_refused_and_else_the_most(
    reply: Any, usd: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(where: str, body: Mapping[str, Any]) -> HttpReply:
        if isinstance(reply, BaseException):
            raise reply
        return reply if isinstance(reply, HttpReply) else HttpReply(200, json.dumps(reply).encode())

    priced, purse = ModelSettings("m", usd_per_million_in=1e6, usd_per_million_out=1e7), Purse(1000.0)
    body = {"model": "m", "max_completion_tokens": 4}
    with EndpointProbe("http://127.0.0.1:9/v1", "NO_SUCH_VARIABLE", settings=priced, purse=purse) as line:
        monkeypatch.setattr(line._transport, "post", post)
        with suppress(CancelledError):  # a stop
            line.chat(body)
    assert purse.spent == pytest.approx(len(repr(body)) + 4 * 10.0 if usd is None else usd)


# --- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_file_it_writes_is_a_settings_file_that_runs_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CONF, tmp_path / "conf")
    out = tmp_path / "conf" / "llm" / "mine.yaml"
    with served(SETS["ollama"]) as url:
        assert (
            verb("doctor", ["--base-url", url, "--model", "acme/m", "--window", "9000", "--out", str(out)]) == 1
        )  # it cuts
    written = yaml.safe_load(out.read_text())
    assert written["engine"] == "http"
    assert written["base_url"] == url
    assert written["in_flight"] < 16
    assert ModelSettings(**written["settings"]).json_output == "object"
    assert "the server cuts prompts" in capsys.readouterr().out
    cfg = composed("config", [f"results={tmp_path}", "models.reader=mine"])
    monkeypatch.setattr("scripts.setup.options.CONF", tmp_path / "conf")
    found = build_models(cfg).reader
    assert found.endpoint is not None
    assert found.endpoint.base_url == url
    assert found.prices is not None
    assert (found.prices.logprobs, found.prices.context_tokens) == (False, 4096)


def test_a_file_that_is_there_is_never_overwritten_unsaid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_report, "ROOT", tmp_path)
    (tmp_path / "conf" / "llm").mkdir(parents=True)
    (first, _), (second, kept), (third, again) = (write(f"# {number}\n", "llm", "m", None) for number in range(3))
    assert first.name == "m.yaml"
    assert first.read_text() == "# 0\n"
    assert second.name == third.name == "m.doctor.yaml"
    assert "m.yaml is left as it is" in kept
    assert "replaced" in again
    with pytest.raises(RunError, match="is there already"):
        write("# 3\n", "llm", "m", first)


def test_without_a_configuration_folder_the_file_lands_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_report, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert write("# 0\n", "llm", "m", None)[0] == tmp_path / "m.yaml"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("../../etc/passwd", "passwd"),
        ("llama3:8b instruct", "llama3-8b-instruct"),
        (".hidden", "hidden"),
        ("///", "model"),
    ],
)
def test_the_file_of_a_model_has_a_safe_name(model: str, name: str) -> None:
    assert file_name(model) == name


def test_a_reply_that_speaks_yaml_stays_a_comment() -> None:
    odd = replace(examined(Quirks()).findings[0], found="answers as x\nengine: extractive\r\n#")
    text = settings_file({"base_url": "http://127.0.0.1/v1", "key_env": "KEY"}, ModelSettings("m"), (odd,))
    assert yaml.safe_load(text)["engine"] == "http"
    assert "answers as x" in table([odd])


@pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=secret"])
def test_a_key_in_the_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("doctor", ["--base-url", url, "--model", "m"]) == 2
    assert "secret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("before", [0, 990])
def test_a_server_that_sends_the_key_back_shows_nothing_of_it(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANY_NAME", "never-shown-12345")

    async def echo(incoming: web.Request) -> web.Response:
        return web.Response(status=401, text="x" * before + incoming.headers["Authorization"].removeprefix("Bearer "))

    app = web.Application()
    app.router.add_post("/{path:.*}", echo)
    with serving(app) as url, EndpointProbe(url, "ANY_NAME") as line:
        assert "never" not in line.chat({}).error


# --- log-probabilities --------------------------------------------------------------------------------------------------


def _run(tmp_path: Path, memory: str, *overrides: str) -> None:
    cfg = composed("config", [f"results={tmp_path}", "network=true", *overrides])
    built, dataset = build_models(cfg), data(cfg.data, load_option("dataset", "locomo"))
    memory_run(
        cfg, built, dataset, recipe_of(load_option("memory", memory)), Reader(**load_option("reader", "segtree"))
    )


@pytest.mark.slow
def test_a_memory_that_reads_log_probabilities_is_refused_by_name_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="memory xmemory reads log-probabilities, and the probe gpt-5-nano gives none"):
        _run(tmp_path, "xmemory", "models.reader=gpt-5-nano")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "overrides"),
    [
        ("xmemory", ["models.reader=gpt-5-nano", "models.probe=gpt-4o-mini"]),
        ("xmemory", ["models.reader=gpt-4o-mini"]),
        ("xmemory_repsel", ["models.reader=gpt-5-nano"]),  # its reads probe nothing
        ("bm25", ["models.reader=gpt-5-nano"]),
    ],
)
def test_no_memory_is_refused_for_log_probabilities_that_it_can_have_or_does_not_read(
    tmp_path: Path, memory: str, overrides: list[str]
) -> None:
    _run(tmp_path, memory, *overrides)


def test_replies_without_text_stop_the_doctor_and_no_time_is_projected_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "AT_ONCE", (1, 2))
    for shape, said in (("empty", "no text in the replies"), ("tool call only", "calls of tools, and no text")):
        mock = Mock(shape=shape)
        mock.said = lambda body, key: ""
        with (
            serving(application(mock)) as url,
            EndpointProbe(url, "NO_SUCH_VARIABLE", settings=ModelSettings("m")) as line,
        ):
            examination = examine(line, ModelSettings("m"), window=1000)
        lines = found(examination)
        assert lines["text"] == f"stop: {said}"
        assert lines["token limit"] == "note: not known: the reply had 0 tokens where 8 were allowed"
        assert lines["speed"].endswith("no tokens to count")
        assert not any("minutes" in one.means for one in examination.findings)


def test_a_reply_that_ends_before_the_limit_by_itself_does_not_show_that_the_limit_is_kept() -> None:
    mock = Mock()
    mock.said = lambda body, key: "a mock answer"
    with serving(application(mock)) as url, EndpointProbe(url, "NO_SUCH_VARIABLE", settings=ModelSettings("m")) as line:
        _, finding = probes.token_limit(line, ModelSettings("m"))
    assert finding.found == "not known: the reply had 3 tokens where 8 were allowed"


def test_a_count_that_is_written_as_12_0_is_a_count_as_in_a_run() -> None:
    reply = ProbeReply(200, {"usage": {"prompt_tokens": 12.0, "completion_tokens": 3.0}}, "", 0.1)
    assert [finding.found for finding in reported(reply, [reply])] == ["reported", "none reported"]


def test_negative_token_counts_are_no_reported_usage() -> None:
    reply = ProbeReply(200, {"usage": {"prompt_tokens": -100, "completion_tokens": -10}}, "", 0.1)
    assert [one.found for one in reported(reply, [reply])] == ["not reported"]


@pytest.mark.parametrize("choices", ["abc", [None], {"0": {}}, []])
def test_choices_of_a_foreign_form_say_nothing(choices: object) -> None:
    reply = ProbeReply(200, {"choices": choices}, "", 0.1)
    assert (reply.text, reply.finish_reason) == ("", "")

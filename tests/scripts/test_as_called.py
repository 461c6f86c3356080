"""Messages name commands as they were called, and errors of files are one sentence."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import ModelError, Request
from scripts.command import usage
from scripts.commands.list import main as list_names
from scripts.setup import arguments
from scripts.setup.arguments import as_called
from scripts.setup.exits import _message, _report, remedy
from scripts.setup.launch import composed, readable, settings_first


def test_remedies_name_the_command_that_was_called(monkeypatch: Any) -> None:
    text = "Get it with: python -m scripts fetch locomo; python -m scripts new-memory mine"
    assert as_called(text) == text
    monkeypatch.setattr(arguments, "called", {"memsys-bench"})
    assert as_called(text) == "Get it with: memsys-bench fetch locomo; memsys-bench new-memory mine"


def test_a_broken_yaml_file_is_one_sentence_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: bad\ntitle: [\nbuild: x: y\n", encoding="utf-8")
    with file.open(encoding="utf-8") as stream, pytest.raises(yaml.MarkedYAMLError) as broken:
        yaml.safe_load(stream)
    outer = RuntimeError("composition")
    outer.__cause__ = broken.value
    assert remedy(outer).startswith(f"{file}, line 3: broken YAML: ")


def test_a_port_in_use_is_one_sentence() -> None:
    assert "--port 0 takes any free one" in remedy(OSError(errno.EADDRINUSE, "in use"))


def test_a_folder_that_cannot_be_made_is_one_sentence_that_names_its_setting() -> None:
    assert "results=" in remedy(FileNotFoundError(errno.ENOENT, "no such file", "/proc/x"))


def test_abandoned_calls_are_counted_and_the_command_that_makes_them_again_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for abandoned in (0, 1, 2):
        _report(abandoned)
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("1 call in flight took longer than ")
    assert one.endswith(" and was abandoned; the same command makes it again")
    assert two.startswith("2 calls in flight ")
    assert two.endswith(" and were abandoned; the same command makes them again")


def test_an_extra_is_named_in_quotes_for_zsh() -> None:
    assert _message(ImportError("RAPTOR needs umap: pip install memsys-bench[cluster]")).endswith(
        "pip install 'memsys-bench[cluster]'"
    )


@pytest.mark.slow
def test_help_shows_no_raw_backticks_and_list_alone_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`" not in usage()
    assert max(map(len, usage().splitlines())) <= 80
    list_names([])
    memories = capsys.readouterr().out.partition("\n")[0]
    assert memories.startswith("memories (")
    assert " bm25," in memories


def test_a_field_that_the_offline_engine_needs_is_named() -> None:
    asked = Request((("user", "hello"),), "mine.note", kind="summarise")
    error = ExtractiveLLM().submit(asked).exception()
    assert isinstance(error, ModelError)
    assert "the field 'texts' of a prompt of kind 'summarise'" in str(error)


@pytest.mark.parametrize(
    ("given", "settings", "options"),
    [
        (["table=x", "--help", "prompts_dir=p"], ["table=x", "prompts_dir=p"], ["--help"]),
        (["memory=a,b", "-m", "data.size=3"], ["memory=a,b", "data.size=3"], ["-m"]),
        (["--config-dir", "a=b", "memory=x", "--cfg", "job", "+y=1"], ["memory=x", "+y=1"], ["--config-dir", "a=b", "--cfg", "job"]),
        (["--info", "searchpath", "memory=x"], ["memory=x"], ["--info", "searchpath"]),
        (["--info", "memory=x"], ["memory=x"], ["--info"]),
    ],
)  # fmt: skip
def test_settings_may_stand_on_both_sides_of_an_option(
    given: list[str], settings: list[str], options: list[str]
) -> None:
    ordered = settings_first(given)
    assert ordered == [*settings, *options]
    assert get_args_parser().parse_args([each for each in ordered if each != "--help"]).overrides == settings


URL = "https://x.example/openai/deployments/d?api-version=2024-10-21"


@pytest.mark.parametrize("text", [URL, "m(q4)", "mödel", "my=model", "a,b", "it's", "a b", "m#1", "4", "true", "a:b"])
@pytest.mark.parametrize("name", ["models.reader", "endpoint.base_url", "endpoints.judge.key_env", "backbone"])
def test_a_text_may_hold_any_character(name: str, text: str) -> None:
    (read,) = OverridesParser.create().parse_overrides(readable([f"{name}={text}"], "reproduce"))
    assert not read.is_sweep_override()
    assert str(read.value()) == text


def test_a_url_with_a_query_reaches_the_settings() -> None:
    cfg = composed("config", [f"endpoint.base_url={URL}", "models.reader=m(q4)", "+endpoints.judge.key_env=K=1"])
    assert (cfg.endpoint.base_url, cfg.models.reader, cfg.endpoints.judge.key_env) == (URL, "m(q4)", "K=1")


@pytest.mark.parametrize(
    "argument",
    [
        *("models.reader='a,b'", 'models.reader="m"', "models.reader=null", "models.reader=", "models.reader=[a,b]"),
        *("models.reader=a\\,b", "models.reader=${oc.env:NONE,'a b'}", "prices={m: free}", "results=null"),
        *("memory=a,b", "only=a,b", "data.size=3", "memory.build.k=1,2", "~dataset.unit", "--cfg=job"),
    ],
)
def test_what_is_in_hydras_syntax_or_no_text_stays(argument: str) -> None:
    assert readable([argument], "config") == [argument]


def test_a_list_needs_no_brackets() -> None:
    given = ["only=bm25,dense", "columns=[a,b]", "table=a,b"]
    assert readable(given, "reproduce") == ["only=[bm25,dense]", "columns=[a,b]", "table=a,b"]
    assert readable([*given, "-m"], "reproduce") == [*given, "-m"], "two jobs"
    assert composed("config", ["protocol.judges=mem0@gpt-4o-mini"]).protocol.judges == ["mem0@gpt-4o-mini"]
    assert composed("growth", ["sizes=40,80,160"]).sizes == [40, 80, 160]
    assert composed("reproduce", ["table=memtree_t3", "only=bm25"]).only == ["bm25"]


def test_several_values_of_a_multirun_stay_and_its_other_texts_are_quoted() -> None:
    several = ["models.reader=a,b", "models.judge=choice(a,b)", "memory=a,b"]
    given = [*several, f"endpoint.base_url={URL}", "results=a,b"]
    quoted = [f"endpoint.base_url='{URL}'", "results='a,b'"]
    for flag in ("-m", "--multirun"):
        assert readable([*given, flag], "config") == [*several, *quoted, flag]
    assert readable(given, "sweep") == [*several, *quoted]
    assert readable(several[:1], "config") == ["models.reader='a,b'"]

"""Settings: typed, in range and known, for every command, before anything else happens."""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import omegaconf
import pytest
import yaml
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from eval.files.store import RunError
from memsys.llm import stopping
from scripts.assembly.plan import Duration, Plan
from scripts.assembly.readiness import confirmed
from scripts.command import main, verb
from scripts.settings.checking import checked, checked_call, checked_option, checked_unit
from scripts.settings.schema import COMMANDS, GROUPS, Settings
from scripts.setup.launch import composed, launch
from scripts.setup.options import CONF, load_option, option_file, options
from tests.scripts.commands import (
    budgets,
    calibrate,
    change,
    configuration,
    figure,
    growth,
    load,
    reproduce,
    run_single,
    sweep,
)

pytestmark = pytest.mark.slow

ROOT = CONF.parent


def booleans(schema: Any, above: str = "") -> list[str]:
    """Dotted names of the settings that are true or false."""
    found = []
    for name, field in schema.model_fields.items():
        if bool in (field.annotation, *get_args(field.annotation)):
            found.append(above + name)
        elif hasattr(field.annotation, "model_fields"):
            found += booleans(field.annotation, f"{above}{name}.")
    return found


SWITCHES = booleans(Settings)


def test_the_switches_are_found() -> None:
    assert {"yes", "network", "replay", "data.unpinned", "nodes.vectors", "traceback"} <= set(SWITCHES)


def test_a_switch_written_as_a_word_means_what_it_says(subtests: pytest.Subtests) -> None:
    for word, value in [("no", False), ("off", False), ("0", False), ("yes", True), ("1", True)]:
        cfg = checked(configuration("config", *(f"{name}={word}" for name in SWITCHES)), "config")
        for name in SWITCHES:
            with subtests.test(name=name, word=word):
                assert attrgetter(name)(cfg) is value


def test_a_switch_that_is_neither_is_refused(subtests: pytest.Subtests) -> None:
    for name in SWITCHES:
        with (
            subtests.test(name=name),
            pytest.raises(RunError, match=f"^{name} must be true or false, found 'perhaps'$"),
        ):
            checked(configuration("config", f"{name}=perhaps"), "config")


def test_a_wrong_setting_is_one_sentence(subtests: pytest.Subtests) -> None:
    for override, said in [
        ("data.size=six", "data.size must be a whole number of at least 1, or all; found 'six'"),
        ("data.size=1.5", "data.size must be a whole number of at least 1, or all; found 1.5"),
        ("data.size=0", "data.size must be a whole number of at least 1, or all; found 0"),
        ("data.source=Real", "data.source must be one of sample, real, found 'Real'; did you mean real?"),
        ("data.seed=-1", "data.seed must be at least 0, found -1"),
        ("data.max_cases=0", "data.max_cases must be at least 1, found 0"),
        (
            "data.transform=shuffle",
            "data.transform must be one of none, oracle, permute, permute_between_questions, permute_exchanges, "
            "shuffle_sessions, change, change_held_out, found 'shuffle'",
        ),
        ("endpoint.in_flight=0", "endpoint.in_flight must be at least 1, found 0"),
        ("endpoint.timeout=0", "endpoint.timeout must be above 0, found 0"),
        ("endpoint.retries=-1", "endpoint.retries must be at least 0, found -1"),
        ("endpoint.retries=true", "endpoint.retries must be a number, found true"),
        ("endpoint.backoff=inf", "endpoint.backoff must be a finite number, found inf"),
        ("endpoint.base_url=localhost", "endpoint.base_url must begin with http:// or https://"),
        ("build.replicates=0", "build.replicates must be at least 1, found 0"),
        ("judge.repeats=two", "judge.repeats must be a whole number, found 'two'"),
        ("k_evidence=0", "k_evidence must be at least 1, found 0"),
        ("threads=0", "threads must be at least 1, found 0"),
        ("max_usd=-1", "max_usd must be at least 0, found -1"),
        ("max_unscored=2", "max_unscored must be at most 1, found 2"),
        ("models.reader=''", "models.reader must not be empty, found ''"),
        (
            "protocol.unit={rule: x}",
            "protocol.unit.rule must be one of utterance, floor_pair, ab_pair, page, chunk, found 'x'",
        ),
        ("memory.name=../x", "memory.name must be a plain name (letters, digits, `.`, `_`, `-`), found '../x'"),
        ("~dataset.unit", "dataset.unit is missing"),
        ("+data.siez=3", "data.siez is not a setting; did you mean data.size?"),
        ("+reply=true", "reply is not a setting; did you mean replay?"),
        ("logger.name=Wandb", "logger.name must be one of none, wandb, otel, found 'Wandb'; did you mean wandb?"),
    ]:
        with subtests.test(override=override, said=said):
            with pytest.raises(RunError) as caught:
                checked(configuration("config", override), "config")
            assert str(caught.value) == said


COMMAND: dict[str, Callable[[DictConfig], int]] = {
    "config": run_single,
    "growth": growth,
    "load": load,
    "calibrate": calibrate,
    "reproduce": reproduce,
    "change": change,
    "figures": figure,
    "budgets": budgets,
    "sweep": lambda cfg: sweep(cfg, (), []),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_checks_its_settings_before_it_does_anything(command: str, tmp_path: Path, capsys: Any) -> None:
    cfg = configuration(command, f"results={tmp_path / 'results'}", "data.size=1.5")
    assert COMMAND[command](cfg) == 2
    said = capsys.readouterr().err
    assert said == "error: data.size must be a whole number of at least 1, or all; found 1.5\n"
    assert not (tmp_path / "results").exists()


def test_making_everything_checks_its_settings_first(tmp_path: Path, capsys: Any) -> None:
    for argument in (
        (f"results={tmp_path}/r", "yes=perhaps"),
        (f"results={tmp_path}/r", "processes=0"),
        ("only=segtreem_t4",),
    ):
        assert verb("reproduce-all", argument) == 2
    yes, processes, only = capsys.readouterr().err.splitlines()
    assert yes == "error: yes must be true or false, found 'perhaps'"
    assert processes == "error: processes must be a whole number of at least 1, found '0'"
    assert only.endswith("did you mean segtreemem_t4?")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_right_stays_as_it_is(command: str) -> None:
    """Identities are made of these values."""
    before: dict[str, Any] = dict(OmegaConf.to_container(configuration(command), resolve=True))  # type: ignore[arg-type]
    after = {**checked(configuration(command), command).plain, "prices": before["prices"]}
    assert json.dumps(after, sort_keys=True) == json.dumps(before, sort_keys=True)


def test_settings_are_changed_in_a_copy_alone() -> None:
    cfg = composed("config", ["data.size=3"])
    prices = {"m": {"input": 1.0, "output": 2.0}}
    other = cfg.changed(data={"size": 5}, models={"judge": "m"}, yes=True, prices=prices)
    assert (other.data.size, other.models.judge, other.yes, other.prices) == (5, "m", True, prices)
    assert (cfg.data.size, cfg.models.judge, cfg.yes) == (3, None, False)
    assert other.data.seed == cfg.data.seed
    assert other.plain["data"] == {**cfg.plain["data"], "size": 5}
    with pytest.raises(ValidationError, match="frozen"):
        cfg.yes = True
    with pytest.raises(TypeError, match="DataCut has no sise"):
        cfg.changed(data={"sise": 5})


def test_only_what_composes_settings_knows_omegaconf() -> None:
    texts = {path.relative_to(CONF.parent): path.read_text() for path in (CONF.parent / "scripts").rglob("*.py")}
    reading = {"gate"}  # a YAML file of the user
    assert {path.stem for path, text in texts.items() if "omegaconf" in text} == {
        "checking",
        "launch",
        "options",
        *reading,
    }


def test_libyaml_reads_files_by_the_rules_of_omegaconf() -> None:
    assert issubclass(omegaconf._utils.get_yaml_loader(), yaml.CSafeLoader)
    assert OmegaConf.create("{a: 1e-3, b: 2026-01-02, c: 1_000}") == {"a": 0.001, "b": "2026-01-02", "c": 1000}
    with pytest.raises(yaml.constructor.ConstructorError, match="duplicate key a"):
        OmegaConf.create("{a: 1, a: 2}")


@pytest.mark.parametrize(
    "text", ["{a: 1e-3, b: [2026-01-02, null], 3: {c: yes}}", "{a: [1, 2], b: '${a}'}", "a: &it [1]\nb: *it"]
)
def test_a_file_has_the_values_that_omegaconf_gives_it(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "mine.yaml").write_text(text)
    wanted = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    values = option_file("no group with a schema", path)
    assert values == wanted
    assert values["a"] is not values["b"], "what is changed in one place stays as it is in another"


@pytest.mark.parametrize("text", ["word", "[1]", "a: ???", "{api_key: sk-1234567890abcdefghij}"])
def test_a_file_that_is_no_mapping_or_holds_a_key_or_lacks_a_value_is_refused(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "mine.yaml").write_text(text)
    with pytest.raises((RunError, omegaconf.errors.MissingMandatoryValue)):
        option_file("no group with a schema", path)


def test_every_file_of_a_group_is_what_its_schema_says(subtests: pytest.Subtests) -> None:
    for group in GROUPS:
        with subtests.test(group=group):
            for name in options(group):
                values = option_file("no group with a schema", CONF / group / f"{name}.yaml")
                assert repr(checked_option(group, values)) == repr(values)


def test_an_unknown_key_of_a_file_is_refused_with_the_nearest_known_one(subtests: pytest.Subtests) -> None:
    for group in GROUPS:
        with subtests.test(group=group):
            for name in options(group):
                values = option_file("no group with a schema", CONF / group / f"{name}.yaml")
                key = list(values)[-1]
                with pytest.raises(RunError) as caught:
                    checked_option(group, {**values, f"{key}x": values[key]})
                assert f"{key}x is not a setting; did you mean {key}?" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("table.rows=[bm25]", "table.rows[0] must be a mapping such as {memory: bm25}, found 'bm25'"),
        ("table.rows=[{memory: bm25, sweep: {k: []}}]", "table.rows[0].sweep.k must not be empty, found []"),
        ("table.rows=[{memroy: bm25}]", "table.rows[0].memroy is not a setting; did you mean table.rows[0].memory?"),
        ("table.columns=[{dataset: locomo, metrics: [{jugde: mem0}]}]",
         "table.columns[0].metrics[0].jugde is not a setting; did you mean table.columns[0].metrics[0].judge?"),
    ],
)  # fmt: skip
def test_a_table_that_is_written_wrongly_is_one_sentence(override: str, said: str) -> None:
    with pytest.raises(RunError) as caught:
        checked(configuration("reproduce", override), "reproduce")
    assert str(caught.value) == said


def test_rows_of_another_backbone_are_checked_too() -> None:
    table = load_option("table", "segtreemem_t4")
    assert "rows_qwen" in table
    with pytest.raises(RunError, match=r"rows_qwen: rows\[0\] must be a mapping such as \{memory: bm25\}"):
        checked_option("table", {**table, "rows_qwen": ["bm25"]})
    single = {name: value for name, value in table.items() if name != "backbones"}
    with pytest.raises(RunError, match="rows_qwen is not a setting"):
        checked_option("table", single)


def test_a_wrong_setting_of_a_memory_or_a_loader_is_one_sentence(
    tmp_path: Path, capsys: Any, subtests: pytest.Subtests
) -> None:
    for override, said in [
        ("memory.build.k=ten", "memory bm25: k must be a whole number, found 'ten'"),
        ("memory.build.k=1.5", "memory bm25: k must be a whole number, found 1.5"),
        ("memory.build.k=true", "memory bm25: k must be a number or text, found true"),
        ("+memory.build.kk=3", "memory bm25: kk is not a setting of memsys.systems.bm25.BM25; did you mean k?"),
        ("~memory.build._target_", "memory bm25: _target_ is missing"),
        ("memory.build._target_=memsys.systems.bm25.BM26", "memory bm25: cannot import memsys.systems.bm25.BM26: "),
        ("memory.build._target_=memsys.systems.bm25", "memory bm25: memsys.systems.bm25 is no class and no function"),
        (
            "+dataset.load.overlaid=3",
            "dataset locomo: load: overlaid is not a setting of data_loaders.locomo.load; did you mean overlay?",
        ),
        (
            "dataset.unit={rule: chunk}",
            "memory bm25 on locomo: the unit rule chunk needs tokens, such as {rule: chunk, tokens: 512}",
        ),
        ("dataset.metrics=[squad_f2]", "no metric called squad_f2; did you mean squad_f1?"),
        ("protocol.reader=segtre", "no reader called 'segtre'; did you mean segtree?"),
        ("protocol.judges=[mem1]", "no judge called 'mem1'; did you mean mem0?"),
        ("protocol.reader=../reader/segtree", "no reader called '../reader/segtree'"),
    ]:
        with subtests.test(override=override, said=said):
            assert run_single(configuration("config", f"results={tmp_path}", override)) == 2
            captured = capsys.readouterr().err
            assert captured.startswith(f"error: {said}")
            assert captured.count("\n") == 1


def test_a_switch_of_a_memory_written_as_a_word_means_what_it_says() -> None:
    build = load_option("memory", "memorybank")["build"]
    assert build["mutate_on_read"] is False
    assert checked_call("memory memorybank", {**build, "mutate_on_read": "no"})["mutate_on_read"] is False
    assert checked_call("memory memorybank", {**build, "mutate_on_read": "yes"})["mutate_on_read"] is True


def test_settings_of_a_wrapped_memory_are_checked_too() -> None:
    build = load_option("memory", "memtree_pruned")["build"]
    with pytest.raises(RunError, match="memory x, inner: kay is not a setting"):
        checked_call("memory x", {**build, "inner": {**build["inner"], "kay": 1}})


def test_tokens_belong_to_chunks_alone() -> None:
    assert checked_unit({"rule": "chunk", "tokens": 5}, "here")["tokens"] == 5
    with pytest.raises(RunError, match="here: the unit rule ab_pair takes no tokens"):
        checked_unit({"rule": "ab_pair", "tokens": 5}, "here")


def test_no_is_no_when_the_cost_is_asked_about(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    estimate = Plan((), Duration(0.0, 0, 64, 1.5, measured=False))
    assert not confirmed(composed("config", ["yes=no"]), estimate)
    assert "not asked, because there is no terminal" in capsys.readouterr().err
    assert confirmed(composed("config", ["yes=yes"]), estimate)


def test_data_of_an_unknown_hash_are_refused_when_unpinned_is_no(tmp_path: Path, capsys: Any) -> None:
    raw = tmp_path / "data" / "locomo" / "locomo10.json"
    raw.parent.mkdir(parents=True)
    raw.write_bytes((ROOT / "data_loaders" / "samples" / "locomo.json").read_bytes() + b"\n")
    real = ["memory=nothing", "data.source=real", f"data.root={tmp_path / 'data'}", f"results={tmp_path / 'results'}"]
    assert run_single(configuration("config", *real, "data.unpinned=no")) == 2
    assert "sha256" in capsys.readouterr().err


# --- the command line --------------------------------------------------------------------------------------------------


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """A command line in the empty working folder `here`: its exit code, its output and its errors."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.argv", [])
    return lambda *arguments: (main(arguments), *capfd.readouterr())


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("data.siez=3", "error: data.siez is not a setting of this command; did you mean data.size?\n"),
        ("table=local", "error: table is not a setting of this command; it is one of reproduce, change, budgets\n"),
        ("memory=bm26", "error: no memory called 'bm26'; did you mean bm25?\n"),
        (
            "memory=mine.yaml",
            "error: no memory called 'mine.yaml': put the file into conf/memory/ of the working folder, and name it without .yaml\n",
        ),
        (
            "memory=3",
            "error: a memory, a data set or another file of conf is chosen by its name, not by a number, a switch or null\n",
        ),
        ("memory=[bm25", "error: cannot read the setting 'memory=[bm25'; settings are written name=value\n"),
        ("data.size=1,2", "error: 'data.size=1,2' has several values; with -m each is a job of its own\n"),
    ],
)
def test_a_command_line_that_cannot_be_composed_is_one_sentence(
    argument: str, said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    composing = Hydra.compose_config
    monkeypatch.setattr(Hydra, "compose_config", lambda *args, **named: made.append(1) or composing(*args, **named))
    assert command("run", argument) == (2, "", said)
    assert len(made) == 1
    assert not list(Path.cwd().iterdir())


def test_where_an_error_was_raised_is_shown_to_those_who_ask(command: Command) -> None:
    for asked in ("--traceback", "traceback=true"):
        with pytest.raises(RunError, match=r"^data\.size must be"):
            command("run", "data.size=six", asked)


def test_a_multirun_runs_all_its_jobs_and_leaves_no_file_behind(tmp_path: Path, command: Command) -> None:
    results = f"results={tmp_path / 'results'}"
    code, printed, said = command("run", "-m", "memory=nothing,recency", "data.size=2", results)
    assert code == 0, said
    assert printed.count("run folder: ") == 2
    assert not list(Path.cwd().iterdir())
    assert {path.name for path in (tmp_path / "results").iterdir()} <= {
        "runs",
        "cache.sqlite",
        "cache.sqlite.lock",
        "cache.sqlite-wal",
        "cache.sqlite-shm",
    }
    assert len(list((tmp_path / "results" / "runs" / "locomo").iterdir())) == 2


@pytest.mark.parametrize(("more", "times"), [([], 1), (["hydra.mode=RUN"], 2), (["-m"], 2)])
def test_settings_alone_are_composed_once(more: list[str], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra composes a second time, for its mode; what it composes is the same."""
    made: list[Any] = []
    jobs: list[Any] = []
    composing = Hydra.compose_config
    monkeypatch.setattr(Hydra, "compose_config", lambda *args, **named: made.append(1) or composing(*args, **named))
    monkeypatch.setattr(sys, "argv", ["run", "memory=recency", "memory.build.k=3", "data.size=2", *more])
    assert launch(lambda settings: jobs.append((settings, logging.root.level)) or 0, "config") == 0
    assert len(made) == times
    wanted = composed("config", ["memory=recency", "memory.build.k=3", "data.size=2"])
    assert jobs == [(wanted, logging.WARNING)]


def test_the_store_of_hydra_is_not_copied_when_settings_are_composed() -> None:
    composed("config", ["memory=recency"])
    assert deepcopy(ConfigStore.instance()) is ConfigStore.instance()


def test_a_setting_of_one_composition_is_not_in_the_next() -> None:
    """Tests parse each file once (`tests/conftest.py`), and Hydra sets values in what it has read."""
    asked = [
        composed("config", ["memory=recency", f"memory.build.k={k}", *more]) for k, more in ((3, ["yes=true"]), (4, []))
    ]
    assert [(each.memory["build"]["k"], each.yes) for each in asked] == [(3, True), (4, False)]


def test_a_stop_ends_a_multirun(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []

    def stopped(settings: Any) -> int:
        jobs.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["run", "memory=nothing", "data.size=1,2,3", "-m"])
    with pytest.raises(SystemExit) as end:
        launch(stopped, "config")
    stopping.forget()
    assert (end.value.code, len(jobs)) == (130, 1)


def test_a_multirun_ends_with_the_worst_of_its_jobs(command: Command) -> None:
    code, printed, said = command("run", "-m", "threads=0,1", "memory=nothing", "data.size=2", "results=results")
    assert (code, said) == (2, "error: threads must be at least 1, found 0\n")
    assert printed.count("run folder: ") == 1


def test_make_passes_the_answer_on_as_it_is_given() -> None:
    for word in ("no", "1"):
        shown = subprocess.run(
            ["make", "-n", "reproduce-table4", f"YES={word}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        assert f"yes={word}" in shown
    assert composed("config", ["yes=no"]).yes is False
    assert composed("config", ["yes=1"]).yes is True


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("structure", ["RUN", "--trials", "0"], "argument --trials: must be a whole number of at least 1, found '0'"),
        ("structure", ["RUN", "--seed", "-1"], "argument --seed: must be a whole number of at least 0, found '-1'"),
        ("inspect", ["RUN", "Q", "--width", "x"], "argument --width: must be a whole number of at least 1, found 'x'"),
        ("make_msc_e", ["--out", "x", "--max-usd", "nan"], "argument --max-usd: must be a number of at least 0, found 'nan'"),
        ("mock_endpoint", ["--faults", "2"], "argument --faults: must be a number of at least 0 and at most 1, found '2'"),
    ],
)  # fmt: skip
def test_arguments_have_ranges_too(module: str, arguments: list[str], said: str, command: Command) -> None:
    code, _, errors = command(module.replace("_", "-"), *arguments)
    assert code == 2
    assert errors.splitlines()[-1].endswith(said)


@pytest.mark.parametrize(
    "folder", ["données", "a(b)", "a,b", "it's", 'q"x', "a[b]{c}", "with space", "back\\slash\\", "a=b#c:d"]
)
@pytest.mark.parametrize("setting", ["data.root", "results", "cache", "prompts_dir", "local.model"])
def test_a_path_may_hold_any_character(setting: str, folder: str) -> None:
    cfg = composed("config", [f"{setting}=/tmp/{folder}", "data.source=real"])
    assert attrgetter(setting)(cfg) == f"/tmp/{folder}"


@pytest.mark.parametrize("folder", ["here", "it's, 'a[b' {c}"])
def test_files_of_the_working_folder_are_found_from_python_too(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group, shipped in [("memory", "bm25"), ("table", "local")]:
        (own := tmp_path / folder / "conf" / group).mkdir(parents=True)
        shutil.copy(CONF / group / f"{shipped}.yaml", own / "mine.yaml")
    monkeypatch.chdir(tmp_path / folder)
    assert composed("config", ["memory=mine", "data.size=3"]).memory["name"] == "bm25"
    assert composed("reproduce", ["table=mine"]).table["name"] == "local"
    shutil.copy(CONF / "memory" / "bm25.yaml", tmp_path / folder / "conf" / "memory")
    with pytest.raises(RunError, match=r"conf/memory/bm25\.yaml has the name of a shipped file"):
        composed("config", ["memory=bm25"])

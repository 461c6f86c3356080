"""The HTML report as files: it agrees with the tables, tells what is missing, holds no key and no path, and is replaced whole."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from data_loaders.schema import Case, DataError
from eval.files.store import RunError, read_lines, write_lines
from eval.report import ratings
from eval.report.html import build as building
from eval.report.html.build import Wanted, build
from eval.report.html.cleaning import as_script, cleaner
from eval.report.html.sources import read_sources
from eval.report.rendering import as_csv
from eval.report.tables import Table
from scripts.commands.report import write_report
from tests.rigs.reporting import invented
from tests.rigs.reporting.invented import HOSTILE, Size, invented_cases, write_results

SIZE = Size(memories=3, histories=6, questions=4)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that no test changes, with their report."""
    results = tmp_path_factory.mktemp("results")
    made(results, write_results(results, SIZE))
    return results


@pytest.fixture
def results(kept: Path, tmp_path: Path) -> Path:
    """Results to be changed."""
    return Path(shutil.copytree(kept, tmp_path / "results"))


def made(results: Path, cases: Sequence[Case] | None = None) -> Path:
    cases = invented_cases(SIZE) if cases is None else cases
    return build(read_sources(results, lambda record: cases), results / "report", Wanted()).parent


def data(report: Path, name: str) -> Any:
    """What a data file hands to the page."""
    text = (report / "data" / f"{name}.js").read_text(encoding="ascii")
    start = f'report.receive("{name}", JSON.parse('
    assert text.startswith(start)
    return json.loads(json.loads(text[len(start) : -len("));\n")]))


def the_table(results: Path) -> Table:
    folders = sorted((results / "runs" / "invented").iterdir())
    return invented._table(folders, invented_cases(SIZE))


def test_report_csv_and_scores_agree_on_ten_cells_drawn_at_random(kept: Path) -> None:
    report, lines = kept / "report", list(csv.DictReader(io.StringIO(as_csv(the_table(kept)))))
    table, shared = data(report, "table0"), data(report, "set0")
    for line in random.Random(7).sample(lines, 10):
        row = next(row for row in table["rows"] if row["name"] == line["memory"])
        place = [column["metric"] for column in table["columns"]].index(line["metric"])
        printed = row["cells"][place]["estimates"][line["category"]]
        run = data(report, f"set0-run{[each['name'] for each in table['rows']].index(line['memory'])}")
        inside = [
            score
            for question, score in zip(shared["questions"], run["scores"][place], strict=True)
            if line["category"] == "all"
            or line["category"] in question[4]
            or (line["category"] == "answerable" and question[5])
        ]
        assert f"{printed['mean']:.6f}" == line["mean"]
        assert [f"{end:.6f}" for end in printed["question"]] == [line["question_low"], line["question_high"]]
        assert [f"{end:.6f}" for end in printed["case"] or ()] == [
            end for end in (line["case_low"], line["case_high"]) if end
        ]
        assert (printed["n"], fmean(inside)) == (len(inside), pytest.approx(printed["mean"], abs=1e-4))


def test_a_pair_in_the_report_is_the_pair_in_the_table_and_has_no_adjusted_p(kept: Path) -> None:
    table, pairs = the_table(kept), data(kept / "report", "set0-pairs0")
    gap = table.pairs["memory2", 0].difference
    of_all = {tuple(pair[:2]): pair[3:] for pair in pairs if pair[2] == "all"}
    mean, n, by_question, by_case, clusters, p = of_all[0, 2]
    assert gap.by_question is not None
    assert gap.by_case is not None
    assert (mean, n, clusters) == (pytest.approx(-gap.mean), gap.n, gap.clusters)
    assert by_question == pytest.approx([-gap.by_question.high, -gap.by_question.low])
    assert by_case == pytest.approx([-gap.by_case.high, -gap.by_case.low])
    assert p == pytest.approx(gap.p_by_case)
    assert "Exploratory" in (Path(building.__file__).parent / "static" / "compare.js").read_text(encoding="utf-8")


def test_pages_name_a_command_that_an_installation_has() -> None:
    pages = sorted((Path(building.__file__).parent / "static").iterdir())
    assert [page.name for page in pages if "python -m" in page.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_a_table_older_than_its_runs_is_named(results: Path) -> None:
    assert data(made(results), "index")["missing"] == []
    path = next((results / "runs").glob("invented/memory1-*/scores/judge_*.jsonl"))
    write_lines(path, [{**line, "value": 1.0} for line in read_lines(path)])
    (missing,) = data(made(results), "index")["missing"]
    assert missing == "table invented-test, memory1, judge: the run has changed since; run its command again"


@pytest.mark.slow
def test_a_half_finished_run_says_what_is_missing(results: Path) -> None:
    folder = next((results / "runs").glob("invented/memory2-*"))
    shutil.rmtree(folder / "cases" / "h5")
    shutil.rmtree(folder / "scores")
    missing = data(made(results), "index")["missing"]
    assert f"run invented/{folder.name} (memory2) is not finished: 5 of 6 histories, 20 of 24 questions" in missing
    assert data(results / "report", "set0-run2")["outcomes"].count("not reached") == 4


@pytest.mark.slow
def test_without_the_data_the_report_says_why_and_goes_on(results: Path) -> None:
    def gone(record: Mapping[str, Any]) -> Sequence[Case]:
        raise DataError("the file is not there; make fetch SET=invented")

    report = build(read_sources(results, gone), results / "report", Wanted()).parent
    assert "make fetch SET=invented" in " ".join(data(report, "index")["missing"])
    assert len(data(report, "set0")["questions"]) == 24
    assert data(report, "set0-run0")["answers"][0]


@pytest.mark.slow
def test_no_key_and_no_path_of_this_machine_is_in_a_report(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(results.parent / "home" / "someone"))
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890abcdef")
    secrets = f"key sk-1234567890abcdef in {results}/runs and {Path.home()}/notes.txt and (~{Path.home()})"
    folder = next((results / "runs").glob("invented/memory0-*"))
    path = folder / "cases" / "h0" / "predictions.jsonl"
    write_lines(path, [{**line, "answer": secrets, "error": secrets} for line in read_lines(path)])
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "memory": {"build": {"file": f"{Path.home()}/model.gguf"}}}))
    table = results / "tables" / "invented-test.json"
    table.write_text(json.dumps({**json.loads(table.read_text()), "title": secrets}))
    report = made(results)
    for file in report.rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        for secret in ("sk-1234567890abcdef", str(results), str(Path.home()), str(Path.cwd())):
            assert secret not in text, f"{file.name} holds {secret}"
    assert "<SOME_API_KEY>" in data(report, "set0-run0")["answers"][0]


@pytest.mark.slow
def test_titles_on_pages_tell_tables_apart_and_turn_no_text_around(results: Path) -> None:
    path = results / "tables" / "invented-test.json"
    table = json.loads(path.read_text())
    table["rows"][0]["title"] = "turned \u202e around"
    for name in ("invented-one", "invented-two"):
        path.with_stem(name).write_text(json.dumps(table))
    report = made(results)
    assert "turned \\u202e around" in [run["title"] for run in data(report, "index")["runs"]]
    pages = [(report / f"table-{number}.html").read_text(encoding="utf-8") for number in range(3)]
    assert len({page.partition("<title>")[2].partition("</title>")[0] for page in pages}) == 3
    for page in pages:
        assert "Content-Security-Policy" in page
        assert "\u202e" not in page
        assert "<th>" not in page


@pytest.mark.slow
def test_an_interrupted_build_leaves_the_old_report(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(results)
    before = {file.name: file.read_bytes() for file in (results / "report").rglob("*.*")}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "_write_pages", stop)
    with pytest.raises(KeyboardInterrupt):
        made(results)
    assert {file.name: file.read_bytes() for file in (results / "report").rglob("*.*")} == before
    assert not list(results.glob(".report*"))


def test_a_folder_that_is_no_report_is_not_replaced(results: Path) -> None:
    shutil.rmtree(results / "report")
    (results / "report").mkdir()
    (results / "report" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="is no report"):
        made(results)
    assert (results / "report" / "thesis.txt").read_text() == "mine"


def test_hostile_text_cannot_leave_its_string() -> None:
    for text in HOSTILE:
        source = as_script("x", json.dumps([text, {"__proto__": text}]))
        assert source.isascii()
        assert "<" not in source
        assert source.count("\n") == 1
        quoted = source[len('report.receive("x", JSON.parse(') : -len("));\n")]
        assert json.loads(json.loads(quoted)) == [text, {"__proto__": text}]


@pytest.mark.parametrize(
    "name", ["plain", "a b", "caf\u00e9", 'say "so"', "back\\slash", "\u65e5\u672c", "emoji \U0001f600", "line\nbreak"]
)
def test_a_folder_is_removed_from_a_data_file_however_json_writes_its_name(name: str) -> None:
    folder = Path("/srv/elsewhere") / name
    clean = cleaner(folder)
    value = {f"{folder}": [1, None, (f"in {folder}/runs", 0.5)], "other": "nothing"}
    assert json.loads(clean.encoded(value)) == {"<results>": [1, None, ["in <results>/runs", 0.5]], "other": "nothing"}


def test_a_long_text_is_cut_and_says_how_long_it_is(tmp_path: Path) -> None:
    size = Size(memories=2, histories=1, questions=7, hostile=True)
    report = made(tmp_path, write_results(tmp_path, size))
    question = data(report, "set0-block0")["questions"][5]
    assert question["text"].endswith("[cut here: 1,000,000 characters in the run's file]")
    assert "onerror" not in (report / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_prompt_is_the_one_that_was_sent_or_is_not_shown(results: Path) -> None:
    block = data(made(results), "set0-block0")
    answer = block["questions"][0]["runs"][0]
    prompt = "".join(
        block["texts"][part] if isinstance(part, int) else part for _, parts in answer["prompt"] for part in parts
    )
    assert block["questions"][0]["text"] in prompt
    assert all(block["texts"][item[0]] in prompt for item in answer["items"])
    for path in (results / "runs").glob("invented/*/run.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "prompts": dict.fromkeys(record["prompts"], "0" * 64)}))
    answer = data(made(results), "set0-block0")["questions"][0]["runs"][0]
    assert "prompt" not in answer
    assert answer["no_prompt"] == "the prompt file reader/segtree.md has changed since the run"


@pytest.mark.slow
def test_a_prompt_that_shows_other_tokens_than_were_counted_is_not_shown(results: Path) -> None:
    for path in (results / "runs").glob("invented/memory0-*/cases/h0/effort.jsonl"):
        lines = read_lines(path)
        write_lines(path, [{**line, "context_tokens": 1} if line["phase"] == "answer" else line for line in lines])
    assert "is not what was sent" in data(made(results), "set0-block0")["questions"][0]["runs"][0]["no_prompt"]


def test_evidence_is_marked_where_an_item_holds_it(kept: Path) -> None:
    for page in data(kept / "report", "set0-block0")["questions"]:
        for answer in page["runs"]:
            for _, item_id, _, _, _, held in answer["items"]:
                assert held == [turn for turn in page["turns"] if turn == item_id]


def test_answers_that_judges_or_repeats_disagree_on_are_marked(kept: Path) -> None:
    verdicts: dict[tuple[str, str], set[float]] = {}
    for line in read_lines(next((kept / "runs").glob("invented/memory0-*/scores/judge_*.jsonl"))):
        verdicts.setdefault((line["case_id"], line["question_id"]), set()).add(line["value"])
    rows = data(kept / "report", "set0")["questions"]
    expected = [int(len(verdicts[row[0], row[1]]) > 1) for row in rows]
    assert 0 < sum(expected) < len(expected)
    assert data(kept / "report", "set0-run0")["split"] == expected


@pytest.mark.slow
def test_an_older_table_is_named(results: Path) -> None:
    (results / "tables" / "older.md").write_text("# older")
    missing = "\n".join(data(made(results), "index")["missing"])
    assert "table older has no .json file" in missing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cases/h2/predictions.jsonl", "line 1 is not JSON"),
        ("cases/h2/items.jsonl", "line 1 is not JSON"),
        ("cases/h2/effort.jsonl", "line 1 is not JSON"),
        ("cases/h2/case.json", "holds no JSON object"),
        ("scores/judge_*.jsonl", "line 1 is not JSON"),
        ("run.json", "holds no JSON object"),
    ],
)
def test_a_run_with_a_damaged_file_is_named_and_left_out_and_the_others_are_reported(
    results: Path, name: str, why: str
) -> None:
    path = next(next((results / "runs").glob("invented/memory1-*")).glob(name))
    path.write_bytes(b"{\n" + path.read_bytes())
    with pytest.raises(RunError, match=rf"is written without 1 damaged run: .*memory1-.* {why}"):
        made(results)
    index = data(results / "report", "index")
    assert [run["memory"] for run in index["runs"]] == ["memory0", "memory2"]
    assert any("memory1-" in each and "is left out" in each for each in index["missing"])


def changed(**fields: Any) -> Any:
    """Changes fields of a file's second line; a field that becomes `...` is removed."""

    def change(path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[1] = {name: value for name, value in {**lines[1], **fields}.items() if value is not ...}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return change


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_record_of(**fields: Any) -> Any:
    """Changes fields of a file with one object."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


PREDICTIONS, EFFORTS = "cases/h2/predictions.jsonl", "cases/h2/effort.jsonl"
DAMAGE: list[tuple[str, Any, str]] = [
    (PREDICTIONS, lambda path: path.write_bytes(path.read_bytes()[:-20]), "line 4 is not JSON"),
    (PREDICTIONS, lambda path: path.write_bytes(path.read_bytes().replace(b"h2", b"\xff2", 1)), "line 1 is not JSON"),
    (PREDICTIONS, lambda path: path.write_text("[]\n"), "line 1 is no JSON object"),
    (PREDICTIONS, a_folder, "is a folder"),
    (PREDICTIONS, changed(outcome=...), "a line is no prediction"),
    (PREDICTIONS, changed(items="k"), "line 2 holds no items"),
    (PREDICTIONS, changed(scores=[float("nan")] * 8), "line 2 holds no scores"),
    (PREDICTIONS, changed(question_id="h2-q0"), "a second one of question h2-q0"),
    (PREDICTIONS, changed(case_id="h3"), "a line is of case 'h3'"),
    (EFFORTS, lambda path: path.write_text(""), "has no line"),
    (EFFORTS, changed(tokens_in=-1), "line 2 holds no tokens_in, but '-1'"),
    (EFFORTS, changed(tokens_in=2**60), "line 2 holds no tokens_in"),
    (EFFORTS, changed(calls={"invented": -1}), "line 2 holds no calls"),
    (EFFORTS, changed(attempts=...), "line 2 has no attempts"),
    ("scores/judge_*0.jsonl", changed(value=float("nan")), "line 2 holds no value"),
    ("scores/judge_*0.jsonl", changed(value=float("inf")), "line 2 holds no value"),
    ("scores/judge_*0.jsonl", changed(repeat=0), "two lines are the same repeat of question h0/h0-q0"),
    ("run.json", a_record_of(dataset={"name": "invented", "seed": [0]}), "dataset.seed must be a whole number"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage", "why"), DAMAGE)
def test_whatever_is_damaged_in_a_run_leaves_out_that_run_alone(
    results: Path, name: str, damage: Any, why: str
) -> None:
    damage(next(next((results / "runs").glob("invented/memory1-*")).glob(name)))
    with pytest.raises(RunError, match=rf"is written without 1 damaged run: run invented/memory1-.*{why}"):
        made(results)
    index = data(results / "report", "index")
    assert [run["memory"] for run in index["runs"]] == ["memory0", "memory2"]
    assert any("memory1-" in each and "is left out" in each for each in index["missing"])


@pytest.mark.slow
def test_a_run_that_may_not_be_read_is_left_out(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = next((results / "runs").glob("invented/memory1-*/cases/h2/predictions.jsonl"))
    read = Path.read_bytes

    def refused(own: Path) -> bytes:
        if own == path:
            raise PermissionError(13, "Permission denied", str(own))
        return read(own)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(RunError, match=r"is written without 1 damaged run: .*predictions.jsonl cannot be read"):
        made(results)


@pytest.mark.slow
def test_a_folder_that_may_not_be_read_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next((results / "runs").glob("invented/memory1-*"))
    allowed, found = os.access, Path.glob
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and allowed(path, mode))
    seen = lambda own, pattern: (path for path in found(own, pattern) if path.parent != folder)  # noqa: E731
    monkeypatch.setattr(Path, "glob", seen)
    with pytest.raises(RunError, match=r"is written without 1 damaged run: .*memory1-.* may not be read"):
        made(results)
    assert [run["memory"] for run in data(results / "report", "index")["runs"]] == ["memory0", "memory2"]


@pytest.mark.slow
def test_a_report_reads_each_file_of_a_run_once(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions, items, costs and scores: what is checked is what the pages show."""
    counts: Counter[str] = Counter()
    read = Path.read_bytes

    def counting(own: Path) -> bytes:
        counts[own.name if own.parent.name == "scores" else f"{own.parent.name}/{own.name}"] += own.suffix == ".jsonl"
        return read(own)

    monkeypatch.setattr(Path, "read_bytes", counting)
    made(results)
    lines = {name: count for name, count in counts.items() if count and not name.endswith("nodes.jsonl")}
    assert len(lines) == 6 * 3 + 2
    assert set(lines.values()) == {3}, "once for each of three runs"


@pytest.mark.slow
def test_settings_of_a_wrong_type_hide_prompts_and_nothing_else(results: Path) -> None:
    run = next((results / "runs").glob("invented/memory1-*"))
    record = json.loads((run / "run.json").read_text())
    a_record_of(reader={**record["reader"], "sections": None})(run / "run.json")
    file = next(run.glob("scores/judge_*.json"))
    a_record_of(prompts=None)(file)
    answer = data(made(results), "set0-block0")["questions"][0]["runs"][1]
    assert answer["no_prompt"].startswith("its prompt cannot be read again") or "sections" in answer["no_prompt"]
    assert all("cannot be read again" in each["why"] for each in answer["judged"].values())


@pytest.mark.slow
def test_a_score_file_without_a_score_is_named(results: Path) -> None:
    file = next((results / "runs").glob("invented/memory1-*/scores/f1-*.jsonl"))
    file.write_text("")
    assert any(file.name in each and "holds no score" in each for each in data(made(results), "index")["missing"])


@pytest.mark.slow
def test_a_prediction_that_names_an_item_which_its_case_lacks_damages_its_run(results: Path) -> None:
    next((results / "runs").glob("invented/memory1-*/cases/h2/items.jsonl")).write_text("")
    with pytest.raises(RunError, match=r"is written without 1 damaged run: .*memory1-.* lacks the item"):
        made(results)


@pytest.mark.slow
def test_a_report_with_two_damaged_runs_is_written_once(results: Path) -> None:
    for name in ("memory0", "memory1"):
        next((results / "runs").glob(f"invented/{name}-*/cases/h2/predictions.jsonl")).write_bytes(b"{\n{}\n")
    steps: list[str] = []
    cases = invented_cases(SIZE)
    with pytest.raises(RunError, match="is written without 2 damaged runs: run invented/memory0-"):
        build(read_sources(results, lambda record: cases), results / "report", Wanted(), steps.append)
    assert [run["memory"] for run in data(results / "report", "index")["runs"]] == ["memory2"]
    assert len(steps) == 1


@pytest.mark.slow
def test_results_with_damaged_runs_only_name_them(results: Path) -> None:
    shutil.rmtree(results / "tables")
    for path in (results / "runs").glob("invented/*/run.json"):
        path.write_text("{")
    with pytest.raises(RunError, match="no runs and no tables: run invented/memory0-"):
        made(results)


@pytest.mark.slow
def test_losses_are_a_page_only_where_their_file_is(results: Path) -> None:
    assert data(made(results), "index")["losses"] == []
    (results / "losses").mkdir()
    (results / "losses" / "locomo.json").write_text(
        json.dumps({"title": "Losses", "steps": [{"name": "asked", "value": 4}]})
    )
    assert data(made(results), "index")["losses"] == [[1, "locomo"]]


def test_nothing_to_report_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no runs and no tables"):
        write_report(tmp_path)
    with pytest.raises(RunError, match="no folder"):
        write_report(tmp_path / "nowhere")


@pytest.mark.slow
def test_ratings_are_set_against_the_judges(results: Path) -> None:
    folder = next((results / "runs").glob("invented/memory0-*"))
    lines = [line for line in read_lines(next(folder.glob("scores/judge_*.jsonl"))) if line["repeat"] == 0]
    means: dict[str, list[float]] = {}
    for line in read_lines(next(folder.glob("scores/judge_*.jsonl"))):
        means.setdefault(line["question_id"], []).append(line["value"])
    rated = [
        {**line, "run": f"invented/{folder.name}", "value": float(fmean(means[line["question_id"]]) >= 0.5)}
        for line in lines
    ]
    rated[0]["answer"] = "000000000000"
    rated[1]["value"] = 1.0 - rated[1]["value"]
    rated[2]["run"] = "../../elsewhere"
    write_lines(results / "ratings.jsonl", rated)
    found = ratings.compare(results / "ratings.jsonl", results)
    (judge,) = found.agreements
    assert (found.lines, found.changed, found.unknown) == (24, 1, 1)
    assert (judge.n, judge.agreeing) == (22, 21)
    assert "| judge_invented-000000000000 | 22 | 95.5% |" in ratings.as_markdown(found)


def test_a_rating_is_right_partial_or_wrong(tmp_path: Path) -> None:
    line = {"run": "a/b", "case_id": "c", "question_id": "q", "answer": "x", "value": 7, "why": ""}
    write_lines(tmp_path / "ratings.jsonl", [line])
    with pytest.raises(RunError, match=r"0, 0\.5 or 1"):
        ratings.compare(tmp_path / "ratings.jsonl", tmp_path)

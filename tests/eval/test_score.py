"""Scores: joined by id, reused while the answer is the same, never invented where there is no verdict."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM
from small_history import history

from data_loaders.schema import Gold
from eval.files.records import Score
from eval.files.run_folder import read_items, read_predictions
from eval.files.store import RunError, read_lines, write_lines
from eval.judging.judge import Judge
from eval.judging.score import UNKNOWN_RECALL, Judging, Metric, replied, score_judge, score_lexical
from eval.judging.score_files import graded_files, only_score_file, read_evidence, read_scores
from eval.metrics.lexical import best_of, squad_token_f1
from eval.report.rendering import evidence_means
from eval.running.loop import run_all
from eval.running.run import Run
from memsys.llm import stopping
from memsys.llm.cache import CachedLLM
from memsys.llm.meter import Ledger, Metered
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Completion, EndOfRun, ModelError, Request
from memsys.llm.replies import POLICY
from memsys.llm.store import CacheStore
from memsys.prompts import Prompts
from scripts.setup.options import load_option

Make = Callable[..., Run]
JUDGE = Judge("mem0", "Mem0", "label", "judge/mem0")
YES = json.dumps({"reason": "same", "label": "CORRECT"})
NO = json.dumps({"reason": "other", "label": "WRONG"})
RECALLED = json.dumps({"Mem_hits": [], "Mem_recall": 0.5, "Mem_helpful_score": 1})

squad_f1 = partial(best_of, measure=squad_token_f1)


def judging(llm: ScriptedLLM, model: str = "m", repeats: int = 1) -> Judging:
    return Judging(JUDGE, Metered(llm), model, Prompts(), repeats)


@pytest.mark.slow
def test_lexical_scores_are_joined_by_id_and_not_recomputed(make_run: Make) -> None:
    run = make_run([history("a"), history("b")])
    run_all([run])
    calls: list[str] = []

    def counted(question, gold, prediction):  # type: ignore[no-untyped-def]
        calls.append(question.id)
        return squad_f1(question, gold, prediction)

    metric = Metric("f1", counted)
    path = score_lexical(run, [metric], 3)["f1"]
    assert len(calls) == 12
    assert set(read_scores(path)) == {(case, f"q{i}") for case in "ab" for i in range(6)}
    assert all(lines[0]["value"] > 0 for lines in read_scores(path).values())
    score_lexical(run, [metric], 3)
    assert len(calls) == 12


@pytest.mark.slow
def test_a_metric_of_the_recall_gets_its_texts_and_is_scored_again_when_they_change(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    seen: list[list[str]] = []

    def counted(question, gold, prediction, recalled):  # type: ignore[no-untyped-def]
        seen.append(recalled)
        return Score(float(len(recalled)))

    metric = Metric("held", counted, on_recall=True)
    path = score_lexical(run, [metric, Metric("f1", squad_f1)], 3)["held"]
    folder = run.case_folder(run.cases[0].id)
    items, predictions = read_items(folder), read_predictions(folder).values()
    assert predictions
    assert sorted(seen) == sorted([items[name]["text"] for name in each.items] for each in predictions)
    score_lexical(run, [metric], 3)
    assert len(seen) == len(predictions)
    lines = read_lines(path)
    write_lines(path, [{**line, "answer": "0"} for line in lines])  # as if another recall had been scored
    score_lexical(run, [metric], 3)
    assert len(seen) == 2 * len(predictions)


@pytest.mark.parametrize("given", [None, 0.5, Score("half"), Score(np.array([0.5]))])  # type: ignore[arg-type]
def test_a_metric_that_returns_no_score_is_named(make_run: Make, given: Any) -> None:
    run = make_run([history()])
    run_all([run])
    with pytest.raises(RunError, match="metric mine: expected a Score with a number or None"):
        score_lexical(run, [Metric("mine", lambda question, gold, prediction: given)], 10)


@pytest.mark.parametrize("score", [Score(1.0, detail={"a": {1, 2}}), Score(1.0, detail=[1]), Score(None, why=object())])  # type: ignore[arg-type]
def test_a_metric_whose_score_fits_in_no_file_is_named_before_a_file_is_written(make_run: Make, score: Score) -> None:
    run = make_run([history("a")])
    run_all([run])
    with pytest.raises(RunError, match="metric mine: expected `why` as text and `detail` as a JSON object"):
        score_lexical(run, [Metric("mine", lambda *_: score)], 10)
    assert not list(run.folder.glob("scores/mine-*.jsonl"))


def test_a_metric_may_return_a_number_of_numpy() -> None:
    score = Metric("mine", lambda *_: Score(np.float32(0.5))).scored()
    assert type(score.value) is float
    assert score.value == 0.5


def test_a_metric_that_ends_the_process_is_named_and_ctrl_c_still_stops() -> None:
    def ends(error: BaseException) -> Score:
        raise error

    with pytest.raises(RunError, match=r"metric mine: expected a Score, but it raised SystemExit\(0\)"):
        Metric("mine", ends).scored(SystemExit(0))
    with pytest.raises(KeyboardInterrupt):  # a notebook, where Python's own handler raises it
        Metric("mine", ends).scored(KeyboardInterrupt())
    with stopping.handling_signals():
        with pytest.raises(RunError, match="it raised KeyboardInterrupt"):
            Metric("mine", ends).scored(KeyboardInterrupt())
        try:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)  # SIGINT is ignored in the background of a shell
            with pytest.raises(KeyboardInterrupt):
                Metric("mine", ends).scored(KeyboardInterrupt())
        finally:
            stopping.forget()


def test_a_value_that_is_not_finite_is_no_score_and_says_so(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    paths = score_lexical(run, [Metric("mine", lambda question, gold, prediction: Score(math.nan))], 10)
    lines = read_lines(paths["mine"])
    assert {(line["value"], line["why"]) for line in lines} == {(None, "the metric returned nan")}


def test_imported_answers_have_no_recall_to_score(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    imported = replace(run, record=replace(run.record, imported={"file": "theirs.json"}))
    path = score_lexical(imported, [Metric("held", squad_f1, on_recall=True)], 3)["held"]
    assert {(line["value"], line["why"]) for lines in read_scores(path).values() for line in lines} == {
        (None, UNKNOWN_RECALL)
    }


def test_other_settings_are_another_file(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    files = {score_lexical(run, [Metric("f1", squad_f1, {"stem": stem})], 3)["f1"] for stem in (True, False)}
    assert len(files) == 2


def test_verdicts_are_on_disk_before_a_reply_is_waited_for(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    on_disk: list[int] = []

    class Outstanding(Future[Completion]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            on_disk.append(sum(path.read_bytes().count(b"\n") for path in run.folder.glob("scores/**/*.jsonl")))
            self.set_result(Completion(YES))
            return super().exception(timeout)

    class Endpoint:
        sent = 0

        def submit(self, request: Request) -> Future[Completion]:
            reply: Future[Completion] = Outstanding() if self.sent == 3 else Future()
            if self.sent != 3:
                reply.set_result(Completion(YES))
            self.sent += 1
            return reply

    score_judge(run, replace(judging(ScriptedLLM([])), llm=Endpoint()))
    assert on_disk == [6], "three verdicts and their costs"


def test_as_many_verdicts_are_outstanding_as_the_run_allows(make_run: Make) -> None:
    run = replace(make_run([history()]), outstanding=2)
    run_all([run])
    open_replies: list[Future[Completion]] = []
    counts: list[int] = []

    class Outstanding(Future[Completion]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            open_replies.remove(self)
            self.set_result(Completion(YES))
            return super().exception(timeout)

    class Endpoint:
        def submit(self, request: Request) -> Future[Completion]:
            open_replies.append(Outstanding())
            counts.append(len(open_replies))
            return open_replies[-1]

    score_judge(run, replace(judging(ScriptedLLM([])), llm=Endpoint()))
    assert counts == [1, 2, 2, 2, 2, 2]


def test_a_judge_is_asked_once_for_each_answer_and_repeat(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    llm = ScriptedLLM(YES)
    path = score_judge(run, judging(llm, repeats=3))
    assert len(llm.requests) == 18
    assert sorted({request.sample for request in llm.requests}) == [0, 1, 2]
    assert all([line["repeat"] for line in lines] == [0, 1, 2] for lines in read_scores(path).values())
    score_judge(run, judging(llm, repeats=3))
    assert len(llm.requests) == 18


def test_another_judge_model_is_another_file_and_never_an_old_score(make_run: Make) -> None:
    run = make_run([history()])
    run_all([run])
    old = score_judge(run, judging(ScriptedLLM(YES), "old"))
    strict = ScriptedLLM(json.dumps({"reason": "no", "label": "WRONG"}))
    new = score_judge(run, judging(strict, "new"))
    assert old != new
    assert len(strict.requests) == 6
    assert {lines[0]["value"] for lines in read_scores(new).values()} == {0.0}
    assert {lines[0]["value"] for lines in read_scores(old).values()} == {1.0}


@pytest.mark.parametrize(
    "reply", ["", "certainly!", '{"label": "MAYBE"}', '{"label": "CORRECT or WRONG"}', ModelError("down")]
)
def test_without_a_verdict_there_is_no_value_and_it_is_tried_again(make_run: Make, reply: object) -> None:
    run = make_run([history(questions=2)])
    run_all([run])
    path = score_judge(run, judging(ScriptedLLM(lambda _: reply)))  # type: ignore[arg-type, return-value]
    assert [lines[0]["value"] for lines in read_scores(path).values()] == [None, None]
    assert all(lines[0]["why"] for lines in read_scores(path).values())
    path = score_judge(run, judging(ScriptedLLM(YES)))
    assert [[line["value"] for line in lines] for lines in read_scores(path).values()] == [[1.0], [1.0]]


def test_a_judge_is_asked_again_as_often_as_its_file_says_and_all_its_calls_are_paid_for(make_run: Make) -> None:
    run = make_run([history(questions=2)])
    run_all([run])
    model = ScriptedLLM(lambda request: YES if request.retry == 2 else "certainly!")
    for retries, value, calls in [(1, None, 2), (2, 1.0, 3), (3, 1.0, 3)]:
        judge = replace(judging(model), judge=replace(JUDGE, retries=retries))
        path = score_judge(run, judge)
        assert [lines[0]["value"] for lines in read_scores(path).values()] == [value, value]
        assert [line["calls"] for line in read_lines(path.with_suffix(".effort.jsonl"))] == [{"judge.mem0": calls}] * 2

    down = ScriptedLLM(lambda request: ModelError("down"))
    score_judge(run, replace(judging(down, model="other"), judge=replace(JUDGE, retries=1)))
    assert [request.retry for request in down.requests] == [0, 0], "the client has tried a failed call often enough"


def test_verdicts_are_in_the_order_of_the_data_behind_those_of_cases_that_are_left_out_now(make_run: Make) -> None:
    cases = [history("a", questions=2), history("b", questions=2)]
    run, fewer = make_run(cases), make_run(cases[1:])
    run_all([run])
    model = ScriptedLLM(lambda request: "certainly!" if request is model.requests[0] else YES)
    once = replace(judging(model), judge=replace(JUDGE, retries=1))
    keys = [("a", "q0"), ("a", "q1"), ("b", "q0"), ("b", "q1")]
    assert [(line["case_id"], line["question_id"]) for line in read_lines(score_judge(run, once))] == keys
    lines = read_lines(score_judge(fewer, replace(once, repeats=2)))
    assert [(line["case_id"], line["question_id"]) for line in lines] == [
        *keys[:2],
        *(key for key in keys[2:] for _ in "12"),
    ]


def test_a_null_verdict_in_a_reply_that_was_read_is_final(make_run: Make) -> None:
    """GateMem's script asks again until a reply parses, not until it has a verdict."""
    run = make_run([history(questions=1)])
    run_all([run])
    null = '{"action_ok": true, "utility_ok": null, "privacy_leak": false, "deletion_leak": null, "notes": ""}'
    for replies, value, calls in [([null, null], None, 1), (["?", null], None, 2), (["?", "?", "?"], None, 3)]:
        model = ScriptedLLM({"*": replies})
        gatemem = replace(judging(model, replies[0] + replies[1]), judge=Judge(**load_option("judge", "gatemem")))
        (lines,) = read_scores(score_judge(run, gatemem)).values()
        assert (lines[0]["value"], len(model.requests)) == (value, calls)


def test_the_cache_answers_a_later_run_of_a_judge_without_a_verdict_and_not_its_retries(
    make_run: Make, tmp_path: Path
) -> None:
    run, store = make_run([history(questions=1)]), CacheStore(tmp_path / "cache.sqlite")
    run_all([run])
    model = ScriptedLLM(lambda request: YES if request.retry else "certainly!")
    once = replace(judging(model), llm=Metered(CachedLLM(model, store, ModelSettings("m"), "here")))
    for _ in range(2):
        (line,) = read_scores(score_judge(run, once)).values()
        assert line[0]["value"] is None
    assert len(model.requests) == 1
    (line,) = read_scores(score_judge(run, replace(once, judge=replace(JUDGE, retries=1)))).values()
    assert line[0]["value"] == 1.0
    assert [request.retry for request in model.requests] == [0, 1]
    store.close()


@pytest.mark.slow
def test_errored_answers_are_not_judged(make_run: Make) -> None:
    run = make_run([history(questions=2)], reader=Metered(ScriptedLLM(lambda _: ModelError("down"))))
    run_all([run])
    llm = ScriptedLLM(YES)
    assert read_scores(score_judge(run, judging(llm))) == {}
    assert llm.requests == []


def test_an_empty_answer_and_an_aborted_search_score_0_without_a_call_of_the_judge(make_run: Make) -> None:
    run = make_run([history("a", questions=3)], reader=Metered(ScriptedLLM({"*": ["", "It was the loom", "A cat"]})))
    run_all([run])
    path = run.case_folder("a") / "predictions.jsonl"
    aborted = {"outcome": "aborted", "answer": "", "error": "walked out"}
    write_lines(path, [{**line, **(aborted if line["answer"] == "A cat" else {})} for line in read_lines(path)])
    llm = ScriptedLLM(YES)
    lines = [line for lines in read_scores(score_judge(run, judging(llm, repeats=2))).values() for line in lines]
    scores = [(0.0, "aborted: walked out"), (0.0, "empty answer"), (1.0, "")]
    assert sorted((line["value"], line["why"]) for line in lines) == sorted(2 * scores)
    assert len(llm.requests) == 2


def test_an_empty_answer_has_no_verdict_where_0_would_say_that_nothing_leaked(make_run: Make) -> None:
    run = make_run([history(questions=2)], reader=Metered(ScriptedLLM({"*": ["", "It was the loom"]})))
    run_all([run])
    llm = ScriptedLLM(
        '{"action_ok": true, "utility_ok": true, "privacy_leak": null, "deletion_leak": null, "notes": ""}'
    )
    gatemem = replace(judging(llm), judge=Judge(**load_option("judge", "gatemem")))
    lines = [line for lines in read_scores(score_judge(run, gatemem)).values() for line in lines]
    assert {(line["value"], line["why"]) for line in lines} == {(None, "empty answer"), (1.0, "")}
    assert len(llm.requests) == 1


def test_a_run_whose_empty_replies_were_errors_opens_and_asks_those_questions_again(make_run: Make) -> None:
    """Folders of older versions hold such lines."""
    run = make_run([history("a", questions=1)])
    run_all([run])
    path = run.case_folder("a") / "predictions.jsonl"
    (line,) = read_lines(path)
    write_lines(path, [{**line, "outcome": "error", "answer": "", "error": "answer: the reply was empty (stop)"}])
    assert read_scores(score_judge(run, judging(ScriptedLLM(YES)))) == {}
    again = make_run([history("a", questions=1)], reader=Metered(ScriptedLLM("")))
    run_all([again])
    assert [lines[0]["value"] for lines in read_scores(score_judge(again, judging(ScriptedLLM(YES)))).values()] == [0.0]


def test_judging_costs_are_written_beside_the_scores(make_run: Make) -> None:
    run = make_run([history(questions=2)])
    run_all([run])
    path = score_judge(run, judging(ScriptedLLM(YES)))
    efforts = read_lines(path.with_suffix(".effort.jsonl"))
    assert [line["phase"] for line in efforts] == ["judge", "judge"]
    assert all(line["calls"] == {"judge.mem0": 1} for line in efforts)


def test_a_verdict_whose_cost_was_lost_at_a_kill_is_asked_again(make_run: Make) -> None:
    run = make_run([history("a", questions=3)])
    run_all([run])
    path = score_judge(run, judging(ScriptedLLM(YES)))
    costs = path.with_suffix(".effort.jsonl")
    write_lines(path, read_lines(path)[:2])
    write_lines(costs, read_lines(costs)[:1])
    llm = ScriptedLLM(YES)
    score_judge(run, judging(llm))
    assert len(llm.requests) == 2
    assert len(read_lines(path)) == len(read_lines(costs)) == 3


def answer_anew(run: Run, question_id: str, answer: str) -> None:
    """What retrying a question does: a later line with another answer."""
    path = run.case_folder("a") / "predictions.jsonl"
    lines = read_lines(path)
    (old,) = (line for line in lines if line["question_id"] == question_id)
    write_lines(path, [*lines, {**old, "answer": answer}])


def test_a_verdict_on_an_answer_that_has_since_changed_is_dropped(make_run: Make) -> None:
    """Averaged in, the old verdict made .75 of what is .5."""
    run = make_run([history("a", questions=2)])
    run_all([run])
    score_judge(run, judging(ScriptedLLM(YES)))
    answer_anew(run, "q0", "something else")
    llm = ScriptedLLM(NO)
    path = score_judge(run, judging(llm))
    assert {key: [line["value"] for line in lines] for key, lines in read_scores(path).items()} == {
        ("a", "q0"): [0.0],
        ("a", "q1"): [1.0],
    }
    assert len(llm.requests) == 1
    assert len(read_lines(path.with_suffix(".effort.jsonl"))) == 2


def test_only_the_repeats_asked_for_are_kept(make_run: Make) -> None:
    run = make_run([history("a", questions=2)])
    run_all([run])
    score_judge(run, judging(ScriptedLLM([YES, NO, NO] * 2), repeats=3))
    llm = ScriptedLLM(YES)
    path = score_judge(run, judging(llm, repeats=1))
    assert [[line["repeat"] for line in lines] for lines in read_scores(path).values()] == [[0], [0]]
    assert [line["repeat"] for line in read_lines(path.with_suffix(".effort.jsonl"))] == [0, 0]
    assert llm.requests == []


def test_judging_again_does_not_add_to_what_judging_cost(make_run: Make) -> None:
    """A reply without a verdict is asked for again at every start, mostly from the cache: its cost stands once."""
    run = make_run([history("a", questions=2)])
    run_all([run])
    spent = []
    for _ in range(3):
        path = score_judge(run, judging(ScriptedLLM(["certainly!", YES])))
        spent.append(sum(line["tokens_in"] for line in read_lines(path.with_suffix(".effort.jsonl"))))
    assert spent[0] > 0
    assert spent == [spent[0]] * 3


def test_a_verdict_on_what_was_recalled_is_dropped_when_something_else_is(make_run: Make) -> None:
    run = make_run([history("a", questions=1)])
    run_all([run])
    judge = Judging(Judge(**load_option("judge", "realmem_memory")), Metered(ScriptedLLM(RECALLED)), "m", Prompts())
    score_judge(run, judge)
    path = run.case_folder("a") / "predictions.jsonl"
    (line,) = read_lines(path)
    write_lines(path, [{**line, "items": line["items"][:1], "scores": line["scores"][:1]}])
    again = ScriptedLLM(RECALLED)
    scores = read_scores(score_judge(run, replace(judge, llm=Metered(again))))
    assert len(again.requests) == 1
    assert [len(lines) for lines in scores.values()] == [1]


def test_the_memory_judge_is_shown_the_recalled_items_with_the_highest_scores(make_run: Make) -> None:
    run = make_run([history("a", questions=1)])
    run_all([run])
    path = run.case_folder("a") / "predictions.jsonl"
    (line,) = read_lines(path)
    first, second = line["items"][:2]
    write_lines(path, [{**line, "items": [first, second], "scores": [0.1, 0.9]}])
    texts = {item["key"]: item["text"] for item in read_lines(run.case_folder("a") / "items.jsonl")}
    llm = ScriptedLLM(RECALLED)
    one = replace(Judge(**load_option("judge", "realmem_memory")), top=1)
    score_judge(run, Judging(one, Metered(llm), "m", Prompts()))
    shown = llm.requests[0].messages[-1][1].partition("<retrieved>")[2].partition("</retrieved>")[0]
    assert shown.strip() == texts[second]


def test_evidence_is_counted_again_when_something_else_is_recalled_for_the_same_answer(make_run: Make) -> None:
    run = make_run([history("a", questions=1)])
    run_all([run])
    (before,) = read_scores(score_lexical(run, [], 3)["evidence@3"]).values()
    path = run.case_folder("a") / "predictions.jsonl"
    (line,) = read_lines(path)
    write_lines(path, [{**line, "items": [], "scores": []}])
    (after,) = read_scores(score_lexical(run, [], 3)["evidence@3"]).values()
    assert (before[0]["value"], after[0]["value"]) == (1.0, 0.0)


def test_evidence_tells_sources_from_words(make_run: Make) -> None:
    case = history()
    run = make_run([case])
    run_all([run])
    scores = read_scores(score_lexical(run, [], 3)["evidence@3"])
    assert all(lines[0]["value"] == 1.0 for lines in scores.values())
    assert all(lines[0]["detail"]["verbatim"] == 1.0 for lines in scores.values())
    assert all(lines[0]["detail"]["sources_per_item"] == 2.0 for lines in scores.values())


def test_a_question_without_evidence_is_unscored_for_evidence(make_run: Make) -> None:
    case = history(questions=1)
    bare = replace(case, questions=((case.questions[0][0], replace(case.questions[0][1], evidence=())),))
    run = make_run([bare])
    run_all([run])
    assert [lines[0]["value"] for lines in read_scores(score_lexical(run, [], 3)["evidence@3"]).values()] == [None]


def test_evidence_without_words_has_no_literal_recall_and_is_counted_all_the_same(make_run: Make) -> None:
    case = history(questions=1)
    first, *rest = case.sessions
    silent = replace(first, turns=tuple(replace(turn, text="") for turn in first.turns))
    run = make_run([replace(case, sessions=(silent, *rest))])
    run_all([run])
    assert evidence_means(score_lexical(run, [], 3)["evidence@3"])[1] == "–"


def test_a_missing_score_file_says_what_to_do(make_run: Make) -> None:
    with pytest.raises(RunError, match="run the experiment again"):
        read_scores(make_run([history()]).folder / "scores" / "x.jsonl")


def test_evidence_at_k_follows_the_memorys_own_ranking_and_not_the_order_shown(make_run: Make) -> None:

    from data_loaders.schema import Question, Unit
    from memsys.interface import MemorySystem, Recall, unit_item

    class Chronological(MemorySystem):
        def __init__(self) -> None:
            self.units: list[Unit] = []

        def write(self, unit: Unit) -> None:
            self.units.append(unit)

        def read(self, question: Question) -> Recall:
            return Recall(tuple(unit_item(unit, float(place)) for place, unit in enumerate(self.units)))

    run = make_run([history()], build=partial(Chronological))
    run_all([run])
    scores = read_scores(score_lexical(run, [], 1)["evidence@1"])
    assert [lines[0]["value"] for lines in scores.values()] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_judge_of_the_memory_sees_what_was_recalled(make_run: Make) -> None:
    run = make_run([history(questions=1)])
    run_all([run])
    llm = ScriptedLLM("{}")
    score_judge(run, Judging(Judge(**load_option("judge", "realmem_memory")), Metered(llm), "m", Prompts()))
    assert "grey cat called Pixel" in llm.requests[0].messages[-1][1]
    silent = make_run([history(questions=1)], reader=Metered(ScriptedLLM("")), folder="silent")
    run_all([silent])
    score_judge(silent, Judging(Judge(**load_option("judge", "realmem_memory")), Metered(llm), "m", Prompts()))
    assert len(llm.requests) == 2, "an empty answer says nothing of the memory"


def test_a_judge_that_only_thinks_leaves_the_answer_unscored_with_the_reason_and_its_policy_stands_beside_the_scores(
    make_run: Make,
) -> None:
    run = make_run([history("a", questions=2)])
    run_all([run])
    thinks = Completion("", reasoning="Could it be CORRECT?", stopped="cut in thought")
    path = score_judge(run, judging(ScriptedLLM({"*": [thinks, Completion(YES)]})))
    lines = [line for found in read_scores(path).values() for line in found]
    unscored, scored = sorted(lines, key=lambda line: line["value"] is not None)
    assert (scored["value"], scored["why"]) == (1.0, "")
    assert unscored["why"].startswith("no verdict: the reply was cut in thought")
    assert json.loads(path.with_suffix(".json").read_text())["replies"] == dict(POLICY)


def test_evidence_is_no_grade_and_a_line_of_it_without_a_value_is_refused(tmp_path: Path) -> None:
    evidence, graded = tmp_path / "scores" / "evidence@10-01.jsonl", tmp_path / "scores" / "squad_f1-02.jsonl"
    detail = {"verbatim": 1.0, "ndcg": 1.0}
    write_lines(evidence, [{"case_id": "c", "question_id": "q", "repeat": 0, "value": 1.0, "detail": detail}])
    write_lines(graded, [])
    assert graded_files(tmp_path) == [graded]
    with pytest.raises(RunError, match="the line of c/q holds no sources_per_item"):
        read_evidence(evidence)


def test_scores_by_a_metric_with_two_settings_are_not_chosen_between(tmp_path: Path) -> None:
    for settings in ("01", "02"):
        write_lines(tmp_path / "scores" / f"squad_f1-{settings}.jsonl", [])
    with pytest.raises(RunError, match="expected one file of scores by squad_f1, found 2; there are: squad_f1"):
        only_score_file(tmp_path, "squad_f1")


def test_the_end_of_the_run_is_no_failed_verdict() -> None:
    failed, ended = Future[Completion](), Future[Completion]()
    failed.set_exception(ModelError("down"))
    ended.set_exception(EndOfRun("the budget is spent"))
    for replies in ((ended,), (failed, ended)):
        with pytest.raises(EndOfRun, match="the budget is spent"):
            replied(JUDGE, Gold(("Oaxaca",)), "Oaxaca", (Ledger(), replies))

"""What every data set promises by existing: one suite over conf/dataset, with the shipped samples and with the real files.

Ids, evidence, order, units, laziness and errors; gold that no memory can see; a whole offline run. The tables below say what is
particular to a raw format: where its answers and labels stand, what makes its evidence dangle, which order it promises.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from scripted import ScriptedLLM

from data_loaders.patterns import official_hit
from data_loaders.raw import as_lazy
from data_loaders.schema import Case, DataError, Gold
from data_loaders.source import sample
from data_loaders.units import Units, make_units
from eval.analysis.leaks import check
from eval.files.records import Prediction
from eval.files.run_folder import read_predictions
from eval.metrics.gatemem import read_reply
from eval.metrics.personamem import letter_v2
from eval.report.counted import counted
from eval.running.reader import Reader
from eval.running.run import Run, Services
from memsys.embed import HashingEmbedder
from memsys.llm.meter import Metered
from memsys.prompts import Prompts
from memsys.tokens import count_tokens
from scripts.assembly.runs import builder
from scripts.assembly.steps import metrics
from scripts.commands.data import loader
from scripts.setup.options import load_option, options
from tests.scripts.commands import run_single

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "data_loaders" / "samples"
SETS: Mapping[str, dict[str, Any]] = {name: load_option("dataset", name) for name in options("dataset")}
ASKING = [name for name in SETS if name != "msc"]
"""The sets that have questions."""
LARGE = 40_000_000
"""Bytes of a real file from which ten cases stand for all."""


@dataclass(frozen=True, slots=True)
class History:
    """A data set as loaded, and where from."""

    name: str
    settings: Mapping[str, Any]
    path: Path
    cases: tuple[Case, ...]

    @property
    def module(self) -> str:
        return module_of(self.settings)

    def units(self, case: Case) -> Units:
        return make_units(case.sessions, count=count_tokens, **self.settings["unit"])


def module_of(settings: Mapping[str, Any]) -> str:
    return str(settings["load"]["_target_"]).split(".")[1]


def shipped(name: str) -> History:
    path = sample(SETS[name]["sample"]).path
    return History(name, SETS[name], path, tuple(loader(SETS[name]["load"])(path)))


def real(name: str, root: Path) -> History:
    """The real files of a set, or the parts of them that its configuration takes instead; skips where neither is there."""
    for other in ({"file": SETS[name]["file"]}, SETS[name].get("instead", {})):
        settings = {**SETS[name], "load": {**SETS[name]["load"], **other.get("load", {})}}
        path = root / other.get("file", "")
        base = path if path.is_dir() else path.parent
        needed = [path, *(base / value for value in settings["load"].values() if str(value).endswith(".json"))]
        if other and all(each.exists() for each in needed):
            cases = as_lazy(loader(settings["load"])(path))
            if path.is_file() and path.stat().st_size > LARGE:
                cases = cases[:: max(1, len(cases) // 10)]
            return History(name, settings, path, tuple(cases))
    how = "make_msc_e" if name == "msc_e" else f"fetch {name}"
    pytest.skip(f"no real data: {SETS[name]['file']} is not below {root} (python -m scripts {how})")


@pytest.fixture(
    scope="module",
    params=[
        *((name, "sample") for name in SETS),
        *(pytest.param((name, "real"), marks=[pytest.mark.data, pytest.mark.slow]) for name in SETS),
    ],
    ids=lambda parameter: "-".join(parameter),
)
def history(request: pytest.FixtureRequest) -> History:
    name, kind = request.param
    return shipped(name) if kind == "sample" else real(name, request.getfixturevalue("data_root"))


each_set = pytest.mark.parametrize("name", SETS)
each_asking_set = pytest.mark.parametrize("name", ASKING)


# --- ids, evidence, order, units ---------------------------------------------------------------------------------------


def test_a_sample_has_cases_and_only_msc_has_no_questions() -> None:
    loaded = {name: shipped(name).cases for name in SETS}
    assert all(loaded.values())
    assert [name for name, cases in loaded.items() if any(case.questions for case in cases)] == ASKING


def ids_occur_once(history: History) -> None:
    assert distinct([case.id for case in history.cases])
    for case in history.cases:
        assert distinct([session.id for session in case.sessions])
        assert distinct([turn.id for turn in case.turns])
        assert distinct([question.id for question, _ in case.questions])
        assert distinct([unit.id for unit in history.units(case).units])
        assert case.cluster == case.id or history.module in CLUSTERED
        assert case.cluster


CLUSTERED = {"locomo_plus", "personamem"}
"""The sets in which several cases are of one person, so that they are resampled together."""


def distinct(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids) and all(ids)


def questions_are_asked_after_turns_that_exist(history: History) -> None:
    for case in history.cases:
        known = {turn.id for turn in case.turns} | {"", None}
        assert {question.after for question, _ in case.questions} <= known


def evidence_is_made_of_turns_and_what_leads_nowhere_is_noted(history: History) -> None:
    for case in history.cases:
        known = {turn.id for turn in case.turns}
        for question, gold in case.questions:
            assert set(gold.evidence) <= known
            if gold.detail.get("evidence_raw") and not gold.evidence:
                assert any(question.id in note for note in case.notes), f"{case.id}: {question.id} lost its evidence"


def there_is_an_answer_to_every_question(history: History) -> None:
    for case in history.cases:
        for question, gold in case.questions:
            assert question.text.strip()
            assert gold.answers
            assert all(answer.strip() for answer in gold.answers)


ORDERS: Mapping[str, tuple[str, str]] = {
    "longmemeval_mab": (r"'Chat Time: ([^']+)'", "time_text"),
    "multihop_rag": (r'"url":\s*"([^"]+)"', "id"),
    "perltqa": (r"[\"']([^\"']+)[\"']:", "id"),
    "realmem": (r'"session_identifier":\s*"([^"]+)"', "id"),
}
"""The sets whose sessions keep the order of the file: what marks a session in the raw text, and which field has the mark."""
IN_TIME = {"beam", "gatemem", "halumem", "locomo", "locomo_plus", "longmemeval"}
"""The sets whose sessions never go back in time."""


def sessions_stand_in_the_order_that_the_data_set_promises(history: History) -> None:
    for case in history.cases:
        if history.module in IN_TIME:
            times = [session.time for session in case.sessions if session.time is not None]
            assert len(times) == len(case.sessions) or case.notes
            assert times == sorted(times)
        elif history.module in ORDERS:
            pattern, field = ORDERS[history.module]
            marks = iter(re.findall(pattern, raw_text(history, case)))
            wanted = dict.fromkeys(re.sub(r"[~@].*", "", getattr(session, field)) for session in case.sessions)
            for mark in wanted:  # found only behind the one before it: `in` moves the iterator on
                assert mark in marks, f"{case.id}: {mark} is not where the file has it"
        else:
            numbers = [session.id.removeprefix("S") for session in case.sessions]
            assert len(numbers) == 1 or numbers == [str(number) for number in range(1, len(numbers) + 1)]


def raw_text(history: History, case: Case) -> str:
    """The text of the file that holds the sessions of a case."""
    if history.module == "realmem":
        path = next(history.path.glob(f"{case.id}_dialogues_*.json"))
    else:
        path = history.path / history.settings["load"].get("corpus", history.settings["load"].get("memory", ""))
    return path.read_text(encoding="utf-8")


def units_hold_every_turn_or_list_it_as_dropped(history: History) -> None:
    for case in history.cases:
        made = history.units(case)
        openings = {session.id: f"{session.heading}\n" if session.heading else "" for session in case.sessions}
        held: dict[str, str] = {}
        for unit in made.units:
            for place, turn in enumerate(unit.turns):
                opening = "" if place else openings[unit.session_id]
                assert turn.text.startswith(opening)
                held[turn.id] = held.get(turn.id, "") + "".join(turn.text.removeprefix(opening).split())
        assert not set(held) & set(made.dropped)
        assert set(held) | set(made.dropped) == {turn.id for turn in case.turns}
        assert held == {turn.id: "".join(turn.text.split()) for turn in case.turns if turn.id in held}


def a_case_taken_twice_is_the_same_case(history: History) -> None:
    cases = as_lazy(loader(history.settings["load"])(history.path))
    assert len(cases) == len(cases.ids) == len(cases.sizes)
    for case in history.cases[:3]:
        assert cases[cases.ids.index(case.id)] == case


# --- copies of a sample ------------------------------------------------------------------------------------------------

UNREAD = {
    "msc": {"session_2/valid.txt"},
    "longmemeval_v2": {"haystacks/lme_v2_medium.json"},
    "longmemeval_v2_medium": {"haystacks/lme_v2_small.json"},
    "longmemeval_v2_unjudged": {"haystacks/lme_v2_medium.json"},
}
"""Files of a sample that its configuration does not read."""


def raw_files(name: str, folder: Path) -> list[Path]:
    """The files that a sample consists of, below a copy of all samples."""
    path = folder / SETS[name]["sample"]
    files = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
    above = Path(SETS[name]["file"]).parent
    files += [
        Path(os.path.normpath(path.parent / os.path.relpath(other, above))) for other in SETS[name].get("also", ())
    ]
    return [file for file in files if file.is_file() and not any(file == path / each for each in UNREAD.get(name, ()))]


def copied(name: str, folder: Path, change: Callable[[str, Any], Any] = lambda key, value: value) -> Path:
    """A copy of the samples in which the set's files were `changed`; gives the path to load."""
    shutil.copytree(SAMPLES, folder, dirs_exist_ok=True)
    for file in raw_files(name, folder):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            file.write_text(json.dumps(changed(json.loads(text), change)), encoding="utf-8")
        elif file.suffix == ".csv":
            records = list(csv.DictReader(io.StringIO(text, newline="")))
            with file.open("w", encoding="utf-8", newline="") as handle:
                writer = csv.DictWriter(handle, list(records[0]))
                writer.writeheader()
                writer.writerows(changed(record, change) for record in records)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
            file.write_text("".join(json.dumps(changed(row, change)) + "\n" for row in rows), encoding="utf-8")
    return folder / str(SETS[name]["sample"])


def changed(raw: Any, change: Callable[[str, Any], Any]) -> Any:
    """A copy of a JSON value with every `key: value` replaced by `key: change(key, value)`, outermost first."""
    if isinstance(raw, dict):
        return {key: changed(change(key, value), change) for key, value in raw.items()}
    return [changed(value, change) for value in raw] if isinstance(raw, list) else raw


def seen(history: History, cases: Sequence[Case]) -> str:
    """All that a memory or a reader may see of these cases, as text."""
    return repr([(case.sessions, history.units(case), [question for question, _ in case.questions]) for case in cases])


@pytest.mark.slow
def test_a_truncated_file_is_named_in_the_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, file in ((each, file) for each in SETS for file in raw_files(each, SAMPLES)):
        with subtests.test(f"{name} {file.name}"):
            path = copied(name, tmp_path)
            cut = tmp_path / file.relative_to(SAMPLES)
            whole = cut.read_bytes().rstrip()
            cut.write_bytes(whole[: -len(whole.rpartition(b"\n")[2]) // 2])
            with pytest.raises(DataError, match=re.escape(file.name)):
                list(loader(SETS[name]["load"])(path))


# --- gold in the raw file ----------------------------------------------------------------------------------------------

HIDDEN: Mapping[str, set[str]] = {
    "beam": {
        "answer",
        "expected_compliance",
        "ideal_answer",
        "ideal_response",
        "ideal_summary",
        "rubric",
        "index",
        "title",
        "difficulty",
        "key_facts_tested",
        "ordering_tested",
        "compliance_indicators",
        "plan_reference",
    },
    "jsonl": {"answers", "category"},
    "factconsolidation": {"answers", "qa_pair_ids"},
    "gatemem": {"include", "not_include", "leak_targets", "notes", "attack_type"},
    "halumem": {"answer", "evidence", "difficulty", "question_type", "memory_points", "end_time", "timestamp"},
    "locomo": {"answer", "adversarial_answer", "evidence", "query", "img_url"},
    "locomo_plus": {"model_name", "answer", "adversarial_answer", "evidence", "query", "img_url"},
    "longmemeval": {"answer", "answer_session_ids"},
    "longmemeval_v2": {"answer", "eval_function", "environment", "screenshot", "start_url"},
    "longmemeval_mab": {"answers", "haystack_sessions", "qa_pair_ids"},
    "msc": {"personas", "init_personas", "convai2_id"},
    "dmr": {"personas", "init_personas", "convai2_id", "A", "summary_speaker_1", "summary_speaker_2"},
    "msc_e": {"response", "evidence", "generator"},
    "multihop_rag": {"answer", "evidence_list"},
    "perltqa": {"Answer", "Reference Memory", "Memory Anchors", "Last Accessed Time", "Characters"},
    "personamem": {
        "topic",
        "distance_to_ref_proportion_in_context",
        "distance_to_ref_in_tokens",
        "context_length_in_letters",
    },
    "personamem_v2": {
        *("raw_persona_file", "short_persona", "expanded_persona", "topic_query", "preference", "topic_preference"),
        *("conversation_scenario", "pref_type", "related_conversation_snippet", "who", "updated", "prev_pref"),
        *("chat_history_128k_link", "sensitive_info", "metadata"),
    },
    "quality_choice": {"validation", "speed_validation", "writer_id", "set_unique_id"},
    "quality_open": {"options", "validation", "speed_validation", "writer_id", "set_unique_id"},
    "realmem": {"extracted_memory", "memory_used", "memory_session_uuids", "topic", "session_type"},
    "locomo_overlay": {
        "golden_answer",
        "correct_answer",
        "correct_evidence",
        "cited_evidence",
        "reasoning",
        "error_type",
    },
}
"""Raw fields with answers, labels and annotations, by set or by its module."""
FIXED = {"role"}
"""Fields below them that take known values only."""


def hidden(name: str) -> set[str]:
    module = module_of(SETS[name])
    return HIDDEN.get(name, HIDDEN.get(module, set())) | (
        HIDDEN["locomo_overlay"] if SETS[name]["load"].get("overlay") else set()
    )


def with_uuids(value: Any, planted: list[str], *, names: bool = False) -> Any:
    """The value with a fresh UUID for every string in it, and where `names` says so for every field name, too."""
    if isinstance(value, dict):
        return {
            (fresh(planted) if names else key): inner if key in FIXED else with_uuids(inner, planted, names=names)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [with_uuids(inner, planted, names=names) for inner in value]
    return fresh(planted) if isinstance(value, str) else value


def fresh(planted: list[str]) -> str:
    planted.append(str(uuid.uuid4()))
    return planted[-1]


@each_set
def test_answers_and_labels_of_the_raw_file_are_in_nothing_that_is_seen(name: str, tmp_path: Path) -> None:
    planted: list[str] = []
    used: set[str] = set()

    def change(key: str, value: Any) -> Any:
        if key not in hidden(name):
            return value
        used.add(key)
        return with_uuids(value, planted, names=key == "Memory Anchors")

    path = copied(name, tmp_path, change)
    cases = tuple(loader(SETS[name]["load"])(path))
    assert used == hidden(name), "the table names fields that the sample does not have"
    assert planted
    text = seen(shipped(name), cases)
    assert not [each for each in planted if each in text]
    golds = repr(golds_of(cases))
    # MSC has no questions, and the multiple-choice set hides only a number: its options are shown.
    assert any(each in golds for each in planted) == (name not in ("msc", "quality_choice"))


def following(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Each of the values becomes the next one, the last the first; anything else stays."""
    return lambda value: values[(values.index(value) + 1) % len(values)] if value in values else value


LABELS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "locomo_plus": {"relation_type": following(["causal", "state", "goal", "value"])},
    "gatemem": {
        "query_type": following(["utility", "privacy", "safety"]),
        "expected_action": following(["answer", "answer_redacted", "refuse", "no_memory"]),
    },
    "jsonl": {
        "evidence": lambda turns: [*turns[1:], "S2:1"],
        "answerable": following([True, False]),
    },
    "locomo": {"category": following([1, 2, 3, 4])},
    "longmemeval": {
        "has_answer": following([True, False]),
        "question_type": following(["multi-session", "knowledge-update"]),
    },
    "longmemeval_mab": {"has_answer": following([True, False])},
    "longmemeval_v2": {"question_type": following(["static-environment", "procedure", "dynamic-environment-abs"])},
    "halumem": {"question_type": following(["Memory Boundary", "Basic Fact Recall"])},
    "personamem_v2": {"pref_type": following(["ask_to_forget", "therapy_background"])},
    "msc_e": {"bin": lambda rounds: [rounds[0], rounds[1] + 1]},
    "multihop_rag": {"question_type": following(["inference_query", "comparison_query", "temporal_query"])},
    "personamem": {
        "correct_answer": following(["(a)", "(b)", "(c)", "(d)"]),
        "question_type": following(["recall_user_shared_facts", "suggest_new_ideas"]),
        "distance_to_ref_in_blocks": following(["1", "2", "3"]),
    },
    "quality": {"gold_label": following([1, 2, 3, 4]), "difficult": following([0, 1])},
    "realmem": {"category_name": following(["Dynamic Updating", "Implicit Preference"])},
}
"""Labels that take known values only, and how to turn each into another valid one."""


@pytest.mark.parametrize("name", [name for name in SETS if module_of(SETS[name]) in LABELS])
def test_other_labels_change_the_gold_and_nothing_that_is_seen(name: str, tmp_path: Path) -> None:
    before = shipped(name)
    labels = LABELS[module_of(SETS[name])]
    for label, turned in labels.items():

        def change(key: str, value: Any, label: str = label, turned: Callable[[Any], Any] = turned) -> Any:
            return turned(value) if key == label else value

        after = tuple(loader(SETS[name]["load"])(copied(name, tmp_path, change)))
        assert seen(before, after) == seen(before, before.cases)
        assert golds_of(after) != golds_of(before.cases), f"{label} is not part of the gold"


def golds_of(cases: Sequence[Case]) -> list[Gold]:
    return [gold for case in cases for _, gold in case.questions]


NOWHERE = "no-such-place"
DANGLING: Mapping[str, Mapping[str, Any]] = {
    "beam": {"source_chat_ids": [999]},
    "locomo": {"evidence": ["D1:1", "D99:1"]},
    "locomo_corrected": {"correct_evidence": ["D1:1", "D99:1"]},
    "longmemeval": {"answer_session_ids": [NOWHERE]},
    "longmemeval_mab": {"haystack_sessions": [[[{"role": "user", "content": NOWHERE, "has_answer": True}]]] * 7},
    "msc_e": {"evidence": ["R1:1", "R999:1"]},
    "multihop_rag": {"evidence_list": [{"url": NOWHERE, "fact": NOWHERE}]},
    "perltqa": {"Reference Memory": f"['{NOWHERE}']"},
    "realmem": {"memory_session_uuids": [NOWHERE]},
}
"""Evidence that points to nothing in the history, by set or by its module: raw field -> value."""


def dangling(name: str) -> Mapping[str, Any]:
    return DANGLING.get(name, DANGLING.get(module_of(SETS[name]), {}))


@pytest.mark.slow
def test_every_question_whose_evidence_dangles_is_named_in_the_notes(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in (each for each in SETS if dangling(each)):
        with subtests.test(name=name):
            broken = dangling(name)
            path = copied(name, tmp_path, lambda key, old, broken=broken: broken.get(key, old) if old else old)
            had = {
                (case.id, question.id)
                for case in shipped(name).cases
                for question, gold in case.questions
                if cited(name, gold)
            }
            assert had
            for case in loader(SETS[name]["load"])(path):
                known = {turn.id for turn in case.turns}
                for question, gold in case.questions:
                    assert set(gold.evidence) <= known
                    if (case.id, question.id) in had:
                        assert any(about(question.id, case, note) for note in case.notes), f"{case.id}: {question.id}"


def cited(name: str, gold: Gold) -> bool:
    """Whether the field that `DANGLING` breaks has something to say of this question."""
    if name == "locomo_corrected":
        return bool(gold.detail.get("audit", "CORRECT") != "CORRECT")
    return bool(gold.evidence or gold.detail.get("evidence_raw") or gold.detail.get("answer_session_ids"))


def about(question_id: str, case: Case, note: str) -> bool:
    """Whether a note on something that leads nowhere names the question, or its case has no other."""
    named = re.search(rf"(?<![\w-]){re.escape(question_id)}(?![\w-])", note) or len(case.questions) == 1
    return bool(named) and any(place in note for place in (NOWHERE, "D99:1", "R999:1", "not in the c"))


# --- gold in a run -----------------------------------------------------------------------------------------------------


@each_set
@pytest.mark.parametrize("memory", ["bm25", pytest.param("memtree", marks=pytest.mark.slow)])
def test_gold_is_in_nothing_that_a_memory_or_a_model_receives_and_in_no_file(
    name: str, memory: str, tmp_path: Path
) -> None:
    cases = as_lazy(shipped(name).cases)
    model = ScriptedLLM("A remark.")
    metered = Metered(model)
    services = Services(metered, metered, metered, HashingEmbedder(64), Prompts())
    build = builder(load_option("memory", memory)["build"])
    unit = SETS[name]["unit"]
    run = Run(
        memory,
        tmp_path,
        cases,
        cases.sizes,
        build,
        Reader(**load_option("reader", SETS[name]["reader"])),
        unit,
        services,
    )
    found = check(run, threads=2)
    assert not found.leaks
    questions = sum(len(case.questions) for case in cases)
    assert found.marks >= 6 * questions
    assert found.looked.get("read", 0) == questions
    assert found.looked.get("asked", 0) == len(model.requests) >= questions
    assert found.looked["written"] >= len(shipped(name).units(cases[0]).units)
    assert found.looked["constructed"] == len(cases)
    assert (memory == "bm25") or found.looked["embedded"]
    predictions = [each for case in cases for each in read_predictions(run.case_folder(case.id)).values()]
    assert [each.outcome for each in predictions] == ["answered"] * questions


# --- scores of the gold answers ----------------------------------------------------------------------------------------

NOT_FULL: Mapping[tuple[str, str], tuple[Callable[[Gold, str], bool], str]] = {
    ("locomo", "locomo_f1"): (
        lambda gold, answer: gold.category == "open-domain" and ";" in answer,
        "the official scorer cuts the gold, and not the reply, at the first semicolon",
    ),
    ("personamem", "personamem_accuracy"): (
        lambda gold, answer: (
            answer != gold.detail["letter"]
            and set(re.findall(r"\b[a-d]\b", answer.lower())) != {gold.detail["letter"][1]}
        ),
        "the official rule reads letters and no option's text, in which it may find one by chance",
    ),
    ("personamem", "personamem_longest"): (
        lambda gold, answer: gold.detail["longest"] < 1,
        "a control: it scores a rule on the options, whatever the reply",
    ),
    ("personamem_v2", "personamem_v2_accuracy"): (
        lambda gold, answer: letter_v2(answer) != gold.detail["letter"][1].upper(),
        "the official rule reads letters and no option's text, in which it may find one by chance",
    ),
    ("personamem_v2", "personamem_longest"): (
        lambda gold, answer: gold.detail["longest"] < 1,
        "a control: it scores a rule on the options, whatever the reply",
    ),
    ("longmemeval_v2", "longmemeval_v2_match"): (
        lambda gold, answer: gold.detail["eval_function"].startswith("llm_"),
        "a judge grades it",
    ),
    ("gatemem", "gatemem_action"): (
        lambda gold, answer: read_reply(answer).action != gold.detail["expected_action"],
        "the action of prose is guessed, and no words of a deletion's are among the cues",
    ),
    **{
        ("gatemem", f"gatemem_{rule}"): (
            lambda gold, answer: (
                gold.category != "utility" or not all(official_hit(each, answer) for each in gold.detail["include"])
            ),
            "less is better where a leak is counted, and a regular expression does not match itself",
        )
        for rule in ("rule", "strict")
    },
    ("factconsolidation", "fact_newest"): (
        lambda gold, answer: gold.detail["gold_is_newest"] is False and gold.category == "single-hop",
        "the released answer is the overwritten fact",
    ),
    ("perltqa", "perltqa_keywords"): (
        lambda gold, answer: ";" in answer and answer != answer.lower(),
        "of several keywords the gold's are lower-cased and the reply is not, as in Mem-alpha's code",
    ),
}
"""Gold answers that the rule of a metric does not give full marks, by module and metric: which they are, and why."""


def a_gold_answer_gets_full_marks_or_is_a_known_exception(history: History) -> None:
    for metric in metrics(history.settings["metrics"]):
        excepted, why = NOT_FULL.get((history.module, metric.name), (lambda gold, answer: False, ""))
        asked = [pair for case in history.cases for pair in case.questions]
        for question, gold in asked[:: max(1, len(asked) // 200)]:
            for answer in gold.answers:
                score = metric.score(question, gold, Prediction("c", question.id, answer, (), (), "answered"))
                full = score.value == pytest.approx(1.0)
                assert full != excepted(gold, answer), f"{metric.name} of {answer!r}: {score.value} {score.why} {why}"


def test_the_part_of_an_open_domain_gold_that_is_scored_gets_full_marks() -> None:
    (metric,) = metrics(["locomo_f1"])
    golds = [each for case in shipped("locomo").cases for each in case.questions if ";" in each[1].answers[0]]
    assert golds
    for question, gold in golds:
        part = gold.answers[0].partition(";")[0]
        assert metric.score(question, gold, Prediction("c", question.id, part, (), (), "answered")).value == 1.0


PROMISES: Sequence[Callable[[History], None]] = (
    ids_occur_once,
    questions_are_asked_after_turns_that_exist,
    evidence_is_made_of_turns_and_what_leads_nowhere_is_noted,
    there_is_an_answer_to_every_question,
    sessions_stand_in_the_order_that_the_data_set_promises,
    units_hold_every_turn_or_list_it_as_dropped,
    a_case_taken_twice_is_the_same_case,
    a_gold_answer_gets_full_marks_or_is_a_known_exception,
)


def test_a_history_keeps_every_promise(history: History, subtests: pytest.Subtests) -> None:
    for promise in PROMISES:
        with subtests.test(promise.__name__):
            promise(history)


# --- a whole run -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_set
def test_the_set_runs_from_the_command_line_offline(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"results={tmp_path}", f"dataset={name}", "memory=bm25", "print=plain"])
    assert run_single(cfg) == 0
    said = capsys.readouterr().out
    count = sum(len(case.questions) for case in shipped(name).cases)
    assert f"{SETS[name]['title']}: sample data" in said
    assert f", {counted(count, 'question')}" in said
    assert count == 0 or f"{count}/0/0/0" in said


# --- files larger than memory ------------------------------------------------------------------------------------------

BIG = """
import re, sys, time
from pathlib import Path
from data_loaders.longmemeval import load
started = time.perf_counter()
cases = load(Path(sys.argv[1]))
indexed = time.perf_counter()
case = cases[len(cases) // 2]
taken = time.perf_counter()
# Not getrusage: its maximum may be that of the process which started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
print(len(cases), len(case.turns), round(indexed - started, 2), round(taken - indexed, 3), peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("MEMSYS_BIG"), reason="writes 280 MB, or MEMSYS_BIG if that is more; set it to run"
)
def test_a_file_of_the_size_of_longmemeval_s_is_indexed_within_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "longmemeval_s.json"
    megabytes = max(280, int(os.environ["MEMSYS_BIG"]))
    try:
        write_big(path, megabytes)
        done = subprocess.run(
            [sys.executable, "-c", BIG, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
        )
    finally:
        path.unlink(missing_ok=True)
    records, turns, indexing, taking, peak = map(float, done.stdout.split())
    print(f"{megabytes} MB: indexed in {indexing} s, a case taken in {taking} s, peak {peak} MB")
    assert records == 500
    assert turns > 400
    assert peak <= 600


def write_big(path: Path, megabytes: int) -> None:
    """500 records in the schema of LongMemEval-S: sessions of ten turns, as many as the size takes."""
    said = ('We talked "at length" about boats {and} [brackets], soup, and the price of rope. ' * 14).strip()
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"{n}: {said}"} for n in range(10)]
    count = megabytes * 1_000_000 // 500 // len(json.dumps(turns))
    with path.open("w", encoding="utf-8") as out:
        for number in range(500):
            record = {
                "question_id": f"q{number}",
                "question_type": "multi-session",
                "question": "What is the price of rope?",
                "answer": "Four coins",
                "question_date": "2023/06/30 (Fri) 12:00",
                "haystack_dates": ["2023/05/20 (Sat) 02:21"] * count,
                "haystack_session_ids": [f"s{index}" for index in range(count)],
                "haystack_sessions": [turns] * count,
                "answer_session_ids": ["s0"],
            }
            out.write(("[" if number == 0 else ",\n") + json.dumps(record))
        out.write("]")

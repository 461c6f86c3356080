"""Run folders of any size with invented histories, answers and scores, for the report's speed measurement and its tests.

The data say nothing about memories. The texts are drawn from a short list of words by a seed; `hostile` adds HTML, scripts, direction
marks, a key that JavaScript treats specially, and a line of a megabyte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Session, Turn
from eval.files.records import Prediction
from eval.files.store import item_record, replace_file, write_lines
from eval.judging.judge import Judge
from eval.report.cell import Cell, Column, asked, outcomes
from eval.report.published import Published
from eval.report.rendering import as_json
from eval.report.tables import Row, Table
from eval.running.case_log import effort
from eval.running.reader import Reader
from memsys.interface import Item
from memsys.llm.meter import Ledger
from memsys.prompts import Prompts
from memsys.tokens import count_tokens

WORDS = "river garden violin cousin ticket winter recipe harbour letter window lemon market sister engine paper summer".split()
HOSTILE = (
    "<script>alert('shown')</script>",
    "</script><img src=x onerror=alert(1)>",
    "\u202eright to left\u2066 isolated \u2028 separated",
    "__proto__",
    "'\"`${alert(1)}\\u0000",
    "x" * 1_000_000,
    "\ud800 half a character",
)
CATEGORIES = ("single", "multi", "temporal")
JUDGE = Judge("invented", "Invented judge", "label", "judge/mem0")
READER = Reader("invented", "Invented", "reader/segtree", None, 64, 0.0)
RECALLED = 8
TURNS = 40


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of invented data."""

    memories: int = 3
    histories: int = 6
    questions: int = 8
    """Number of questions of each history."""
    hostile: bool = False


def invented_cases(size: Size) -> list[Case]:
    """The histories and their questions."""
    rng = np.random.default_rng(0)
    return [_case(f"h{number}", size, rng) for number in range(size.histories)]


def _case(name: str, size: Size, rng: np.random.Generator) -> Case:
    sessions = []
    for place in range(4):
        turns = [Turn(f"{name}:{place}:{n}", "Ann" if n % 2 else "Ben", _text(rng, 12)) for n in range(TURNS // 4)]
        if size.hostile:
            turns = [Turn(turn.id, HOSTILE[0], HOSTILE[n % 5] + turn.text) for n, turn in enumerate(turns)]
        sessions.append(Session(f"s{place}", tuple(turns), None, f"{place + 1} May 2023"))
    turns = [turn for session in sessions for turn in session.turns]
    questions = []
    for n in range(size.questions):
        text = HOSTILE[n % len(HOSTILE)] if size.hostile else f"Which {WORDS[n % len(WORDS)]} did {_text(rng, 5)}?"
        gold = Gold((_text(rng, 2),), (turns[int(rng.integers(TURNS))].id,), CATEGORIES[n % 3], n % 7 != 6)
        questions.append((Question(f"{name}-q{n}", text), gold))
    return Case(name, ("Ann", "Ben"), tuple(sessions), tuple(questions), name)


def _text(rng: np.random.Generator, words: int) -> str:
    return " ".join(WORDS[place] for place in rng.integers(0, len(WORDS), words))


def write_results(results: Path, size: Size) -> list[Case]:
    """Write run folders and a table below `results`; returns the cases."""
    cases = invented_cases(size)
    folders = []
    for number in range(size.memories):
        folder = results / "runs" / "invented" / f"memory{number}-{number:012x}"
        _write_run(folder, number, cases, size)
        folders.append(folder)
    replace_file(results / "tables" / "invented-test.json", as_json(_table(folders, cases), results))
    return cases


def _write_run(folder: Path, number: int, cases: Sequence[Case], size: Size) -> None:
    rng = np.random.default_rng(number + 1)
    record = {
        "name": f"memory{number}",
        "memory": {"build": {"_target_": "invented", "k": RECALLED}},
        "dataset": {"name": "invented", "size": "all", "max_cases": None, "transform": "none", "seed": 0},
        "reader": asdict(READER),
        "models": {"reader": {"engine": "invented"}},
        "prompts": Prompts().digest([READER.prompt]),
        "prompts_dir": None,
        "data_status": "sample",
        "cases": len(cases),
        "seed": [0, 0],
    }
    replace_file(folder / "run.json", json.dumps(record))
    judged: list[dict[str, Any]] = []
    for case in cases:
        judged += _write_case(folder / "cases" / case.id, case, rng, size)
    write_lines(folder / "scores" / "judge_invented-000000000000.jsonl", judged)
    settings = {"judge": asdict(JUDGE), "prompts": Prompts().digest(JUDGE.prompt_names)}
    replace_file(folder / "scores" / "judge_invented-000000000000.json", json.dumps(settings))
    overlap = [{**line, "value": round(float(rng.random()), 6)} for line in judged if line["repeat"] == 0]
    write_lines(folder / "scores" / "f1-000000000001.jsonl", overlap)


def _write_case(folder: Path, case: Case, rng: np.random.Generator, size: Size) -> list[dict[str, Any]]:
    items = [Item(turn.id, f"{turn.speaker}: {turn.text}", 0.0, (turn.id,), "leaf", 0) for turn in case.turns]
    records, tokens = [item_record(item) for item in items], [count_tokens(item.text) for item in items]
    predictions, efforts, judged = [], list(_built(case)), []
    for question, _ in case.questions:
        places = [int(place) for place in rng.choice(len(items), RECALLED, replace=False)]
        scores = tuple(round(1 / (rank + 1), 4) for rank in range(RECALLED))
        answer = HOSTILE[int(rng.integers(5))] if size.hostile else _text(rng, 6)
        predictions.append(
            Prediction(case.id, question.id, answer, tuple(records[p]["key"] for p in places), scores, "answered")
        )
        efforts.append(_spent(case, "read", question.id, 0))
        efforts.append(_spent(case, "answer", question.id, sum(tokens[p] for p in places)))
        judged += [_verdict(case, predictions[-1], repeat, rng) for repeat in range(2)]
    write_lines(folder / "items.jsonl", records)
    write_lines(folder / "predictions.jsonl", predictions)
    write_lines(folder / "effort.jsonl", efforts)
    write_lines(folder / "nodes.jsonl", _nodes(case))
    write_lines(folder / "case.json", [{"case_id": case.id, "cluster": case.id, "hidden_root": False}])
    return judged


def _built(case: Case) -> Iterator[Any]:
    for turn in case.turns:
        yield _spent(case, "write", turn.id, 0)


def _spent(case: Case, phase: str, subject: str, context: int) -> Any:
    ledger = Ledger()
    ledger.tokens_in, ledger.tokens_out = 100, 10
    ledger.took(0.5, 0)
    ledger.calls["invented"] += 1
    return effort(case.id, phase, subject, 1, ledger, 0.001, context)


def _verdict(case: Case, prediction: Prediction, repeat: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "case_id": case.id,
        "question_id": prediction.question_id,
        "repeat": repeat,
        "value": float(rng.random() < 0.5),
        "why": _text(rng, 8),
        "detail": {},
        "answer": hashlib.sha256(prediction.answer.encode(errors="replace")).hexdigest()[:12],
    }


def _nodes(case: Case) -> Iterator[Mapping[str, Any]]:
    yield {"id": "root", "parents": [], "level": 2, "kind": "root", "text": case.id, "sources": []}
    for session in case.sessions:
        sources = [turn.id for turn in session.turns]
        yield {
            "id": session.id,
            "parents": ["root"],
            "level": 1,
            "kind": "segment",
            "text": session.time_text,
            "sources": sources,
        }
        for turn in session.turns:
            yield {
                "id": turn.id,
                "parents": [session.id],
                "level": 0,
                "kind": "leaf",
                "text": turn.text,
                "sources": [turn.id],
            }


def _table(folders: Sequence[Path], cases: Sequence[Case]) -> Table:
    questions = asked(cases)
    columns = tuple(Column("invented", "Invented", metric, questions) for metric in ("judge", "F1"))
    values = (0.5, 0.45, 0.55, None, "", "0.50")
    published = Published("None", "T1", "Invented", "", "x", "", "", "judge", *values, why_not="stand-in")
    rows = []
    for folder in folders:
        reached = outcomes([folder], questions)
        files = [folder / "scores" / name for name in ("judge_invented-000000000000.jsonl", "f1-000000000001.jsonl")]
        judge = Cell(columns[0], reached, (files[0],), published)
        cells = (judge, Cell(columns[1], reached, (files[1],)))
        rows.append(Row(folder.name.partition("-")[0], folder.name.partition("-")[0], cells, {"invented": folder}))
    caption = ("STAND-IN: everything here is invented.", f"Invented: {len(questions)} questions.")
    return Table("invented", "Invented numbers", caption, columns, tuple(rows), rows[0].name, primary=frozenset({0}))

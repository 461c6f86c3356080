"""The data files of a set of runs: its questions, each run's scores and answers, all pairs, and blocks with the details of questions.

The prompt sent to a judge is rendered again from the settings next to the scores, and shown only if it was really sent: if the prompt
files have the recorded hashes, and if the judged text has the hash in the verdict's line. A prompt is a list of texts: the pieces of its
template, which all questions share, and the filled-in values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from string import Template
from typing import Any

from pydantic import TypeAdapter

from data_loaders.schema import Case, Gold, Question
from eval.files.records import Prediction
from eval.files.run_folder import RunRecord
from eval.files.store import RunError, read_record
from eval.judging.judge import Judge, judge_requests
from eval.judging.score_files import hash_of
from eval.metrics.evidence import answer_words, recall_of
from eval.report.cell import Asked, outcomes
from eval.report.checked import checked
from eval.report.html.cleaning import LONGEST, Shards, clipped
from eval.report.html.run_files import CaseFiles, ReadRun, ReadSet
from eval.report.html.scoring import Scorer, cells, disputed, pairs, vector
from eval.report.html.sources import ReportedRun
from eval.report.ratings import sample_order
from eval.report.sent_prompt import rendered_again
from memsys.jsons import decoded
from memsys.llm.protocol import Request
from memsys.prompts import PromptError, Prompts

MOST = 12
"""Maximum number of requests shown for a judge that makes several about one answer."""

Messages = list[tuple[str, list[str]]]
"""Role and pieces of each message."""


def judge_prompts(
    run: ReportedRun, stem: str, line: Mapping[str, Any], judged: Mapping[str, str], question: Question, gold: Gold
) -> tuple[list[Messages], int]:
    """The first requests for the verdict of a line, and the number of all.

    Args:
        stem: name of the judge's score file without its ending.
        line: a line of the score file.
        judged: the texts that a judge may have seen: the `answer`, and the `recalled` texts.

    Raises:
        RunError: the request cannot be rendered again, or no request was sent; the message says why.
    """
    file = run.score_file(stem).with_suffix(".json")
    try:
        settings = file.read_text(encoding="utf-8")
        prompts = loaded_prompts(run.record.prompts_dir)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("the folder of the scores has no file with the judge's settings") from error
    except PromptError as error:
        raise RunError(f"the judge's prompt cannot be rendered again: {error}") from error
    judge = _judge(settings, prompts)
    text = judged["recalled" if judge.rule == "memory" else "answer"]
    if str(line.get("why", "")).startswith("aborted: "):
        raise RunError("no judge was asked: the memory gave up its search")
    try:
        if hash_of(text) != line.get("answer"):
            raise RunError("the verdict was given on another answer")
        requests = judge_requests(judge, prompts, question, gold, text, sample=int(line["repeat"]))
        return [_pieces(prompts, request) for request in requests[:MOST]], len(requests)
    except (PromptError, ValueError, KeyError) as error:
        raise RunError(f"the judge's prompt cannot be rendered again: {error}") from error


@lru_cache(maxsize=8)
def loaded_prompts(folder: str | None) -> Prompts:
    """The prompts of a folder, read once for all runs of a report (`eval.report.html.build` clears it)."""
    return Prompts(folder)


_JUDGE = TypeAdapter(Judge)


@lru_cache(maxsize=256)
def _judge(settings_text: str, prompts: Prompts) -> Judge:
    try:
        settings = decoded(settings_text)
        checked(_JUDGE, settings["judge"])
        judge = Judge(**settings["judge"])
        recorded, now = dict(settings["prompts"]), prompts.digest(judge.prompt_names)
    except (KeyError, TypeError, ValueError, PromptError, RunError) as error:
        raise RunError(f"the judge's settings cannot be read again: {error}") from error
    if changed := sorted(name for name in now if recorded.get(name) != now[name]):
        raise RunError(f"the prompt file {changed[0]}.md has changed since the verdict")
    return judge


def _pieces(prompts: Prompts, request: Request) -> Messages:
    """The messages of a request, cut where its template's fields begin and end."""
    prompt = prompts[request.purpose.replace(".", "/", 1)]
    templates = {"system": prompt.system, "user": prompt.user}
    return [(role, _cut_at_fields(templates.get(role, ""), text)) for role, text in request.messages]


def _cut_at_fields(template: str, text: str) -> list[str]:
    """The text as pieces of its template and the values between them; one piece if they cannot be separated."""
    literals = Template.pattern.split(template)[:: Template.pattern.groups + 1]
    pieces, rest = [], text
    for number, literal in enumerate(literals):
        last = number == len(literals) - 1
        at = len(rest) - len(literal) if last else rest.find(literal)
        if at < 0 or not rest.startswith(literal, at):
            return [text]
        pieces += [rest[:at], literal]
        rest = rest[at + len(literal) :]
    return [piece for piece in pieces if piece] if not rest else [text]


def judge_templates(run: ReportedRun, stems: Sequence[str]) -> dict[str, str]:
    """Names and hashes of the prompts of the judges that have scored a run."""
    names: dict[str, str] = {}
    for stem in stems:
        try:
            names |= dict(read_record(run.score_file(stem).with_suffix(".json")).get("prompts", {}))
        except (OSError, RunError, TypeError, ValueError):
            continue  # the verdicts are shown nevertheless, each with the note that its settings cannot be read
    return names


AROUND = 2
"""Number of turns shown before and after a turn of the evidence."""


class TextPool:
    """The texts of one data file, each stored once and referenced by its number."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.size = 0
        """Number of characters stored."""

    def place(self, text: str) -> int:
        """The number of a text; a new text is added."""
        if text not in self._places:
            self._places[text] = len(self._places)
            self.size += min(len(text), LONGEST)
        return self._places[text]

    @property
    def all(self) -> list[str]:
        return [clipped(text) for text in self._places]


def gold_page(case: Case | None, question: Question | None, gold: Gold | None) -> dict[str, Any]:
    """The question, its gold, and the turns of its evidence with their neighbours, session by session."""
    if case is None or question is None or gold is None:
        return {"text": None, "gold": [], "evidence": [], "words": [], "options": []}
    words = answer_words(gold)
    return {
        "text": clipped(question.text),
        "options": [clipped(option) for option in question.options],
        "asked": question.time_text,
        "instruction": clipped("\n".join(line for line in (question.asked_by, question.instruction) if line)),
        "gold": [clipped(answer) for answer in gold.answers],
        "answerable": gold.answerable,
        "trap": gold.trap,
        "evidence": _evidence(case, gold.evidence),
        "turns": list(gold.evidence),
        "words": sorted(words),
    }


def _evidence(case: Case, evidence: Sequence[str]) -> list[dict[str, Any]]:
    wanted = set(evidence)
    sessions = []
    for session in case.sessions:
        hits = [place for place, turn in enumerate(session.turns) if turn.id in wanted]
        shown = sorted({place for hit in hits for place in range(max(0, hit - AROUND), hit + AROUND + 1)})
        near = [session.turns[place] for place in shown if place < len(session.turns)]
        turns = [[turn.id, turn.speaker, clipped(turn.text), turn.id in wanted] for turn in near]
        if turns:
            sessions.append({"id": session.id, "time": session.time_text, "heading": session.heading, "turns": turns})
    return sessions


def answer_page(
    run: ReadRun, files: CaseFiles, question_id: str, question: Question | None, gold: Gold | None, texts: TextPool
) -> dict[str, Any]:
    """Recall and answer of one memory, from the files of the question's case; `texts` collects the texts that it names by number."""
    prediction = files.predictions.get(question_id)
    if prediction is None:
        return {"outcome": "not reached"}
    evidence, items = gold.evidence if gold is not None else (), []
    for key, score in zip(prediction.items, prediction.scores, strict=True):
        item = files.items[key]
        held = [turn for turn in evidence if turn in item["sources"]]
        items.append([texts.place(item["text"]), item["id"], score, item["level"], item["kind"], held])
    page = {
        "outcome": prediction.outcome,
        "answer": clipped(prediction.answer),
        "hash": hash_of(prediction.answer),
        "error": prediction.error,
        "cut": prediction.cut,
        "items": items,
        "read": files.efforts.get(("read", question_id)),
        "answered": files.efforts.get(("answer", question_id)),
    }
    # Number of items, best first, until every content word of the gold answer has occurred.
    recall = None if gold is None else recall_of(prediction, gold, files.items)
    if recall is not None:
        page["covered_by"] = None if recall.coverage is None else recall.coverage.blocks
    return {**page, **_prompt(run.record, files, prediction, question, texts)}


def _prompt(
    record: RunRecord, files: CaseFiles, prediction: Prediction, question: Question | None, texts: TextPool
) -> dict[str, Any]:
    """The prompt as parts (numbers refer to texts), or the reason why it is not shown."""
    line = files.efforts.get(("answer", prediction.question_id))
    if record.imported:
        return {"no_prompt": "the answer was imported without its prompt"}
    if line is None:
        return {"no_prompt": "no reader was asked: the memory failed, gave up, or answered itself"}
    if question is None:
        return {"no_prompt": "the question's text could not be read again"}
    try:
        prompts = loaded_prompts(record.prompts_dir)
        messages = rendered_again(record, prompts, files.items, prediction, line, question)
    except (PromptError, RunError) as error:
        return {"no_prompt": str(error)}
    shown = [files.items[key]["text"] for key in prediction.items]
    return {"prompt": [[role, _parts(text, shown, texts)] for role, text in messages]}


def _parts(text: str, shown: Sequence[str], texts: TextPool) -> list[str | int]:
    """The text cut at the recalled items; an item is referenced by number, because it is in the data file already."""
    parts: list[str | int] = [text]
    for item in sorted(dict.fromkeys(shown), key=len, reverse=True):
        if len(item) > 40:
            parts = [piece for part in parts for piece in _cut(part, item, texts)]
    return [clipped(part) if isinstance(part, str) else part for part in parts if part != ""]


def _cut(part: str | int, item: str, texts: TextPool) -> list[str | int]:
    if isinstance(part, int):
        return [part]
    pieces: list[str | int] = []
    for number, piece in enumerate(part.split(item)):
        pieces += [texts.place(item)] if number else []
        pieces.append(piece)
    return pieces


Verdicts = Mapping[tuple[str, str], Sequence[tuple[int, Mapping[str, Any]]]]
"""Lines of score files with the scorer's index, by case and question."""


def verdicts(run: ReadRun, every: Sequence[Scorer]) -> Verdicts:
    """Every score of every answer of a run, repeats in order."""
    found: dict[tuple[str, str], list[tuple[int, Mapping[str, Any]]]] = {}
    for place, scorer in enumerate(every):
        for key, lines in run.scores.get(run.score_file(scorer.stem), {}).items():
            found.setdefault(key, []).extend((place, line) for line in lines)
    return found


def judged_pages(
    run: ReadRun,
    files: CaseFiles,
    every: Sequence[Scorer],
    lines: Sequence[tuple[int, Mapping[str, Any]]],
    question: Question,
    gold: Gold,
    texts: TextPool,
) -> dict[int, dict[str, Any]]:
    """By index of the judge, the requests for its first verdict, or the reason why they are not shown; repeats send the same requests."""
    pages: dict[int, dict[str, Any]] = {}
    for place, line in lines:
        if place in pages or not every[place].is_judge:
            continue
        prediction = files.predictions[str(line["question_id"])]
        recalled = "\n".join(files.items[key]["text"] for key in prediction.items)
        judged = {"answer": prediction.answer, "recalled": recalled}
        try:
            asked, count = judge_prompts(run, every[place].stem, line, judged, question, gold)
        except RunError as error:
            pages[place] = {"why": str(error)}
            continue
        requests = [[[role, [texts.place(piece) for piece in pieces]] for role, pieces in each] for each in asked]
        pages[place] = {"requests": requests, "count": count}
    return pages


BLOCK = 400_000
"""Bytes after which a new block of questions begins."""
SEARCHED = 1_000
"""Number of characters of a question, a gold answer or an answer that can be searched."""


def write_set(shards: Shards, number: int, runs: ReadSet, every: Sequence[Scorer]) -> tuple[int, list[int]]:
    """Write all data files of a set; their names begin with `set<number>`.

    Returns:
        The number of blocks, and for each run the number of questions with a line.
    """
    name = f"set{number}"
    reached = [outcomes([run.folder], runs.asked, run.predictions) for run in runs.runs]
    by_scorer = [cells(runs, scorer, reached) for scorer in every]
    for place, found in enumerate(by_scorer):
        shards.write(f"{name}-pairs{place}", list(pairs(found)))
    rows: list[list[Any]] = []
    answers: list[list[tuple[str, str]]] = [[] for _ in runs.runs]
    block = 0
    for question, page, block, index in _write_blocks(shards, name, runs, every):
        rows.append([*_row(question, page), block, index])
        for own, answer in zip(answers, page["runs"], strict=True):
            outcome = "cut" if answer.get("cut") else str(answer["outcome"])
            own.append((answer.get("answer", "")[:SEARCHED], outcome))
    for place in range(len(runs.runs)):
        scored = [found.get(place) for found in by_scorer]
        judges = [cell for cell, scorer in zip(scored, every, strict=True) if cell is not None and scorer.is_judge]
        split = disputed(judges)
        page = {
            "answers": [answer for answer, _ in answers[place]],
            "outcomes": [outcome for _, outcome in answers[place]],
            "scores": [None if cell is None else vector(cell) for cell in scored],
            "split": [int(question.key in split) for question in runs.asked],
        }
        shards.write(f"{name}-run{place}", page)
    places = {question.key: place for place, question in enumerate(runs.asked)}
    sample = [places[key] for key in sample_order(places)]  # ratings in this order are a random sample
    shards.write(name, {"questions": rows, "sample": sample})
    return block + 1 if rows else 0, [sum(outcome != "not reached" for _, outcome in own) for own in answers]


def _write_blocks(
    shards: Shards, name: str, runs: ReadSet, every: Sequence[Scorer]
) -> Iterator[tuple[Asked, Mapping[str, Any], int, int]]:
    """Write the blocks; yields each question with its page, the number of its block and its index in the block."""
    lines = [verdicts(run, every) for run in runs.runs]
    pages, texts, number, size = list[Mapping[str, Any]](), TextPool(), 0, 0
    by_case: dict[str, list[Asked]] = {}
    for each in runs.asked:
        by_case.setdefault(each.case_id, []).append(each)
    cases = {case.id: case for case in runs.cases}
    for case_id, asked in by_case.items():
        case = cases.get(case_id)  # None if the data could not be read again
        files = [(run, run.case(case_id)) for run in runs.runs]
        known = {} if case is None else {question.id: (question, gold) for question, gold in case.questions}
        for each in asked:
            question, gold = known.get(each.question_id, (None, None))
            page = _question_page(each, case, question, gold, files, every, lines, texts)
            pages.append(page)
            size += len(json.dumps(page))
            yield each, page, number, len(pages) - 1
            if size + texts.size >= BLOCK:
                shards.write(f"{name}-block{number}", {"questions": pages, "texts": texts.all})
                pages, texts, number, size = [], TextPool(), number + 1, 0
    if pages:
        shards.write(f"{name}-block{number}", {"questions": pages, "texts": texts.all})


def _question_page(
    each: Asked,
    case: Case | None,
    question: Question | None,
    gold: Gold | None,
    files: Sequence[tuple[ReadRun, CaseFiles]],
    every: Sequence[Scorer],
    lines: Sequence[Verdicts],
    texts: TextPool,
) -> dict[str, Any]:
    pages = [
        {"run": place, **answer_page(run, own, each.question_id, question, gold, texts)}
        for place, (run, own) in enumerate(files)
    ]
    for page, (run, read), own in zip(pages, files, lines, strict=True):
        given, page["verdicts"] = own.get(each.key, ()), []
        for scorer, line in given:
            why, detail = clipped(line.get("why", "")), line.get("detail", {})
            page["verdicts"].append([scorer, line["repeat"], line["value"], why, detail])
        if question is not None and gold is not None and each.question_id in read.predictions:
            page["judged"] = judged_pages(run, read, every, given, question, gold, texts)
    start = {"case": each.case_id, "id": each.question_id, "category": each.category}
    return {**start, **gold_page(case, question, gold), "runs": pages}


def _row(each: Asked, page: Mapping[str, Any]) -> list[Any]:
    gold = " | ".join(page["gold"])
    groups = [group for group in (each.category, *each.groups) if group]
    text = clipped(page["text"] or "", SEARCHED)
    return [each.case_id, each.question_id, text, gold[:SEARCHED], groups, int(each.answerable)]

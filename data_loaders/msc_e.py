"""MSC-E: one very long chat between two people, with questions over all of it.

Described by Rezazadeh et al., "From Isolated Conversations to Hierarchical Schemas" (MemTree, ICLR 2025, A.2.3 and A.2.4): 70
conversations of about 200 rounds with about 102 questions each, reported by the position of the evidence in windows of 40 rounds.
Their data were never published. This loader reads conversations that were generated from that description, in our own format;
results on them are **not comparable** with the paper's.

The format is JSONL, one conversation a line:
- `id`, and `speakers`: two names. The first speaker begins every round and answers the questions.
- `rounds`: a list of pairs of texts, one by the first and one by the second speaker. The turns of round n (from 1) have the ids
  `R<n>:1` and `R<n>:2`.
- `questions`: objects with `id`, `question`, `response`, `evidence` (turn ids), `bin` (two round numbers: the evidence is in rounds
  after the first number and up to the second, so [0, 40] is the paper's column 0-40), and optionally `after_round`: the last round
  before the question is asked. Without it the question is asked after the last round.
- `generator`: an object that says how the conversation was generated (model, seed, seed conversation …); it is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_loaders.raw import LazyCases, check_text, check_unique, expect, get, get_text, read_jsonl
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn


def load(path: Path) -> LazyCases:
    """One case per conversation, with a single session; the category of a question is its bin; sizes are numbers of turns.

    Categories are `0-40`, `40-80` …; `Gold.detail` has `bin` and `evidence_raw`. Evidence that names no turn is left out of
    `Gold.evidence` and noted; evidence outside its bin is noted. Raises DataError for lines that do not have the format of the
    module's description.
    """
    records = read_jsonl(path)
    ids = [get_text(record, "id", f"{path.name}: record {index}") for index, record in enumerate(records)]
    check_unique(ids, f"{path.name}: id")
    sizes = [
        2 * len(get(record, "rounds", list, f"{path.name}: {case_id}"))
        for case_id, record in zip(ids, records, strict=True)
    ]
    return LazyCases(ids, sizes, lambda index: _case(records[index], ids[index], f"{path.name}: {ids[index]}"))


def _case(record: object, case_id: str, where: str) -> Case:
    names = get(record, "speakers", list, where)
    if len(names) != 2 or names[0] == names[1]:
        raise DataError(f"{where}.speakers: expected two different names, found {str(names)[:60]}")
    speakers = (check_text(names[0], f"{where}.speakers[0]"), check_text(names[1], f"{where}.speakers[1]"))
    turns: dict[str, Turn] = {}
    rounds = get(record, "rounds", list, where)
    for number, texts in enumerate(rounds, 1):
        turns |= _round(texts, number, speakers, f"{where}.rounds[{number - 1}]")
    if not turns:
        raise DataError(f"{where}.rounds: expected at least one round, found none")
    notes: list[str] = []
    questions = [
        _question(raw, speakers, turns, notes, f"{where}.questions[{index}]")
        for index, raw in enumerate(get(record, "questions", list, where))
    ]
    check_unique((question.id for question, _ in questions), f"{where}.questions")
    return Case(
        id=case_id,
        speakers=speakers,
        sessions=(Session("R", tuple(turns.values())),),
        questions=tuple(questions),
        cluster=case_id,
        notes=tuple(notes),
    )


def _round(texts: object, number: int, speakers: tuple[str, str], where: str) -> dict[str, Turn]:
    pair = expect(texts, list, where)
    if len(pair) != 2:
        raise DataError(f"{where}: expected two texts, one by each speaker, found {len(pair)}")
    first = Turn(f"R{number}:1", speakers[0], check_text(pair[0], f"{where}[0]"), "user")
    second = Turn(f"R{number}:2", speakers[1], check_text(pair[1], f"{where}[1]"), "assistant")
    return {first.id: first, second.id: second}


def _question(
    raw: object, speakers: tuple[str, str], turns: Mapping[str, Turn], notes: list[str], where: str
) -> tuple[Question, Gold]:
    question_id = get_text(raw, "id", where)
    question = Question(
        id=question_id,
        text=get_text(raw, "question", where),
        after=_after(raw, turns, where),
        instruction=f"{speakers[1]} asks this of {speakers[0]}. Answer as {speakers[0]}, in the first person.",
    )
    given = get(raw, "evidence", list, where)
    evidence_raw = tuple(check_text(cited, f"{where}.evidence[{index}]") for index, cited in enumerate(given))
    evidence = tuple(dict.fromkeys(turn_id for turn_id in evidence_raw if turn_id in turns))
    first, last = _bin(raw, where)
    notes += [f"question {question_id}: evidence {cited} is not a turn" for cited in evidence_raw if cited not in turns]
    notes += [
        f"question {question_id}: evidence {turn_id} is outside rounds {first}-{last}"
        for turn_id in evidence
        if not first < int(turn_id[1:].split(":")[0]) <= last
    ]
    gold = Gold(
        answers=(get_text(raw, "response", where),),
        evidence=evidence,
        category=f"{first}-{last}",
        detail={"bin": (first, last), "evidence_raw": evidence_raw},
    )
    return question, gold


def _after(raw: object, turns: Mapping[str, Turn], where: str) -> str | None:
    number: Any = expect(raw, dict, where).get("after_round")
    if expect(number, (int, type(None)), f"{where}.after_round") is None:
        return None
    turn_id = f"R{number}:2"
    if turn_id not in turns:
        raise DataError(f"{where}.after_round: expected one of the {len(turns) // 2} rounds, found {number}")
    return turn_id


def _bin(raw: object, where: str) -> tuple[int, int]:
    """The bin of a question: its evidence is in rounds after the first number and up to the second."""
    given = get(raw, "bin", list, where)
    numbers = [expect(each, int, f"{where}.bin") for each in given]
    if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:
        raise DataError(f"{where}.bin: expected two rising round numbers from 0, found {str(given)[:60]}")
    return numbers[0], numbers[1]

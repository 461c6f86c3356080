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

from data_loaders.raw import LazyCases, Raw, check_unique, read_records
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn


def load(path: Path) -> LazyCases:
    """One case per conversation, with a single session; the category of a question is its bin; sizes are numbers of turns.

    Categories are `0-40`, `40-80` …; `Gold.detail` has `bin` and `evidence_raw`. Evidence that names no turn is left out of
    `Gold.evidence` and noted; evidence outside its bin is noted. Raises DataError for lines that do not have the format of the
    module's description.
    """
    records = read_records(path)
    ids = [record.text("id") for record in records]
    named = [Raw(record.value, f"{path.name}: {case_id}") for record, case_id in zip(records, ids, strict=True)]
    sizes = [2 * len(record.of(list, "rounds")) for record in named]
    return LazyCases(ids, sizes, lambda index: _case(named[index], ids[index]), f"{path.name}: id")


def _case(record: Raw, case_id: str) -> Case:
    speakers = record.texts("speakers")
    if len(speakers) != 2 or speakers[0] == speakers[1]:
        raise DataError(f"{record.where}.speakers: expected two different names, found {str(list(speakers))[:60]}")
    turns: dict[str, Turn] = {}
    for number, texts in enumerate(record.each("rounds"), 1):
        if len(pair := texts.texts()) != 2:
            raise DataError(f"{texts.where}: expected two texts, one by each speaker, found {len(pair)}")
        turns[f"R{number}:1"] = Turn(f"R{number}:1", speakers[0], pair[0], "user")
        turns[f"R{number}:2"] = Turn(f"R{number}:2", speakers[1], pair[1], "assistant")
    if not turns:
        raise DataError(f"{record.where}.rounds: expected at least one round, found none")
    notes: list[str] = []
    questions = tuple(_question(raw, speakers, turns, notes) for raw in record.each("questions"))
    check_unique((question.id for question, _ in questions), f"{record.where}.questions")
    sessions = (Session("R", tuple(turns.values())),)
    return Case(case_id, speakers, sessions, questions, cluster=case_id, notes=tuple(notes))


def _question(
    raw: Raw, speakers: tuple[str, ...], turns: Mapping[str, Turn], notes: list[str]
) -> tuple[Question, Gold]:
    question_id = raw.text("id")
    asked = raw.of((int, type(None)), "after_round") if raw.has("after_round") else None
    if asked is not None and f"R{asked}:2" not in turns:
        raise DataError(f"{raw.where}.after_round: expected one of the {len(turns) // 2} rounds, found {asked}")
    question = Question(
        id=question_id,
        text=raw.text("question"),
        after=None if asked is None else f"R{asked}:2",
        instruction=f"{speakers[1]} asks this of {speakers[0]}. Answer as {speakers[0]}, in the first person.",
    )
    evidence_raw = raw.texts("evidence")
    evidence = tuple(dict.fromkeys(turn_id for turn_id in evidence_raw if turn_id in turns))
    rounds = [each.of(int) for each in raw.each("bin")]
    if len(rounds) != 2 or not 0 <= rounds[0] < rounds[1]:
        raise DataError(f"{raw.where}.bin: expected two rising round numbers from 0, found {str(rounds)[:60]}")
    first, last = rounds
    notes += [f"question {question_id}: evidence {cited} is not a turn" for cited in evidence_raw if cited not in turns]
    notes += [
        f"question {question_id}: evidence {turn_id} is outside rounds {first}-{last}"
        for turn_id in evidence
        if not first < int(turn_id[1:].split(":")[0]) <= last
    ]
    detail = {"bin": (first, last), "evidence_raw": evidence_raw}
    return question, Gold((raw.text("response"),), evidence, f"{first}-{last}", detail=detail)

"""LoCoMo (Maharana et al., ACL 2024; the file `data/locomo10.json` of snap-research/locomo).

How irregularities of the raw file are treated:
- The list of sessions comes from the sessions themselves, not from the dates: one conversation has dates without sessions.
- A photo's caption is added to the turn's text in our wording; its URL is not. The image search string `query` is not part of the
  dialogue and is left out.
- Evidence is parsed tolerantly ("D8:6; D9:17", "D:11:26", "D30:05"): every pair of numbers counts. Evidence that still matches no turn
  is left out of `Gold.evidence`, kept in `Gold.detail["evidence_raw"]` and named in `Case.notes`.
- Category names follow from the category numbers through `CATEGORIES`; several published tables name them differently.
- Numeric answers become text.

Deviation from the official scorer: the gold answer of category 5 is UNANSWERABLE and its `adversarial_answer` is the trap, also for the
two questions that have an `answer` ("No") too. The official scorer reads `answer` first and fails on the other 444.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, check_choice, check_unique, parsed_time, read_raw
from data_loaders.schema import Case, DataError, Gold, Question, Role, Session, Turn

CATEGORIES: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
ADVERSARIAL = 5
UNANSWERABLE = "Not mentioned in the conversation"

OverlayMode = Literal["raw", "corrected", "excluded"]

CORRECT = "CORRECT"
"""Label of a question without errors according to the audit."""
WRONG_CITATION = "WRONG_CITATION"
"""The only error type of the audit that does not affect the gold answer."""


@dataclass(frozen=True, slots=True)
class Erratum:
    """The audit's finding on one question."""

    question: str
    error: str
    answer: str
    evidence: tuple[str, ...]

    @property
    def corrupts_score(self) -> bool:
        """Whether the gold answer itself is wrong, so that a right answer gets a wrong score."""
        return self.error != WRONG_CITATION


Errata = Mapping[tuple[int, int], Erratum]
"""Findings by (position of the conversation in the file, position of the question in the conversation)."""


def load(path: Path, *, overlay: Path | str | None = None, overlay_mode: OverlayMode = "raw") -> Sequence[Case]:
    """One case per conversation of a LoCoMo file, in file order; sizes are numbers of turns.

    `overlay` is an errata list in the format of dial481/locomo-audit's `errors.json` (a relative path is relative to the folder of
    `path`). It adds the audit's label to questions of categories 1-4, in `Gold.detail["audit"]`. `overlay_mode` chooses its further effect:
    "raw" nothing; "corrected" replaces evidence by the audit's, and wrong answers too; "excluded" drops questions whose released
    answer is wrong (not those with a wrong citation only).

    Raises DataError if a file does not have the official schema, and ValueError for a wrong `overlay_mode`.
    """
    check_choice("overlay_mode", overlay_mode, OverlayMode)
    if overlay is None and overlay_mode != "raw":
        raise ValueError(f"overlay_mode={overlay_mode!r} needs an overlay file")
    name = path.name
    records = read_raw(path).each()
    ids = [record.text("sample_id") for record in records]
    named = [Raw(record.value, f"{name}: {case_id}") for record, case_id in zip(records, ids, strict=True)]
    talks = [record.of(dict, "conversation") for record in named]
    sizes = [sum(len(value) for value in talk.values() if isinstance(value, list)) for talk in talks]
    cases = LazyCases(ids, sizes, lambda index: _case(named[index]), name)
    if overlay is None:
        return cases
    errata = _read_errata(path.parent / overlay)
    _check_errata(errata, records)
    return LazyCases(ids, sizes, lambda index: _audited(cases[index], index, errata, overlay_mode))


def ceilings(cases: Iterable[Case]) -> dict[str, float]:
    """The highest share of right answers that a perfect system can reach, per category and "overall", according to the audit.

    A question whose released answer is wrong counts as lost. Category 5, which was not audited, is left out.
    Raises ValueError for cases that were not loaded with an overlay in mode "raw".
    """
    sound: dict[str, list[bool]] = {}
    for gold in (gold for case in cases for _, gold in case.questions if gold.answerable):
        if "audit" not in gold.detail:
            raise ValueError(
                'expected cases loaded with an overlay in mode "raw", found a question without audit label'
            )
        for group in (gold.category, "overall"):
            sound.setdefault(group, []).append(gold.detail["audit"] in (CORRECT, WRONG_CITATION))
    return {group: sum(labels) / len(labels) for group, labels in sound.items()}


def audit_caption(path: Path, *, overlay: Path | str, overlay_mode: OverlayMode) -> str:
    """A table caption's text on the audit: its use, and the highest score that the released answers allow."""
    file = path.parent / overlay
    limits = ceilings(load(path, overlay=overlay))
    shares = ", ".join(f"{group} {100 * share:.2f}" for group, share in limits.items() if group != "overall")
    used = {
        "raw": "answers as released",
        "corrected": "faulty answers and evidence corrected",
        "excluded": "questions with a faulty answer left out",
    }
    known = sha256(file.read_bytes()).hexdigest()[:12]
    return (
        f"audited ({file.name}, sha256 {known}: {used[overlay_mode]}); with the released answers a perfect system gets "
        f"{100 * limits['overall']:.2f} % ({shares})"
    )


def evidence_ids(text: str) -> tuple[str, ...]:
    """All turn ids in an evidence string, in their standard form: "D:11:26 D30:05" gives D11:26 and D30:5."""
    return tuple(f"D{int(session)}:{int(turn)}" for session, turn in re.findall(r"D?:?(\d{1,9}):(\d{1,9})", text))


def _case(record: Raw) -> Case:
    case_id, conversation = record.text("sample_id"), record.at("conversation")
    speakers = (conversation.text("speaker_a"), conversation.text("speaker_b"))
    if speakers[0] == speakers[1]:
        raise DataError(f"{record.where}: expected two speakers, found {speakers[0]!r} twice")
    sessions, notes = _sessions(conversation, speakers)
    known = _known_ids(sessions, record.where)
    questions = []
    for index, raw in enumerate(record.each("qa")):
        question = Question(f"{case_id}_q{index}", raw.text("question"))
        questions.append((question, _gold(raw, question.id, known, notes)))
    return Case(case_id, speakers, sessions, tuple(questions), cluster=case_id, notes=tuple(notes))


def _sessions(conversation: Raw, speakers: tuple[str, str]) -> tuple[tuple[Session, ...], list[str]]:
    keys = (key for key in conversation.of(dict) if re.fullmatch(r"session_\d{1,9}", key))
    sessions, notes = [], []
    for number in sorted(int(key.removeprefix("session_")) for key in keys):
        name = f"session_{number}"
        turns = []
        for raw in conversation.each(name):
            speaker, text = raw.choice(speakers, "speaker"), raw.text("text")
            if raw.has("blip_caption"):
                text = f"{text} [shares a photo: {raw.text('blip_caption')}]".lstrip()
            role: Role = "user" if speaker == speakers[0] else "assistant"
            turns.append(Turn(raw.text("dia_id"), speaker, text, role))
        time_text = conversation.text(f"{name}_date_time") if conversation.has(f"{name}_date_time") else ""
        time = parsed_time(time_text.strip(), "%I:%M %p on %d %B, %Y")
        if time is None:
            notes.append(f"{name} has no readable time: {time_text!r}.")
        if turns:
            sessions.append(Session(name, tuple(turns), time, time_text))
        else:
            notes.append(f"{name} has no turns and is left out.")
    return tuple(sessions), notes


def _gold(raw: Raw, question_id: str, known: Mapping[str, str], notes: list[str]) -> Gold:
    category = raw.of(int, "category")
    if category not in CATEGORIES:
        raise DataError(f"{raw.where}.category: expected one of {sorted(CATEGORIES)}, found {category}")
    raw_evidence = raw.texts("evidence")
    adversarial = category == ADVERSARIAL
    answer = UNANSWERABLE if adversarial else str(raw.of((str, int, float), "answer"))
    return Gold(
        answers=(Raw(answer, f"{raw.where}.answer").text(),),
        evidence=_evidence(question_id, raw_evidence, known, notes),
        category=CATEGORIES[category],
        answerable=not adversarial,
        trap=raw.text("adversarial_answer") if adversarial else None,
        detail={"category_id": category, "evidence_raw": raw_evidence},
    )


def _known_ids(sessions: Iterable[Session], where: str) -> dict[str, str]:
    """Standard form of each turn id -> the id itself."""
    turn_ids = [turn.id for session in sessions for turn in session.turns]
    check_unique(turn_ids, where)
    return {standard: turn_id for turn_id in turn_ids for standard in evidence_ids(turn_id)}


def _evidence(
    question_id: str, raw_evidence: Iterable[str], known: Mapping[str, str], notes: list[str]
) -> tuple[str, ...]:
    """Ids of the turns that the evidence names and that exist, each once; `notes` gets a sentence on each irregularity."""
    found = []
    for text in raw_evidence:
        read = evidence_ids(text)
        if read != (text,):
            notes.append(f"{question_id}: evidence {text!r} is malformed, read as {', '.join(read) or 'nothing'}.")
        notes += [f"{question_id}: evidence {each!r} points to no turn." for each in read if each not in known]
        found += [known[each] for each in read if each in known]
    return tuple(dict.fromkeys(found))


def _read_errata(path: Path) -> Errata:
    errata: dict[tuple[int, int], Erratum] = {}
    for raw in read_raw(path).each():
        name = raw.of(str, "question_id")
        position = re.fullmatch(r"locomo_(\d{1,9})_qa(\d{1,9})", name)
        if position is None:
            raise DataError(f"{raw.where}.question_id: expected locomo_<conversation>_qa<index>, found {name!r}")
        key = (int(position[1]), int(position[2]))
        if key in errata:
            raise DataError(f"{raw.where}.question_id: expected unique ids, found {name!r} twice")
        errata[key] = Erratum(
            question=raw.text("question"),
            error=raw.of(str, "error_type"),
            answer=raw.text("correct_answer"),
            evidence=raw.texts("correct_evidence"),
        )
    return errata


def _check_errata(errata: Errata, records: Sequence[Raw]) -> None:
    """Raise DataError if an erratum's question is not at its position: in other releases the positions are shifted."""
    for (case, index), erratum in errata.items():
        questions = records[case].of(list, "qa") if case < len(records) else []
        raw = questions[index] if index < len(questions) else {}
        text = raw.get("question") if isinstance(raw, dict) else raw
        if text != erratum.question:
            place = f"{records[case].where if case < len(records) else f'[{case}]'}.qa[{index}].question"
            raise DataError(
                f"{place}: expected {erratum.question!r} as in the overlay, found {text!r}. The overlay is for the official file: "
                "get that file with `python -m scripts fetch locomo`, or load this one without the overlay"
            )


def _audited(case: Case, position: int, errata: Errata, mode: OverlayMode) -> Case:
    """The case at a position of the file, with the audit's findings."""
    known = _known_ids(case.sessions, case.id)
    questions = []
    notes = list(case.notes)
    for index, (question, gold) in enumerate(case.questions):
        erratum = errata.get((position, index))
        if erratum is None:
            label = {"audit": CORRECT} if gold.answerable else {}
            questions.append((question, replace(gold, detail={**gold.detail, **label})))
        elif not (mode == "excluded" and erratum.corrupts_score):
            gold = replace(gold, detail={**gold.detail, "audit": erratum.error})
            if mode == "corrected":
                answers = (erratum.answer,) if erratum.corrupts_score else gold.answers
                evidence = _evidence(question.id, erratum.evidence, known, notes)
                gold = replace(gold, answers=answers, evidence=evidence)
                notes += [] if erratum.evidence else [f"{question.id}: the audit names no evidence."]
            questions.append((question, gold))
    return replace(case, questions=tuple(questions), notes=tuple(notes))

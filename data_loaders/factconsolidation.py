"""FactConsolidation: numbered facts. Many are stated twice with different objects; the fact with the larger number holds.

Source: MemoryAgentBench (Hu et al., arXiv 2507.05257), split Conflict_Resolution: eight rows, single-hop ("sh") and multi-hop ("mh")
questions on lists of four sizes. The facts come from MQuAKE (Zhong et al. 2023).

Deviations from the raw rows and from the official scripts:
- The two rows of a size have the same context, so they are one case: a memory is built once and asked 200 questions.
- A fact is a turn, its number the turn's id; the number stays in the text, because the rule "newest wins" needs it. The official
  chunker splits at sentence ends, which may part a number from its fact. Ours splits at lines (unit rule `chunk`).
- No time is added to stored texts. The official scripts write the wall-clock time into each chunk, so no two runs are alike.
- The rule and the form of the answer are in `Question.instruction`. The text that a memory searches with is the question alone, as in
  the official scripts.

Labels that are derived here, because the release does not have them:
- Facts are read by 37 sentence patterns, misspelt as in the release, and single-hop questions by one pattern for each. A fact's key is
  its pattern and its subject; no key has more than two facts.
- `Gold.evidence` of a single-hop question is the newest fact of its key.
- `Gold.evidence` of a multi-hop question is the one chain of two to four newest facts from a subject that it names to an answer. Of the
  released questions 96, 86, 90 and 66 of 100 have it (6k/32k/64k/262k); the others have no such chain, or several, and no evidence.
- `Gold.groups` has hops and size, e.g. "single-hop 262k", and for single-hop questions "conflict" (stated twice) or "no conflict"
  (measures retrieval only).
- Some gold answers break the rule: 7 single-hop golds are the older, overwritten fact, and 20 multi-hop golds are the object of no
  newest fact. A perfect memory gets at most 100/98/98/97 and 98/96/98/88 (6k/32k/64k/262k). They keep their released answers; a note
  names each, `Gold.detail["gold_is_newest"]` is False, and for single-hop questions `newest` is the right answer.

There are four cases only, so intervals by case mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from data_loaders.longmemeval_mab import context_of, expect_length, read_rows
from data_loaders.raw import LazyCases, Raw
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

INSTRUCTION = (
    "Each fact starts with its serial number. Where facts contradict each other, the one with the larger number is newer and replaces "
    "the other. Follow the facts even where they differ from what you know of the world."
)
HOPS: Mapping[str, str] = {"sh": "single-hop", "mh": "multi-hop"}
"""Category by the abbreviation in a row's source."""

PATTERNS: tuple[tuple[str, str], ...] = (
    ("The author of {s} is {o}.", "Who is the author of {s}?"),
    ("The origianl broadcaster of {s} is {o}.", "Who is the original broadcaster of {s}?"),
    ("The original language of {s} is {o}.", "What is the original language of {s}?"),
    ("The company that produced {s} is {o}.", "Which company is {s} produced by?"),
    ("The chairperson of {s} is {o}.", "Who is the chairperson of {s}?"),
    ("The capital of {s} is {o}.", "What is the capital of {s}?"),
    ("The official language of {s} is {o}.", "What is the official language of {s}?"),
    ("The chief executive officer of {s} is {o}.", "Who is the chief executive officer of {s}?"),
    ("The director of {s} is {o}.", "Who is the director of {s}?"),
    ("The head coach of {s} is {o}.", "Who is the head coach of {s}?"),
    ("The univeristy where {s} was educated is {o}.", "Which university was {s} educated at?"),
    ("The type of music that {s} plays is {o}.", "What type of music does {s} play?"),
    ("The headquarters of {s} is located in the city of {o}.", "Which city is the headquarter of {s} located in?"),
    (
        "The name of the current head of state in {s} is {o}.",
        "What is the name of the current head of state in {s}?",
    ),
    (
        "The name of the current head of the {s} government is {o}.",
        "What is the name of the current head of the {s} government?",
    ),
    ("{s} is a citizen of {o}.", "What is the country of citizenship of {s}?"),
    ("{s} is associated with the sport of {o}.", "Which sport is {s} associated with?"),
    ("{s} plays the position of {o}.", "What position does {s} play?"),
    ("{s} is affiliated with the religion of {o}.", "Which religion is {s} affiliated with?"),
    ("{s} speaks the language of {o}.", "What language does {s} speak?"),
    ("{s} worked in the city of {o}.", "Which city did {s} work in?"),
    ("{s} was created in the country of {o}.", "Which country was {s} created in?"),
    ("{s} was created by {o}.", "Who was {s} created by?"),
    ("{s} works in the field of {o}.", "What kind of work does {s} do?"),
    ("{s} was born in the city of {o}.", "Which city was {s} born in?"),
    ("{s} died in the city of {o}.", "Which city did {s} die in?"),
    ("{s} is famous for {o}.", "What is {s} famous for?"),
    ("{s} was performed by {o}.", "Who performed {s}?"),
    ("{s} was developed by {o}.", "Who is the developer of {s}?"),
    ("{s} is employed by {o}.", "Who is the employer of {s}?"),
    ("{s} is located in the continent of {o}.", "Which continent is {s} located in?"),
    ("{s} was founded by {o}.", "Who founded {s}?"),
    ("{s} was founded in the city of {o}.", "Where was {s} founded?"),
    ("{s} is married to {o}.", "Who is {s} married to?"),
    ("{s} was written in the language of {o}.", "Which language was {s} written in?"),
    ("{s}'s child is {o}.", "Who is {s}'s child?"),
    ("The {s} is {o}.", "Who is the {s}?"),
)
"""Sentences of a fact with its subject and object, and its single-hop question. The last pattern fits most others, so it is tried last."""

_SOURCE = re.compile(r"factconsolidation_(sh|mh)_(\w+)")
_HEADING = "Here is a list of facts:"
_FACT = re.compile(r"(\d{1,9})\. (.*\S)")
_MOST_HOPS = 4
"""Number of facts in the chain of MQuAKE's longest questions."""
_MOST_CHAINS = 10_000
"""Maximum number of chains that are followed."""

Key = tuple[int, str]
"""Number of a pattern, and the subject."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The text of a numbered sentence."""

    serial: str
    key: Key
    object: str


@dataclass(frozen=True, slots=True)
class _Pool:
    """The facts of a size: the facts of each key in order, and the objects that no later fact replaces."""

    by_key: Mapping[Key, Sequence[Fact]]
    newest: frozenset[str]
    by_subject: Mapping[str, Sequence[Fact]]
    """The newest facts of each subject."""


def load(path: Path, *, size: str | None = None) -> LazyCases:
    """One case per size of a parquet, JSON or JSONL file of MemoryAgentBench rows, in file order; sizes are characters of context.

    `size` selects a single size ("6k", "32k", "64k" or "262k"). Question ids are `sh_<number>` and `mh_<number>`, from 0.
    `Gold.detail` has `qa_pair_id`, `size`, `gold_is_newest` (None where no
    fact of the list is asked for); for single-hop questions also `conflict`, `newest` (the object of the
    newest fact), `stale_answer` (that of the older fact, None if there is none) and `evidence_derived` (True).
    Raises DataError for malformed rows, and if no row has this size.
    """
    rows: dict[str, dict[str, Raw]] = {}
    for row in read_rows(path):
        source = row.at("metadata").text("source")
        match = _SOURCE.fullmatch(source)
        if match and size in (None, match[2]):
            if match[1] in rows.setdefault(match[2], {}):
                raise DataError(f"{row.where}.metadata.source: expected {source!r} once, found it again")
            rows[match[2]][match[1]] = Raw(row.value, f"{path.name}: {source}")
    if not rows:
        raise DataError(f"{path.name}: expected rows of FactConsolidation{f' {size}' if size else ''}, found none")
    contexts = {name: _context(parts) for name, parts in rows.items()}
    names = list(rows)
    return LazyCases(
        [f"factconsolidation_{name}" for name in names],
        [len(contexts[name]) for name in names],
        lambda index: _case(names[index], contexts[names[index]], rows[names[index]]),
    )


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((_expression(fact), _expression(question)) for fact, question in PATTERNS)


def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.escape(pattern).replace(r"\{s\}", "(?P<s>.+?)").replace(r"\{o\}", "(?P<o>.+)")
    return re.compile(parts)


def read_fact(serial: str, sentence: str) -> Fact | None:
    """The fact that a sentence states by the first pattern that fits; None if none does."""
    for number, (fact, _) in enumerate(_compiled()):
        if match := fact.fullmatch(sentence):
            return Fact(serial, (number, match["s"]), match["o"])
    return None


def question_keys(question: str) -> Iterator[Key]:
    """The keys that a single-hop question may ask for, by each pattern that fits."""
    for number, (_, asked) in enumerate(_compiled()):
        if match := asked.fullmatch(question):
            yield number, match["s"]


def _context(parts: Mapping[str, Raw]) -> str:
    """The context that the rows of a size share."""
    contexts = []
    for row in parts.values():
        contexts.append(context_of(row))
        if contexts[-1] != contexts[0]:
            raise DataError(f"{row.where}.context: expected the context of the size's other row, found another one")
    return contexts[0]


def _case(size: str, context: str, parts: Mapping[str, Raw]) -> Case:
    where = next(iter(parts.values())).where
    turns = tuple(_turns(context, f"{where}.context"))
    by_key: dict[Key, list[Fact]] = {}
    unknown = 0
    for turn in turns:
        fact = read_fact(turn.id, turn.text.partition(". ")[2])
        if fact is None:
            unknown += 1
        else:
            by_key.setdefault(fact.key, []).append(fact)
    by_subject: dict[str, list[Fact]] = {}
    for (_, subject), facts in by_key.items():
        by_subject.setdefault(subject, []).append(facts[-1])
    pool = _Pool(by_key, frozenset(facts[-1].object for facts in by_key.values()), by_subject)
    notes = [f"{unknown} facts fit none of the known sentences."] if unknown else []
    asked = tuple(chain.from_iterable(_questions(hops, size, parts[hops], pool) for hops in parts))
    for question, gold in asked:
        if gold.detail["gold_is_newest"] is None:
            notes.append(f"{question.id}: the question asks for no fact of the list.")
        elif not gold.detail["gold_is_newest"]:
            notes.append(
                f"{question.id}: the gold answer {gold.answers[0]!r} is the object of no newest fact asked for."
            )
    case_id = f"factconsolidation_{size}"
    return Case(case_id, (), (Session("facts", turns),), asked, cluster=case_id, notes=tuple(notes))


def _turns(context: str, where: str) -> Iterator[Turn]:
    heading, *lines = context.rstrip("\n").split("\n")
    if heading != _HEADING:
        raise DataError(f"{where}: expected the first line {_HEADING!r}, found {heading[:60]!r}")
    if not lines:
        raise DataError(f"{where}: expected facts, found none")
    for number, line in enumerate(lines):
        match = _FACT.fullmatch(line)
        if not match or match[1] != str(number):
            raise DataError(f"{where}: expected fact {number} as '{number}. <sentence>', found {line[:60]!r}")
        yield Turn(match[1], "", Raw(line, f"{where}: fact {number}").text())


def _questions(hops: str, size: str, row: Raw, pool: _Pool) -> Iterator[tuple[Question, Gold]]:
    texts, answers, pairs = row.texts("questions"), row.each("answers"), row.at("metadata").texts("qa_pair_ids")
    for name, values in (("answers", answers), ("metadata.qa_pair_ids", pairs)):
        expect_length(values, len(texts), f"{row.where}.{name}")
    for number, (text, answer, pair) in enumerate(zip(texts, answers, pairs, strict=True)):
        golds = answer.texts()
        if not golds or not all(gold.strip() for gold in golds):
            raise DataError(f"{answer.where}: expected an answer, found none")
        if not text.strip():
            raise DataError(f"{row.where}.questions[{number}]: expected a question, found only white space")
        question = Question(f"{hops}_{number}", text, instruction=INSTRUCTION)
        yield question, _gold(hops, text, golds, {"qa_pair_id": pair, "size": size}, pool)


def _chain(question: str, answers: Sequence[str], pool: _Pool) -> tuple[str, ...]:
    """Serial numbers of the newest facts that lead from a subject in the question to an answer; empty unless there is one such chain."""
    named = [subject for subject in pool.by_subject if subject in question]
    starts = [name for name in named if not any(name != other and name in other for other in named)]
    open_chains: list[tuple[Fact, ...]] = [(fact,) for start in starts for fact in pool.by_subject[start]]
    found: list[tuple[Fact, ...]] = []
    for _ in range(_MOST_HOPS - 1):
        open_chains = [
            (*links, fact)
            for links in open_chains
            for fact in pool.by_subject.get(links[-1].object, ())
            if fact not in links
        ]
        if len(open_chains) > _MOST_CHAINS:
            return ()
        found += [links for links in open_chains if links[-1].object in answers]
    return tuple(fact.serial for fact in found[0]) if len(found) == 1 else ()


def _gold(hops: str, question: str, answers: tuple[str, ...], detail: Mapping[str, Any], pool: _Pool) -> Gold:
    category = HOPS[hops]
    groups: tuple[str, ...] = (f"{category} {detail['size']}",)
    if hops == "mh":
        newest = any(answer in pool.newest for answer in answers)
        chain = _chain(question, answers, pool)
        found = {"gold_is_newest": newest, "evidence_derived": bool(chain)}
        return Gold(answers, chain, category, detail={**detail, **found}, groups=groups)
    facts = next((pool.by_key[key] for key in question_keys(question) if key in pool.by_key), ())
    if not facts:
        return Gold(answers, (), category, detail={**detail, "gold_is_newest": None, "conflict": None}, groups=groups)
    derived = {
        "gold_is_newest": facts[-1].object in answers,
        "conflict": len(facts) > 1,
        "newest": facts[-1].object,
        "stale_answer": facts[-2].object if len(facts) > 1 else None,
        "evidence_derived": True,
    }
    groups = (*groups, "conflict" if len(facts) > 1 else "no conflict")
    return Gold(answers, (facts[-1].serial,), category, detail={**detail, **derived}, groups=groups)

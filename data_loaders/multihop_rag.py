"""MultiHop-RAG: news articles, and questions that need two to four of them.

Source: Tang & Yang 2024 (arXiv 2401.15391), files `corpus.json` and `MultiHopRAG.json`. All articles go into one memory.

Deviations from the raw files:
- a turn is a paragraph of the body. Title, source and time are the session's heading, because questions ask about texts of a certain
  newspaper at a certain time. Every unit begins with the heading, also a chunk of 1,024 tokens (MemTree A.2.1 and the leaves in its Tables
  A.5 to A.9, which show the day without the time); an article's number of tokens (MemTree Table A.1) does not include it;
- `published_at` becomes a time in UTC without a time zone;
- evidence is searched by the fact's text, ignoring white space (the official retrieval scorer ignores spaces and newlines), in the
  article that the question cites: every paragraph that holds the fact, or a part of it if it spans paragraphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, check_unique, read_records
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "inference_query": "inference",
    "comparison_query": "comparison",
    "temporal_query": "temporal",
    "null_query": "null",
}
"""Category by the raw `question_type`."""

CASE_ID = "multihop_rag"

Header = Literal["unit", "article", "none"]


@dataclass(frozen=True, slots=True)
class _Article:
    session: Session
    paragraphs: tuple[tuple[str, str], ...]
    """Turn id and text without white space, for finding facts."""


def load(
    path: Path,
    *,
    null: bool = False,
    header: Header = "unit",
    corpus: str = "corpus.json",
    queries: str = "MultiHopRAG.json",
) -> Sequence[Case]:
    """A single case with all questions; each article is a session, in file order, whose id is the article's URL.

    `null` adds the questions that no article answers (`Gold.answerable` is False). `header` says where title, source and time go: to
    the beginning of each unit ("unit": `Session.heading`), into a turn of their own before each article ("article"), or nowhere
    ("none"). `corpus` and `queries` are the names of the two files in the folder `path`. Question ids are `q<index in the file>`, the
    same with and without null questions. `Gold.detail` has `question_type`, `facts` and `evidence_raw` (the cited URLs). Articles
    without a body are left out with a note. Raises DataError for malformed records.
    """
    articles, asked = read_records(path / corpus), read_records(path / queries)
    return LazyCases([CASE_ID], [len(articles) + len(asked)], lambda _: _case(articles, asked, null, header))


def _case(articles: Sequence[Raw], asked: Sequence[Raw], null: bool, header: Header) -> Case:
    notes: list[str] = []
    by_url: dict[str, _Article] = {}
    for raw in articles:
        article = _article(raw, header)
        if article.session.id in by_url:
            raise DataError(f"{raw.where}.url: expected unique URLs, found {article.session.id!r} twice")
        if article.paragraphs:
            by_url[article.session.id] = article
            if article.session.time is None:
                notes.append(f"{article.session.id} has no readable time: {article.session.time_text!r}.")
        else:
            notes.append(f"{article.session.id}: the article has no body and is left out.")
    questions = []
    for number, raw in enumerate(asked):
        question, gold = _question(raw, f"q{number}", by_url, notes.append)
        if gold.answerable or null:
            questions.append((question, gold))
    sessions = tuple(article.session for article in by_url.values())
    check_unique((turn.id for session in sessions for turn in session.turns), "turns")
    return Case(CASE_ID, (), sessions, tuple(questions), cluster=CASE_ID, notes=tuple(notes))


def _article(raw: Raw, header: Header) -> _Article:
    url, published = raw.text("url"), raw.text("published_at")
    texts = [each.strip() for each in re.split(r"\n\s*\n", raw.optional("body")) if each.strip()]
    title = f"{raw.text('title')} ({raw.text('source')}, {published})"
    turns = [Turn(f"{url}:{number}", "", text) for number, text in enumerate(texts, 1)]
    paragraphs = tuple((turn.id, _solid(text)) for turn, text in zip(turns, texts, strict=True))
    if header == "article":
        turns.insert(0, Turn(f"{url}:0", "", title))
    heading = title if header == "unit" else ""
    return _Article(Session(url, tuple(turns), _time(published), published, heading), paragraphs)


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError):  # not a date, or outside the calendar once converted to UTC
        return None


def _question(
    raw: Raw, question_id: str, articles: Mapping[str, _Article], note: Callable[[str], None]
) -> tuple[Question, Gold]:
    kind = raw.choice(CATEGORIES, "question_type")
    urls, facts, evidence = [], [], []
    for number, cited in enumerate(raw.each("evidence_list")):
        url, fact = cited.text("url"), cited.text("fact")
        found = holders(_solid(fact), articles[url].paragraphs) if url in articles else []
        if not found:
            note(f"{question_id}: evidence {number} is not in the corpus ({url}).")
        urls.append(url)
        facts.append(fact)
        evidence.extend(found)
    gold = Gold(
        (raw.text("answer"),),
        evidence=tuple(dict.fromkeys(evidence)),
        category=CATEGORIES[kind],
        answerable=kind != "null_query",
        detail={"question_type": kind, "facts": tuple(facts), "evidence_raw": tuple(urls)},
    )
    return Question(question_id, raw.text("query")), gold


def holders(fact: str, paragraphs: Sequence[tuple[str, str]]) -> list[str]:
    """Ids of the paragraphs that hold the fact, or a part of it if it spans paragraphs, in order.

    All texts must be without white space. No paragraph holds an empty fact.
    """
    if not fact:
        return []
    whole = "".join(text for _, text in paragraphs)
    spans = [(match.start(), match.end()) for match in re.finditer(re.escape(fact), whole)]
    ids, start = [], 0
    for turn_id, text in paragraphs:
        end = start + len(text)
        if any(left < end and start < right for left, right in spans):
            ids.append(turn_id)
        start = end
    return ids


def _solid(text: str) -> str:
    return "".join(text.split())

"""MultiHop-RAG: news articles and questions whose answer takes two to four of them.

Source: Tang & Yang 2024 (arXiv 2401.15391), files `corpus.json` and `MultiHopRAG.json`. All articles make one memory.

Deviations from the raw files:
- a turn is a paragraph of the body. Title, source and time are the session's heading, because questions ask what a named paper
  wrote when: every unit opens with it once, so a chunk of 1,024 tokens does too (MemTree A.2.1 and the leaves in its Tables A.5
  to A.9), and counts of an article's tokens (MemTree Table A.1) leave it out;
- `published_at` becomes a naive time in UTC;
- evidence is found by the fact's text with white space ignored (the official retrieval scorer ignores spaces and newlines),
  within the article the question cites: each paragraph that holds the fact, or a part of it when it crosses paragraphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from data_loaders.lazy import LazyCases
from data_loaders.raw import check_unique, expect, get, get_text, read_json
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "inference_query": "inference",
    "comparison_query": "comparison",
    "temporal_query": "temporal",
    "null_query": "null",
}
"""The raw `question_type` -> category."""

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
    """One case: every article is a session (id = its URL) in file order, with all its questions.

    `null` adds the questions that no article answers (`Gold.answerable` is False). `header` puts title, source and time at
    the head of each unit (`Session.heading`), or in a turn of their own before each article, or nowhere.
    `corpus` and `queries` name the two files in the folder `path`. Question ids are `q<index in the file>`, the same with and
    without null questions. `Gold.detail` has `question_type`, `facts` and `evidence_raw` (the URLs cited). Articles without a
    body are left out with a note. Raises DataError for anything malformed.
    """
    articles = expect(read_json(path / corpus), list, corpus)
    asked = expect(read_json(path / queries), list, queries)

    def parse(_: int) -> Case:
        return _case(articles, corpus, asked, queries, null, header)

    return LazyCases([CASE_ID], [len(articles) + len(asked)], parse)


def _case(articles: Sequence[Any], corpus: str, asked: Sequence[Any], queries: str, null: bool, header: Header) -> Case:
    notes: list[str] = []
    by_url: dict[str, _Article] = {}
    for number, raw in enumerate(articles):
        where = f"{corpus}: record {number}"
        article = _article(raw, where, header)
        if article.session.id in by_url:
            raise DataError(f"{where}.url: expected unique URLs, found {article.session.id!r} twice")
        if article.paragraphs:
            by_url[article.session.id] = article
        else:
            notes.append(f"{article.session.id}: the article has no body and is left out.")
    questions = []
    for number, raw in enumerate(asked):
        question, gold = _question(raw, f"{queries}: record {number}", f"q{number}", by_url, notes.append)
        if gold.answerable or null:
            questions.append((question, gold))
    sessions = tuple(article.session for article in by_url.values())
    check_unique((turn.id for session in sessions for turn in session.turns), corpus)
    return Case(CASE_ID, (), sessions, tuple(questions), cluster=CASE_ID, notes=tuple(notes))


def _article(raw: Any, where: str, header: Header) -> _Article:
    url = get_text(raw, "url", where)
    published = get_text(raw, "published_at", where)
    body = "" if raw.get("body") is None else get_text(raw, "body", where)
    texts = [each.strip() for each in re.split(r"\n\s*\n", body) if each.strip()]
    title = f"{get_text(raw, 'title', where)} ({get_text(raw, 'source', where)}, {published})"
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
    except (ValueError, OverflowError):  # no date; or one that leaves the calendar when moved to UTC
        return None


def _question(
    raw: Any, where: str, question_id: str, articles: Mapping[str, _Article], note: Callable[[str], None]
) -> tuple[Question, Gold]:
    kind = get_text(raw, "question_type", where)
    if kind not in CATEGORIES:
        raise DataError(f"{where}.question_type: expected one of {', '.join(CATEGORIES)}, found {kind!r}")
    urls, facts, evidence = [], [], []
    for number, cited in enumerate(get(raw, "evidence_list", list, where)):
        place = f"{where}.evidence_list[{number}]"
        url, fact = get_text(cited, "url", place), get_text(cited, "fact", place)
        found = holders(_solid(fact), articles[url].paragraphs) if url in articles else []
        if not found:
            note(f"{question_id}: evidence {number} is not in the corpus ({url}).")
        urls.append(url)
        facts.append(fact)
        evidence.extend(found)
    gold = Gold(
        (get_text(raw, "answer", where),),
        evidence=tuple(dict.fromkeys(evidence)),
        category=CATEGORIES[kind],
        answerable=kind != "null_query",
        detail={"question_type": kind, "facts": tuple(facts), "evidence_raw": tuple(urls)},
    )
    return Question(question_id, get_text(raw, "query", where)), gold


def holders(fact: str, paragraphs: Sequence[tuple[str, str]]) -> list[str]:
    """Ids of the paragraphs that hold the fact, or a part of it where it crosses paragraphs, in order.

    All texts come without white space. An empty fact is held by none.
    """
    if not fact:
        return []
    whole = "".join(text for _, text in paragraphs)
    spans = [(found.start(), found.end()) for found in re.finditer(re.escape(fact), whole)]
    ids, start = [], 0
    for turn_id, text in paragraphs:
        end = start + len(text)
        if any(left < end and start < right for left, right in spans):
            ids.append(turn_id)
        start = end
    return ids


def _solid(text: str) -> str:
    return "".join(text.split())

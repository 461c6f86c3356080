"""QuALITY v1.0.1: long articles with multiple-choice questions that require reading the whole article.

Source: Pang et al. 2022 and the files `QuALITY.v1.0.1.htmlstripped.{train,dev}`, one JSON line per article and question writer. The
test split has no labels and is rejected.

Deviations from the raw files:
- the two lines of an article become one case, so that a memory is built once for both question sets (MemTree counts each line as a
  document and builds twice). If their texts differ, the first is used, and a note says so;
- paragraphs are separated by three or more newlines, or by blank lines if the file has no such place. Line breaks inside them, also
  around italic text on a line of its own, become single spaces;
- white space around options is removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, check_unique, read_records
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

CATEGORIES: Mapping[int | None, str] = {0: "easy", 1: "hard", None: "ungraded"}
"""Category by the raw value of `difficult`; the copies from L-Eval have no difficulty."""

_WIDE_BREAK = re.compile(r"\n(?:[ \t]*\n){2,}")
_BLANK_LINE = re.compile(r"\n(?:[ \t]*\n)+")


def load(path: Path, *, setting: Literal["open", "choice"] = "open") -> Sequence[Case]:
    """One case per article, in file order: the article is a session, and its paragraphs are turns without a speaker.

    With `setting="choice"` the reader sees the options. With `"open"`, as in MemTree, it does not: the answer is free text, and the gold
    answer is the text of the right option. `Gold.detail` has `gold_label` (from 1), `difficult` and `options` in both settings.
    Raises DataError for malformed records and for questions without a label.
    """
    articles: dict[str, list[Raw]] = {}
    for line in read_records(path):
        articles.setdefault(line.text("article_id"), []).append(line)
    ids, groups = list(articles), list(articles.values())
    return LazyCases(
        ids, [len(group[0].text("article")) for group in groups], lambda at: _case(ids[at], groups[at], setting)
    )


def paragraphs(article: str) -> list[str]:
    """The article's paragraphs in order, each on one line."""
    boundary = _WIDE_BREAK if _WIDE_BREAK.search(article.strip()) else _BLANK_LINE
    return [" ".join(part.split()) for part in boundary.split(article) if part.strip()]


def _case(article_id: str, lines: Sequence[Raw], setting: str) -> Case:
    first, *others = lines
    article = first.text("article")
    turns = tuple(Turn(f"{article_id}:{number}", "", text) for number, text in enumerate(paragraphs(article), 1))
    if not turns:
        raise DataError(f"{first.where}.article: expected text, found only white space")
    questions = tuple(_question(raw, setting) for line in lines for raw in line.each("questions"))
    check_unique((question.id for question, _ in questions), f"{first.where}.questions")
    notes = tuple(
        f"{line.text('set_unique_id')}: its article text differs from the first line's and is not used."
        for line in others
        if line.text("article") != article
    )
    return Case(article_id, (), (Session(article_id, turns),), questions, cluster=article_id, notes=notes)


def _question(raw: Raw, setting: str) -> tuple[Question, Gold]:
    options = tuple(option.strip() for option in raw.texts("options"))
    label = raw.of(int, "gold_label")
    if not 1 <= label <= len(options):
        raise DataError(f"{raw.where}.gold_label: expected 1 to {len(options)}, found {label}")
    difficult = raw.of((int, type(None)), "difficult")
    if difficult not in CATEGORIES:
        raise DataError(f"{raw.where}.difficult: expected 0, 1 or null, found {difficult}")
    question = Question(
        raw.text("question_unique_id"),
        raw.text("question").strip(),
        options=options if setting == "choice" else (),
    )
    detail = {"gold_label": label, "difficult": difficult, "options": options}
    return question, Gold((options[label - 1],), category=CATEGORIES[difficult], detail=detail)

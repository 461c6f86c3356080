"""The reader: recalled items and question as one request to the answering model, the same for every memory of a table.

The prompts are in `memsys/prompts/reader`, in our own words. The token budget of the experiment is enforced here: whole items are left
out, the lowest-ranked first; where memories are compared at equal budgets (`fill`), the last item is cut instead.

Deviations: LoCoMo's official prompts differ by category, and in category 5 they offer the wrong answer as an option. Our reader does
not see the category: all questions get one prompt, with a rule for questions that the conversation does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from data_loaders.schema import Question
from memsys.dates import parse_time
from memsys.interface import Item, Recall
from memsys.llm.protocol import Request
from memsys.prompts import Prompts, lettered
from memsys.tokens import count_tokens, truncate

NOTHING = "(nothing was recalled)"


@dataclass(frozen=True, slots=True)
class Reader:
    """The settings of the answering model's prompt: one file of `conf/reader`."""

    name: str
    title: str
    prompt: str
    """Name of the prompt file."""
    max_context_tokens: int | None
    """Token budget for recalled text; None shows all of it."""
    answer_tokens: int
    temperature: float
    order: Literal["rank", "chronological"] = "rank"
    """`rank`: the order in which the memory returned the items. `chronological`: by the time in front of each item, without a time last."""
    date: bool = True
    """Whether the date of the question is shown."""
    numbered: bool = False
    """Whether the items are numbered, from 1."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Headings by item kind, in order; items of other kinds come first, without a heading."""
    fill: bool = False
    """Whether the first item that does not fit the token budget is cut to the remaining tokens, so that all memories show equally much."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request to the answering model, with counts of the recall that it shows."""

    request: Request
    context_tokens: int
    """Tokens of the recalled text that is shown."""
    dropped: int
    """Recalled items that did not fit the token budget."""


def render(reader: Reader, prompts: Prompts, question: Question, recall: Recall, *, sample: int = 0) -> Rendered:
    """Build the request for the answer to a question, given the recall; requests of another `sample` (replicate) are separate draws.

    Raises:
        ValueError: the recall has an answer already, or was aborted.
        PromptError: the reader's prompt is missing or needs a field that readers do not have.
    """
    if recall.answer is not None or recall.aborted:
        raise ValueError(f"question {question.id}: a recall with an answer, or an aborted one, is not read again")
    items = within(recall.items, reader.max_context_tokens, fill=reader.fill)
    dropped = len(recall.items) - len(items)
    if reader.order == "chronological":
        items = sorted(items, key=_time)
    now = question.time_text if reader.date else ""
    options = lettered(map(str.strip, question.options))
    choices = [f"({option.label}) {option.text}" for option in options]
    request = prompts[reader.prompt].render(
        {
            "question": question.text,
            "memories": tuple(item.text for item in items),
            "now": now,
            "options": options,
            "shown": _recalled_text(reader, items),
            "asked": "\n".join(filter(None, (question.text, *choices, question.asked_by, question.instruction))),
            "asker": "" if question.asker is None else question.asker.text,
            "instruction": question.instruction,
            "today": f"\nCurrent date: {now}" if now else "",
        }
    )
    request = replace(request, max_tokens=reader.answer_tokens, temperature=reader.temperature, sample=sample)
    return Rendered(request, sum(count_tokens(item.text) for item in items), dropped)


def within(items: Sequence[Item], limit: int | None, *, fill: bool = False) -> list[Item]:
    """The highest-scored items that fit into `limit` tokens together, in their given order; all of them when `limit` is None.

    Items are ranked by score, because a memory may return them in another order; among equal scores the earlier item wins. If not even
    the best item fits, it is cut to the limit; with `fill`, the first item that does not fit is cut to the remaining tokens.
    """
    if limit is None:
        return list(items)
    kept: dict[int, Item] = {}
    left = limit
    for index in sorted(range(len(items)), key=lambda index: -items[index].score):
        item, tokens = items[index], count_tokens(items[index].text)
        if tokens > left:
            if left and (fill or not kept):
                kept[index] = replace(item, text=truncate(item.text, left))
            break
        kept[index] = item
        left -= tokens
    return [kept[index] for index in sorted(kept)]


def _time(item: Item) -> datetime:
    """The time in brackets in front of an item's text; `datetime.max` without one."""
    head = item.text[1:].partition("]")[0] if item.text.startswith("[") else ""
    return parse_time(head) or datetime.max


def _recalled_text(reader: Reader, items: Sequence[Item]) -> str:
    """The items as one text: those without a heading of their own, then those of each heading."""
    if not items:
        return NOTHING
    groups = [("", [item for item in items if item.kind not in reader.sections])]
    for kind, heading in reader.sections.items():
        groups.append((f"{heading}:\n", [item for item in items if item.kind == kind]))
    parts = []
    for heading, group in groups:
        lines = [f"{place}. {item.text}" if reader.numbered else item.text for place, item in enumerate(group, 1)]
        parts += [heading + "\n".join(lines)] if group else []
    return "\n\n".join(parts)

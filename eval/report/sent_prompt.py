"""The prompt that was sent to a reader. It is not in the run folder: it is rendered again from the recalled items and the prompt file.

It is shown only if the prompt file has the hash that the run recorded, and if the prompt shows as many tokens of recall as were counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from data_loaders.schema import Question
from eval.files.records import Prediction
from eval.files.run_folder import RunRecord, read_efforts, read_items, recalled_items
from eval.files.store import RunError
from eval.report.checked import checked
from eval.running.reader import Reader, render
from memsys.interface import Recall
from memsys.jsons import decoded, encoded
from memsys.prompts import PromptError, Prompts


def sent_prompt(
    record: RunRecord, case_folder: Path, prediction: Prediction, question: Question
) -> tuple[tuple[str, str], ...]:
    """The messages, each a role and its text; if a failed answer was requested again, the last ones.

    Raises:
        RunError: no reader was asked, or the prompt cannot be rendered again; the message says why.
    """
    lines = read_efforts(case_folder, "subject", "context_tokens", "dropped_items")
    asked = [line for line in lines if (line["phase"], line["subject"]) == ("answer", prediction.question_id)]
    if not asked:
        raise RunError("no reader was asked: the memory failed, gave up or answered itself")
    try:
        prompts = Prompts(record.prompts_dir)
    except PromptError as error:
        raise RunError(f"its prompt cannot be read again: {error}") from error
    return rendered_again(record, prompts, read_items(case_folder), prediction, asked[-1], question)


_READER = TypeAdapter(Reader)


@lru_cache(maxsize=64)
def _reader(settings: bytes) -> Reader:
    """The reader of these settings, which are JSON."""
    checked(_READER, decoded(settings))
    return Reader(**decoded(settings))  # also refuses a setting of another version


def rendered_again(
    record: RunRecord,
    prompts: Prompts,
    items: Mapping[str, Mapping[str, Any]],
    prediction: Prediction,
    line: Mapping[str, Any],
    question: Question,
) -> tuple[tuple[str, str], ...]:
    """The messages of an answer whose files have been read.

    Args:
        items: the recalled items of the case, by hash.
        line: the effort line of the answer.

    Raises:
        RunError: the prompt cannot be rendered again; the message says why.
    """
    try:
        reader = _reader(encoded(record.reader))
        if prompts.digest([reader.prompt]) != {reader.prompt: record.prompts.get(reader.prompt)}:
            raise RunError(f"the prompt file {reader.prompt}.md has changed since the run")
    except (KeyError, TypeError, PromptError) as error:
        raise RunError(f"its prompt cannot be read again: {error}") from error
    rendered = render(reader, prompts, question, Recall(recalled_items(prediction, items)))
    if (rendered.context_tokens, rendered.dropped) != (line["context_tokens"], line["dropped_items"]):
        why = "the prompt shows another number of tokens than was counted"
        raise RunError(f"rendered again, {why}: it is not what was sent")
    return tuple(rendered.request.messages)

"""The prompt sent to a judge about each answer: rendered again from the settings next to the scores, and shown only if it was really sent.

This holds if the prompt files have the recorded hashes, and if the judged text has the hash in the verdict's line. A
prompt is a list of texts: the pieces of its template, which all questions share, and the filled-in values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Template
from typing import Any

from data_loaders.schema import Gold, Question
from eval.files.store import RunError, read_record
from eval.judging.judge import Judge, judge_requests
from eval.judging.score_files import hash_of
from eval.report.html.sources import ReportedRun
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
    file = run.scores(stem).with_suffix(".json")
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


@lru_cache(maxsize=256)
def _judge(settings_text: str, prompts: Prompts) -> Judge:
    try:
        settings = decoded(settings_text)
        judge = Judge(**settings["judge"])
        recorded, now = settings["prompts"], prompts.digest(judge.prompt_names)
    except (KeyError, TypeError, ValueError, PromptError) as error:
        raise RunError(f"the judge's settings cannot be read again: {error}") from error
    if changed := sorted(name for name in now if recorded.get(name) != now[name]):
        raise RunError(f"the prompt file {changed[0]}.md has changed since the verdict")
    return judge


def _pieces(prompts: Prompts, request: Request) -> Messages:
    """The messages of a request, cut where its template's fields begin and end."""
    prompt = prompts[request.purpose.replace(".", "/", 1)]
    templates = {"system": prompt.system, "user": prompt.user}
    return [(role, _cut(templates.get(role, ""), text)) for role, text in request.messages]


def _cut(template: str, text: str) -> list[str]:
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
            names |= dict(read_record(run.scores(stem).with_suffix(".json")).get("prompts", {}))
        except (OSError, RunError):
            continue  # the verdicts are shown nevertheless, each with the note that its settings cannot be read
    return names

"""Why questions went without a score: the commonest cause of a table with its count, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.store import read_lines, read_predictions

DOCTOR = "`make doctor BASE_URL=… MODEL=…` shows what the endpoint takes and writes the settings that fit"
REMEDIES: tuple[tuple[str, str], ...] = (
    (r"no key for", "set the environment variable it names (endpoint.key_env chooses another)"),
    (
        r"cannot connect|connection refused|Connect call failed|Cannot connect",
        "start the server, or correct endpoint.base_url (make … BASE_URL=)",
    ),
    (
        r"HTTP 40[13]\b",
        "the endpoint refuses the key: check the environment variable that endpoint.key_env names (default OPENAI_API_KEY)",
    ),
    (r"HTTP 404.*\bmodel\b", "the endpoint does not serve this model: correct the name (make … MODEL=)"),
    (r"HTTP 40[45]\b", "the path is wrong: endpoint.base_url usually ends in /v1"),
    (
        r"HTTP 4\d\d.*(context.{0,10}(length|size|window)|maximum context|n_ctx|too many tokens|prompt is too long)",
        "the prompt is longer than the model's window: serve it with a longer one, or recall less (memory.build.k)",
    ),
    (
        r"HTTP 4\d\d.*(response_format|json_schema|json_object|schema|grammar)",
        f"the endpoint takes no such schema: set json_output to object or none in conf/llm/<model>.yaml; {DOCTOR}",
    ),
    (
        r"HTTP 4\d\d.*(max_tokens|max_completion_tokens|temperature|logprobs|reasoning_effort)",
        f"the endpoint refuses this field: set token_limit_field, send_temperature or reasoning_effort in conf/llm/<model>.yaml; {DOCTOR}",
    ),
    (r"HTTP 429\b", "too many calls for this endpoint: lower endpoint.in_flight, or look at the account's quota"),
    (r"no reply within", "the server answers too slowly: raise endpoint.timeout or lower endpoint.in_flight"),
    (r"HTTP 5\d\d\b", "the server fails: look into its log; the same command tries these questions again"),
    (r"empty reply", f"the model says nothing: it may be thinking up to its token limit; {DOCTOR}"),
    (r"no verdict|without a verdict", "the judge's replies cannot be read: use a stronger judge (make … JUDGE=)"),
)
"""What a message looks like, and its remedy; the first that matches counts."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of missing scores, by the number of questions and judgements that it took."""

    text: str
    count: int
    all: int
    """Missing scores of any cause."""

    def __str__(self) -> str:
        return f"the commonest cause, {self.count} of {self.all}: {self.text}\n  remedy: {remedy(self.text)}"


def remedy(text: str) -> str:
    """What a user can do about an error message."""
    return next((cure for pattern, cure in REMEDIES if re.search(pattern, text, re.IGNORECASE | re.DOTALL)), DOCTOR)


def commonest(folders: Iterable[Path], score_files: Iterable[Path]) -> Cause | None:
    """The commonest reason in the predictions and scores of some runs; None when each question has its score."""
    reasons = [*_errors(dict.fromkeys(folders)), *_unscored(dict.fromkeys(score_files))]
    kinds = Counter(map(_kind, reasons))
    if not kinds:
        return None
    kind, count = kinds.most_common(1)[0]
    return Cause(next(reason for reason in reasons if _kind(reason) == kind), count, len(reasons))


def _errors(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for case in sorted(folder.glob("cases/*")):
            yield from (one.error for one in read_predictions(case).values() if one.outcome == "error")


def _unscored(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        yield from (record["why"] or "no reason given" for record in read_lines(path) if record["value"] is None)


def _kind(reason: str) -> str:
    """A message less what differs from call to call: numbers, hashes, what stands in quotes, and all but its beginning.

    An HTTP status stays: 401 and 429 are different causes.
    """
    status = re.search(r"HTTP \d{3}", reason)
    plain = re.sub(r"[0-9a-f]{8,}|\d+", "#", re.sub(r"'[^']*'", "'…'", reason))
    return f"{status[0] if status else ''} {plain[:160]}"

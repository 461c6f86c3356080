"""Prompt files: the front matter describes the step and its reply, the body is a `string.Template`.

```
---
source: "A paper, appendix B"  # the published prompt that this one represents; none for one of our own
known: "the paper prints it"   # what is known of that prompt
text: ours                   # the author of the wording: one of `TEXTS`
kind: summarise              # task for the offline engine: answer, summarise, extract, choose, rate, keywords, boundary, judge, chat
max_tokens: 300
temperature: 0
schema: {type: object, …}    # the reply is JSON that satisfies this schema
labels: [MERGE, CONTINUE]    # or: the reply is exactly one of these labels (a field `labels` overrides them)
logprobs: false
cut: fail                    # what to do with a reply cut at max_tokens: fail (default for JSON and labels) or keep (for prose)
---
System text.
===
User text with $fields.
```
The first three keys are the header: one line each, for captions and verdicts. It never reaches a model and is not part of the digest.
Without a `===` line the whole body is the user message. `Prompts` looks a file up in the user's folder first, then in the shipped one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from string import Template, ascii_uppercase
from typing import Any

from memsys.llm.protocol import Option as Option
from memsys.llm.protocol import Request

SHIPPED = Path(__file__).parent / "prompts"
KINDS = ("answer", "summarise", "extract", "choose", "rate", "keywords", "boundary", "judge", "chat")
_FRONT = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)
TEXTS = {
    "ours": "the source's text is public, or there is none; this one is written in our own words",
    "described": "the source says what the prompt does and prints no text",
    "lost": "the source prints a text that we have not seen",
    "theirs": "the source's own text; no shipped prompt is, one in a user's folder may be",
}
"""Valid values of `text`."""
UNKNOWN = ("described", "lost")
"""Values for prompts whose source's text is unknown."""
_HEADER = re.compile(r"^(?:source|known|text):.*\n", re.MULTILINE)
_KNOWN = {"source", "known", "text", "kind", "max_tokens", "temperature", "schema", "labels", "logprobs", "cut"}


def lettered(texts: Iterable[str]) -> tuple[Option, ...]:
    """The choices of a question as prompts show them: labelled A, B, C …"""
    return tuple(Option(letter, text) for letter, text in zip(ascii_uppercase, texts, strict=False))


class PromptError(ValueError):
    """A prompt file is missing or malformed, or a field of its template is missing."""


class UndeclaredPrompt(PromptError):
    """A memory reads a prompt that its class does not declare; the run's identity would not cover that prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt file, ready to be rendered."""

    name: str
    """`<system>/<step>`."""
    kind: str
    system: str
    user: str
    max_tokens: int
    temperature: float
    schema: Mapping[str, Any] | None
    labels: tuple[str, ...]
    logprobs: bool
    cut: str = ""
    """Treatment of a reply cut at the token limit: `keep` uses it, `fail` does not; empty keeps prose and fails the rest."""
    source: str = "none"
    """The published prompt that it represents; `none` for one of our own."""
    known: str = ""
    """A sentence that says how much of that prompt is published."""
    text: str = "ours"
    """The author of the wording: one of `TEXTS`."""
    digest: str = ""
    """The sha256 of the file without its header; part of a run's identity."""

    def render(self, fields: Mapping[str, Any]) -> Request:
        """The request with `fields` filled in: strings as they are, sequences as lines, `Option`s as `[label] text` lines.

        The request's field `labels` holds the valid labels of the reply: those of `fields`, else those of the file.

        Raises:
            PromptError: a field of the template is missing.
        """
        texts = {name: _as_text(value) for name, value in fields.items()}
        try:
            messages = tuple(
                (role, Template(text).substitute(texts))
                for role, text in (("system", self.system), ("user", self.user))
                if text
            )
        except (KeyError, ValueError) as error:
            raise PromptError(f"prompt {self.name}: cannot fill {error}") from error
        return Request(
            messages=messages,
            purpose=self.name.replace("/", "."),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            schema=self.schema,
            logprobs=self.logprobs,
            kind=self.kind,
            fields=dict(fields, labels=tuple(fields.get("labels", self.labels))),
        )


def _as_text(value: Any) -> str:
    if isinstance(value, Option):
        return f"[{value.label}] {value.text}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(_as_text(part) for part in value)
    return str(value)


class Prompts:
    """The prompt files of one experiment."""

    def __init__(self, overlay: Path | str | None = None) -> None:
        """Use the shipped prompts, replaced by the files of the folder `overlay` where it has them.

        Raises:
            PromptError: the folder `overlay` does not exist.
        """
        if overlay and not Path(overlay).is_dir():
            raise PromptError(f"the prompt folder {overlay} does not exist")
        self._folders = tuple(Path(folder) for folder in (overlay, SHIPPED) if folder)
        self._read: dict[str, Prompt] = {}
        self._declared: tuple[str, ...] | None = None

    def __getitem__(self, name: str) -> Prompt:
        """The prompt called `<system>/<step>`.

        Raises:
            PromptError: the file is missing, or its front matter is not valid.
            UndeclaredPrompt: this view is limited to declared prompts, and the prompt is not one of them.
        """
        if self._declared is not None and not {name, name.rpartition("/")[0]} & set(self._declared):
            raise UndeclaredPrompt(
                f"the prompt {name} is read but not declared; add its folder to PROMPTS of the memory's class "
                f"(declared: {', '.join(self._declared) or 'none'})"
            )
        if name not in self._read:
            paths = [path for folder in self._folders if (path := folder / f"{name}.md").is_file()]
            if not paths:
                raise PromptError(f"no prompt {name}.md in {', '.join(map(str, self._folders))}")
            self._read[name] = _parse(name, paths[0].read_bytes().decode("utf-8"))
        return self._read[name]

    def strangers(self) -> list[str]:
        """Names of the user's prompts in folders of shipped prompts that replace none: new ones, or misspelt ones."""
        own = self._folders[:-1]
        names = [
            path.relative_to(folder).with_suffix("").as_posix() for folder in own for path in folder.glob("*/*.md")
        ]
        return sorted(
            name for name in names if (SHIPPED / name).parent.is_dir() and not (SHIPPED / f"{name}.md").is_file()
        )

    def only(self, declared: Iterable[str]) -> Prompts:
        """A view of the same prompts in which only the declared folders and files can be read.

        Args:
            declared: names of folders and files, as in `MemorySystem.PROMPTS`.
        """
        view = copy(self)
        view._declared = tuple(declared)
        return view

    def digest(self, names: Iterable[str]) -> dict[str, str]:
        """`Prompt.digest` of every prompt in the named folders, and of the named files.

        Raises:
            PromptError: a name is neither a prompt nor a folder with prompts, or a file is not valid.
        """
        digests: dict[str, str] = {}
        for name in names:
            stems: list[str] = []
            for folder in reversed(self._folders):
                single = folder / f"{name}.md"
                paths = [single] if single.is_file() else sorted((folder / name).glob("*.md"))
                stems += [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
            if not stems:
                raise PromptError(f"no prompt {name}.md or {name}/*.md in {', '.join(map(str, self._folders))}")
            digests |= {stem: self[stem].digest for stem in stems}
        return digests


def _parse(name: str, written: str) -> Prompt:
    """The prompt in the text of a file, whose line ends may be those of any system."""
    import yaml

    front_matter = _FRONT.match(written)
    if front_matter is None:
        counted = written
    else:  # rewording the lines of a header changes no digest
        counted = _HEADER.sub("", written[: front_matter.start(2)]) + front_matter.group(2)
    match = _FRONT.match(written.replace("\r\n", "\n").replace("\r", "\n"))
    if match is None:
        raise PromptError(f"prompt {name}: no front matter between --- lines")
    try:
        front = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(match.group(1)).get_single_data()
    except yaml.YAMLError as error:
        raise PromptError(f"prompt {name}: front matter is not YAML: {error}") from error
    if not isinstance(front, dict):
        raise PromptError(f"prompt {name}: front matter must be `key: value` lines, found {front!r}")
    if unknown := set(front) - _KNOWN:
        raise PromptError(f"prompt {name}: unknown front matter {sorted(unknown)}, known are {sorted(_KNOWN)}")
    if front.get("kind") not in KINDS:
        raise PromptError(f"prompt {name}: kind must be one of {', '.join(KINDS)}, found {front.get('kind')!r}")
    labels = front.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        # YAML reads a bare yes or no as a boolean.
        raise PromptError(f"prompt {name}: labels must be a list of strings (quote yes and no), found {labels!r}")
    if front.get("cut", "") not in ("", "keep", "fail"):
        raise PromptError(f"prompt {name}: cut must be keep or fail, found {front['cut']!r}")
    if front.get("text", "ours") not in TEXTS:
        raise PromptError(f"prompt {name}: text must be one of {', '.join(TEXTS)}, found {front['text']!r}")
    system, separator, user = match.group(2).partition("\n===\n")
    if not separator:
        system, user = "", match.group(2)
    return Prompt(
        name=name,
        kind=front["kind"],
        system=system.strip(),
        user=user.strip(),
        max_tokens=int(front.get("max_tokens", 512)),
        temperature=float(front.get("temperature", 0.0)),
        schema=front.get("schema"),
        labels=tuple(labels),
        logprobs=bool(front.get("logprobs", False)),
        cut=front.get("cut", ""),
        source=str(front.get("source", "none")),
        known=str(front.get("known", "")),
        text=front.get("text", "ours"),
        digest=hashlib.sha256(counted.encode()).hexdigest(),
    )

"""A-MEM: a network of notes that are linked to each other and rewritten as new notes are added (Xu et al., 2025; its released code).

Every unit becomes a note. One call describes the note with keywords, a context and tags. A second call sees the note and its nearest
neighbours: it may link the note to some of them, change the note's tags, and change the context and tags of the neighbours. A recall
holds the notes nearest to the question and the notes they link to.

`mode` chooses how links are read and written, and what is embedded:

- `paper`: `k` hits, each followed by the notes it links to (§3.4); no note is recalled twice. Neighbours of a note are found by its
  content, keywords, tags and context (Eq. 3 and 4), notes for a question by its text (Eq. 8). A note links only to neighbours that the
  model was shown. All documents have one form.
- `code`: `k` hits, each followed by up to k + 1 links, whether or not they were recalled before (the released loop ends one step too
  late); a note may be recalled several times. Neighbours are found by the unit's text among the documents; a question is looked up by
  keywords, which cost one call. A link may go to any note. Documents are labelled until the index is renewed, and plain afterwards.

`cut=True` ends the recall at `k` notes, links included, for comparisons with equal budgets (SegTreeMem App. E): of ten hits, four to six
are then left.

Deviations and decisions:

- A changed neighbour keeps its old vector until `evo_threshold` notes have changed the network, as released. Then only the documents
  that changed are embedded again, which gives the same index.
- Links are notes, not positions. Links to notes that do not exist are dropped and counted. Links go from the newer note to the older.
- `link_threshold` is compared with the cosine by which neighbours are found. SegTreeMem states this setting and two neighbours
  for its own runs (App. E); neither is in the release.
- The model may leave the new note's tags as they are (null); the schema of the release cannot express that.
- Two defects of the release are not reproduced: a missing import that empties all metadata, and a question prompt that has the answer
  among two options.
- Where a description cannot be read, the note has no keywords, the context "General" and no tags. Where the keywords of a question
  cannot be read, its text is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Embedder, Vectors, best


@dataclass(slots=True)
class _Note:
    """A unit and its description. The number of a note is its row in the matrix of vectors."""

    unit: Unit
    keywords: list[str]
    context: str
    tags: list[str]
    links: list[int] = field(default_factory=list)
    """Numbers of the notes it links to."""


@dataclass(frozen=True)
class AMemSettings(Settings):
    """Settings of `AMem`.

    Raises:
        ValueError: an unknown choice, `cut` in mode `code`, or a number below 1.
    """

    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the module."""
    k: Positive = 10
    """Number of hits; the notes they link to are added to these."""
    cut: bool = False
    """Whether the recall ends at `k` notes, links included (mode `paper` only)."""
    lookup: Literal["text", "keywords"] | None = None
    """The embedded part of a question: its `text`, or `keywords` that a model makes of it; None for the mode's choice."""
    neighbours: Positive = 5
    """Number of nearest notes that are shown together with a new note."""
    link_threshold: float = -1.0
    """Minimum cosine of a link; -1 allows every link."""
    evo_threshold: Positive = 100
    """Number of notes that change the network before the index is renewed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut and self.mode == "code":
            raise ValueError("cut must be false in mode code, which repeats notes")


class AMem(MemorySystem):
    """Recalls the `k` notes nearest to the question, each with the notes that it links to."""

    READ_KNOBS: ClassVar = ("k", "cut", "lookup")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("amem",)
    ENTRIES: ClassVar = "_notes"
    UNIT: ClassVar = {"rule": "utterance"}
    EMBEDS_UNITS: ClassVar = False  # mode `code` does, one unit at a time
    PAST_K: ClassVar = "k counts the hits; the notes that they link to come on top, unless `cut` is set"

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: AMemSettings = AMemSettings()) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._notes: list[_Note] = []
        self._vectors = Vectors()
        self._documents: list[str] = []
        self._outdated: set[int] = set()
        self._evolutions = 0
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Describe the unit, let the network change around it, and add it: two calls. If a call fails, nothing changes."""
        note = self._describe(unit)
        embedded = _labelled(note) if self.settings.mode == "paper" else unit.text
        vector = self.embedder.embed([embedded])[0]
        near = dict(self._vectors.top(vector, self.settings.neighbours))
        reply = self._ask_changes(note, tuple(near))
        evolves = not isinstance(reply, ParseFailure) and reply["should_evolve"]
        actions = reply.get("actions", ()) if evolves else ()
        if "strengthen" in actions:
            self._strengthen(note, reply, near)
        document = _labelled(note)
        vector = vector if document == embedded else self.embedder.embed([document])[0]
        if "update_neighbor" in actions:
            self._update(tuple(near), reply)
        if self.settings.mode == "code":
            self._outdated.add(len(self._notes))
        self._notes.append(note)
        self._documents.append(document)
        self._vectors.add(vector)
        self._evolutions += evolves
        if evolves and self._evolutions % self.settings.evo_threshold == 0:
            self._renew()

    def read(self, question: Question) -> Recall:
        if not self._notes:
            return Recall(())
        query = self.embedder.embed([self._query_text(question)], query=True)[0]
        similarities = self._vectors.similarities(query)
        hits = best(similarities, self.settings.k)
        if self.settings.mode == "code":
            chosen = [number for hit in hits for number in (hit, *self._notes[hit].links[: self.settings.k + 1])]
        else:
            chosen = list(dict.fromkeys(number for hit in hits for number in (hit, *self._notes[hit].links)))
            chosen = chosen[: self.settings.k] if self.settings.cut else chosen
        notes = [(self._notes[number], float(similarities[number])) for number in chosen]
        return Recall(
            tuple(
                Item(note.unit.id, _dated_description(note), score, note.unit.turn_ids, "note") for note, score in notes
            )
        )

    def nodes(self) -> Iterator[NodeView]:
        """The notes, with their documents as they are in the index."""
        for number, note in enumerate(self._notes):
            vector = self._vectors.matrix[number].copy()
            yield NodeView(
                note.unit.id, (), 0, "note", self._documents[number], vector, note.unit.turn_ids, note.unit.time, note.unit.time
            )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Counts of notes, links, notes that changed the network, and notes whose documents the next renewal will change."""
        links = sum(len(note.links) for note in self._notes)
        counts = {"notes": self.held, "links": links, "evolutions": self._evolutions, "outdated": len(self._outdated)}
        return {**counts, **self._counts}

    def _describe(self, unit: Unit) -> _Note:
        reply = ask(self.llm, self.prompts["amem/analyse"], text=unit.text, noted="amem.no_description")
        if isinstance(reply, ParseFailure):
            self._counts["undescribed"] += 1
            return _Note(unit, [], "General", [])
        return _Note(unit, reply["keywords"], reply["context"].strip() or "General", reply["tags"])

    def _ask_changes(self, note: _Note, near: Sequence[int]) -> Any:
        """The changes that the model proposes, or a `ParseFailure`.

        Args:
            near: numbers of the neighbours, the nearest first.
        """
        reply = ask(
            self.llm,
            self.prompts["amem/evolve"],
            query=note.unit.text,
            context=note.context,
            keywords=", ".join(note.keywords),
            count=len(near),
            options=[Option(str(number), _dated_description(self._notes[number])) for number in near],
            noted="amem.no_evolution",
        )
        if isinstance(reply, ParseFailure):
            self._counts["failed_evolutions"] += 1
        return reply

    def _strengthen(self, note: _Note, reply: Mapping[str, Any], near: Mapping[int, float]) -> None:
        """Link the note to the neighbours that the model names, and give it the tags of the reply, if any."""
        suggested = dict.fromkeys(reply.get("suggested_connections", ()))
        allowed = near if self.settings.mode == "paper" else range(len(self._notes))
        known = [number for number in suggested if number in allowed]
        if len(known) < len(suggested):
            meter.note("amem.dropped_link", len(suggested) - len(known))
        note.links = [number for number in known if near.get(number, -1.0) >= self.settings.link_threshold]
        tags = reply.get("tags_to_update")
        note.tags = note.tags if tags is None else tags

    def _update(self, near: Sequence[int], reply: Mapping[str, Any]) -> None:
        """Give the neighbours their new tags, and new contexts where the reply has them; the index does not change.

        Args:
            near: numbers of the neighbours, in the order of the reply: the nearest first.
        """
        contexts = reply.get("new_context_neighborhood", [])
        for place, (number, tags) in enumerate(zip(near, reply.get("new_tags_neighborhood", ()), strict=False)):
            self._notes[number].tags = tags
            context = contexts[place].strip() if place < len(contexts) else ""
            self._notes[number].context = context or self._notes[number].context
            self._outdated.add(number)

    def _renew(self) -> None:
        """Embed the documents again that have changed since the last renewal."""
        numbers = sorted(self._outdated)
        document_of = _labelled if self.settings.mode == "paper" else _plain
        documents = [document_of(self._notes[number]) for number in numbers]
        vectors = self.embedder.embed(documents) if documents else ()
        for number, document, vector in zip(numbers, documents, vectors, strict=True):
            self._documents[number] = document
            self._vectors.matrix[number] = vector
        self._outdated.clear()

    def _query_text(self, question: Question) -> str:
        """The text that is embedded for a question."""
        if (self.settings.lookup or ("text" if self.settings.mode == "paper" else "keywords")) == "text":
            return question.text
        reply = ask(self.llm, self.prompts["amem/query"], text=question.text)
        keywords = "" if isinstance(reply, ParseFailure) else reply["keywords"].strip()
        if not keywords:
            meter.note("amem.raw_question")
        return keywords or question.text


def _dated_description(note: _Note) -> str:
    """A note as the model and the reader see it: time, text and description."""
    keywords, tags = ", ".join(note.keywords), ", ".join(note.tags)
    text = f"{note.unit.text} (context: {note.context}; keywords: {keywords}; tags: {tags})"
    return dated(text, note.unit.time_text)


def _labelled(note: _Note) -> str:
    """The document that is embedded for a note."""
    keywords, tags = ", ".join(note.keywords), ", ".join(note.tags)
    return f"content: {note.unit.text} context: {note.context} keywords: {keywords} tags: {tags}"


def _plain(note: _Note) -> str:
    """The document that the release embeds when it renews the index."""
    return f"{note.unit.text} , {note.context} {' '.join(note.keywords)} {' '.join(note.tags)}"

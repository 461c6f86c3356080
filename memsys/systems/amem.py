"""A-MEM: a network of notes that link to each other and are rewritten as new ones come (Xu et al., 2025; the released reproduction).

Every unit becomes a note. One call describes it with keywords, a context and tags; a second one is shown the note beside its nearest
neighbours and may link it to some of them, change its tags, and change the context and tags of the neighbours. The notes nearest to a
question are recalled, together with the notes that they link to.

`mode` chooses how links are read and written, and what is embedded:

- `paper`: `k` hits, each followed by the notes that it links to (§3.4); no note is recalled twice. A note finds its neighbours by all
  that is said of it: content, keywords, tags and context (Eq. 3 and 4); a question is looked up by its text (Eq. 8). A note is linked
  only to neighbours that were shown. One form of document throughout.
- `code`: `k` hits, each followed by up to k + 1 links, whatever was recalled before (the released loop ends one too late), so that a
  note may be recalled several times. Neighbours are found by the unit's own text among the documents, and a question by keywords that
  one call makes of it. A link may go to any note. Documents are labelled until the index is renewed, and plain from then on.

`cut=True` ends the recall at `k` notes, links included, for comparisons with one budget for all (SegTreeMem App. E): of ten hits four
to six then survive.

Deviations and decisions:

- A changed neighbour keeps its old place in the index until `evo_threshold` notes have made the network evolve, as released; then only
  the documents that changed are embedded again, which gives the same index.
- Links are notes, not positions; those to notes that do not exist are dropped and counted. They go from the newer note to the older.
- `link_threshold` compares the cosine by which neighbours are found; it and two neighbours are SegTreeMem's account of its runs
  (App. E), and neither is in the release.
- The tags of the new note may be left as they are (null); the schema of the release has no word for that.
- The release's missing import, which empties all metadata, and its question prompt with the answer among two options are not reproduced.
- A failed description is no keywords, the context "General" and no tags; failed keywords of a question are the question itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Vectors, best

LOOKUPS = ("text", "keywords")


@dataclass(slots=True)
class _Note:
    """A unit and what is said about it; its number is its row in the matrix of vectors."""

    unit: Unit
    keywords: list[str]
    context: str
    tags: list[str]
    links: list[int] = field(default_factory=list)
    """Numbers of the notes that it is connected to."""


class AMem(MemorySystem):
    """Recalls the `k` notes nearest to the question, each with the notes that it links to.

    Args:
        k: so many hits; their links come on top.
        cut: whether the recall ends at `k` notes, links included (mode `paper` only).
        lookup: whether a question is embedded as its `text` or as `keywords` that a model makes of it; None for the mode's choice.
        neighbours: nearest notes that a new one is shown beside.
        link_threshold: least cosine of a link; -1 is off.
        evo_threshold: so many notes that made the network evolve renew the index.

    Raises:
        ValueError: an unknown choice, `cut` in mode `code`, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("k", "cut", "lookup")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("amem",)
    UNIT: ClassVar = {"rule": "utterance"}
    EMBEDS_UNITS: ClassVar = False  # but for mode `code`, which does it one by one
    PAST_K: ClassVar = "k counts the hits; the notes that they link to come on top, unless `cut` is set"

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 10,
        cut: bool = False,
        lookup: Literal["text", "keywords"] | None = None,
        neighbours: int = 5,
        link_threshold: float = -1.0,
        evo_threshold: int = 100,
    ) -> None:
        if lookup not in (None, *LOOKUPS):
            raise ValueError(f"lookup must be one of {', '.join(LOOKUPS)}, found {lookup!r}")
        if cut and mode == "code":
            raise ValueError("cut must be false in mode code, which repeats notes")
        self.llm, self.embedder, self.prompts, self.mode = llm, embedder, prompts, known_mode(self, mode)
        self.cut, self.lookup = cut, lookup
        self.k, self.neighbours = positive("k", k), positive("neighbours", neighbours)
        self.link_threshold, self.evo_threshold = link_threshold, positive("evo_threshold", evo_threshold)
        self._notes: list[_Note] = []
        self._vectors = Vectors()
        self._documents: list[str] = []
        self._outdated: set[int] = set()
        self._evolutions = 0
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Describe the unit, let the network evolve around it, and add it: two calls. Nothing changes when one of them fails."""
        note = self._described(unit)
        sought = _labelled(note) if self.mode == "paper" else unit.text
        vector = self.embedder.embed([sought])[0]
        near = dict(self._vectors.top(vector, self.neighbours))
        reply = self._evolution(note, tuple(near))
        evolves = not isinstance(reply, ParseFailure) and reply["should_evolve"]
        actions = reply.get("actions", ()) if evolves else ()
        if "strengthen" in actions:
            self._strengthen(note, reply, near)
        document = _labelled(note)
        vector = vector if document == sought else self.embedder.embed([document])[0]
        if "update_neighbor" in actions:
            self._update(tuple(near), reply)
        if self.mode == "code":
            self._outdated.add(len(self._notes))
        self._notes.append(note)
        self._documents.append(document)
        self._vectors.add(vector)
        self._evolutions += evolves
        if evolves and self._evolutions % self.evo_threshold == 0:
            self._renew()

    def read(self, question: Question) -> Recall:
        if not self._notes:
            return Recall(())
        query = self.embedder.embed([self._sought(question)], query=True)[0]
        similarities = self._vectors.similarities(query)
        hits = best(similarities, self.k)
        if self.mode == "code":
            chosen = [number for hit in hits for number in (hit, *self._notes[hit].links[: self.k + 1])]
        else:
            chosen = list(dict.fromkeys(number for hit in hits for number in (hit, *self._notes[hit].links)))
            chosen = chosen[: self.k] if self.cut else chosen
        return Recall(tuple(self._item(number, float(similarities[number])) for number in chosen))

    def nodes(self) -> Iterator[NodeView]:
        """The notes with the documents that stand in the index."""
        for number, note in enumerate(self._notes):
            vector = self._vectors.matrix[number].copy()
            yield NodeView(
                note.unit.id, (), 0, "note", self._documents[number], vector, note.unit.turn_ids, note.unit.time, note.unit.time
            )  # fmt: skip

    @property
    def held(self) -> int:
        return len(self._notes)

    def report(self) -> dict[str, Any]:
        """Notes, links, evolutions, and notes whose documents the next renewal of the index will change."""
        links = sum(len(note.links) for note in self._notes)
        counts = {"notes": self.held, "links": links, "evolutions": self._evolutions, "outdated": len(self._outdated)}
        return {**counts, **self._counts}

    def _described(self, unit: Unit) -> _Note:
        reply = ask(self.llm, self.prompts["amem/analyse"], text=unit.text)
        if isinstance(reply, ParseFailure):
            meter.note("amem.no_description")
            self._counts["undescribed"] += 1
            return _Note(unit, [], "General", [])
        return _Note(unit, reply["keywords"], reply["context"].strip() or "General", reply["tags"])

    def _evolution(self, note: _Note, near: Sequence[int]) -> Any:
        """What the model would change, or a `ParseFailure`, which changes nothing."""
        reply = ask(
            self.llm,
            self.prompts["amem/evolve"],
            query=note.unit.text,
            context=note.context,
            keywords=", ".join(note.keywords),
            count=len(near),
            options=[Option(str(number), _shown(self._notes[number])) for number in near],
        )
        if isinstance(reply, ParseFailure):
            meter.note("amem.no_evolution")
            self._counts["failed_evolutions"] += 1
        return reply

    def _strengthen(self, note: _Note, reply: Mapping[str, Any], near: Mapping[int, float]) -> None:
        wanted = dict.fromkeys(reply.get("suggested_connections", ()))
        allowed = near if self.mode == "paper" else range(len(self._notes))
        known = [number for number in wanted if number in allowed]
        if len(known) < len(wanted):
            meter.note("amem.dropped_link", len(wanted) - len(known))
        note.links = [number for number in known if near.get(number, -1.0) >= self.link_threshold]
        tags = reply.get("tags_to_update")
        note.tags = note.tags if tags is None else tags

    def _update(self, near: Sequence[int], reply: Mapping[str, Any]) -> None:
        """New tags, and contexts as far as there are any, for the neighbours from the nearest on; the index stays as it is."""
        contexts = reply.get("new_context_neighborhood", [])
        for place, (number, tags) in enumerate(zip(near, reply.get("new_tags_neighborhood", ()), strict=False)):
            self._notes[number].tags = tags
            context = contexts[place].strip() if place < len(contexts) else ""
            self._notes[number].context = context or self._notes[number].context
            self._outdated.add(number)

    def _renew(self) -> None:
        numbers = sorted(self._outdated)
        form = _labelled if self.mode == "paper" else _plain
        documents = [form(self._notes[number]) for number in numbers]
        vectors = self.embedder.embed(documents) if documents else ()
        for number, document, vector in zip(numbers, documents, vectors, strict=True):
            self._documents[number] = document
            self._vectors.set(number, vector)
        self._outdated.clear()

    def _sought(self, question: Question) -> str:
        """The text by which a question is looked up."""
        if (self.lookup or ("text" if self.mode == "paper" else "keywords")) == "text":
            return question.text
        reply = ask(self.llm, self.prompts["amem/query"], text=question.text)
        keywords = "" if isinstance(reply, ParseFailure) else reply["keywords"].strip()
        if not keywords:
            meter.note("amem.raw_question")
        return keywords or question.text

    def _item(self, number: int, score: float) -> Item:
        note = self._notes[number]
        return Item(note.unit.id, dated(_described_text(note), note.unit.time_text), score, note.unit.turn_ids, "note")


def _described_text(note: _Note) -> str:
    keywords, tags = ", ".join(note.keywords), ", ".join(note.tags)
    return f"{note.unit.text} (context: {note.context}; keywords: {keywords}; tags: {tags})"


def _shown(note: _Note) -> str:
    return dated(_described_text(note), note.unit.time_text)


def _labelled(note: _Note) -> str:
    """The document of a note: what stands for it in the index."""
    keywords, tags = ", ".join(note.keywords), ", ".join(note.tags)
    return f"content: {note.unit.text} context: {note.context} keywords: {keywords} tags: {tags}"


def _plain(note: _Note) -> str:
    """The document that the release makes when it renews the index."""
    return f"{note.unit.text} , {note.context} {' '.join(note.keywords)} {' '.join(note.tags)}"

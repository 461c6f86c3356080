from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted import Script, ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError
from memsys.prompts import Prompts
from memsys.systems.amem import AMem
from memsys.systems.dense import Dense

ANALYSE, EVOLVE, QUERY = "amem.analyse", "amem.evolve", "amem.query"
GARBAGE = ["", "Sure!", "```json {", "[]", "{}"]
STAYS = json.dumps({"should_evolve": False})
QUESTION = Question("q", "Which one?")


class Cosines:
    """A text has the cosine with the query (the first axis) that the table gives for a word in it, 0 otherwise."""

    def __init__(self, table: Mapping[str, float]) -> None:
        self._table = table
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.texts += texts
        rows = np.zeros((len(texts), 2), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[0] = next((cosine for word, cosine in self._table.items() if word in text), 0.0)
            row[1] = (1 - row[0] ** 2) ** 0.5
        return rows


def unit(number: int, text: str = "") -> Unit:
    turn = Turn(f"t{number}", "Ann", text or f"note{number}.")
    return Unit(f"u{number}", (turn,), "s1", datetime(2023, 5, 7 + number), f"{7 + number} May 2023")


def described(number: int = 0, tags: Sequence[str] = ("old",)) -> str:
    return json.dumps({"keywords": [f"key{number}", "other"], "context": f"Context {number}.", "tags": tags})


def strengthen(*links: int, tags: Sequence[str] | None = None) -> str:
    fields = {"should_evolve": True, "actions": ["strengthen"], "suggested_connections": links}
    return json.dumps({**fields, **({} if tags is None else {"tags_to_update": tags})})


def update(tags: Sequence[Sequence[str]], contexts: Sequence[str] = ()) -> str:
    fields = {"should_evolve": True, "actions": ["update_neighbor"]}
    return json.dumps({**fields, "new_tags_neighborhood": tags, "new_context_neighborhood": contexts})


def memory(
    evolutions: Sequence[Script] = (), table: Mapping[str, float] | None = None, **settings: Any
) -> tuple[AMem, ScriptedLLM, Cosines]:
    """A memory with a note for each evolution, note0, note1 …; the question is looked up as "query"."""
    settings = {"lookup": "keywords", **settings}
    script: dict[str, Script] = {
        ANALYSE: [described(number) for number in range(len(evolutions))],
        EVOLVE: list(evolutions),  # type: ignore[arg-type]
        QUERY: '{"keywords": "query"}',
    }
    llm, embedder = ScriptedLLM(script), Cosines({"query": 1.0, **(table or {})})
    held = with_settings(AMem, settings)(llm=llm, embedder=embedder, prompts=Prompts())
    for number in range(len(evolutions)):
        held.write(unit(number))
    return held, llm, embedder


def links(held: AMem) -> list[list[int]]:
    return [note.links for note in held._notes]


def tags(held: AMem) -> list[list[str]]:
    return [note.tags for note in held._notes]


def recalled(held: AMem) -> list[str]:
    return [item.id for item in held.read(QUESTION).items]


FALLING = {f"note{number}": 0.9 - number / 10 for number in range(9)}
"""note0 is the nearest to the query, then note1 …"""


# --- which prompts are sent --------------------------------------------------------------------------------------------


def test_the_first_note_is_two_calls_and_has_no_links() -> None:
    held, llm, _ = memory([strengthen(0)])
    assert llm.purposes == [ANALYSE, EVOLVE]
    assert links(held) == [[]]
    assert llm.requests[1].fields["count"] == 0


def test_every_note_is_two_calls_and_every_question_one_where_it_is_looked_up_by_keywords() -> None:
    held, llm, _ = memory([STAYS] * 6)
    assert llm.purposes == [ANALYSE, EVOLVE] * 6
    held.read(QUESTION)
    assert llm.purposes[12:] == [QUERY]
    assert {request.temperature for request in llm.requests} == {0.7}


def test_an_empty_memory_is_not_asked_for_keywords() -> None:
    held, llm, _ = memory()
    assert held.read(QUESTION).items == ()
    assert llm.requests == []


def test_a_note_is_shown_beside_its_five_nearest_neighbours_from_the_nearest_on() -> None:
    # The text of note7 is as near to the first axis as note0.
    held, llm, _ = memory([STAYS] * 7, FALLING)
    llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([described(7)]), iter([STAYS])
    held.write(unit(7, "query."))
    fields = llm.requests[-1].fields
    assert [option.label for option in fields["options"]] == ["0", "1", "2", "3", "4"]
    sent = llm.requests[-1].messages[-1][1]
    assert "[1] [8 May 2023] Ann: note1. (context: Context 1.; keywords: key1, other; tags: old)" in sent
    assert "Ann: query.\ncontext: Context 7.\nkeywords: key7, other" in sent
    assert "Its 5 nearest neighbours" in sent


# --- evolution ---------------------------------------------------------------------------------------------------------


def test_a_strengthened_note_gets_links_and_tags() -> None:
    held, _, _ = memory([STAYS, STAYS, strengthen(1, 0, 1, tags=["new"])])
    assert links(held) == [[], [], [1, 0]]
    assert tags(held) == [["old"], ["old"], ["new"]]


def test_tags_may_be_left_as_they_are() -> None:
    held, _, _ = memory([STAYS, strengthen(0)])
    assert tags(held)[1] == ["old"]


def test_links_to_notes_that_do_not_exist_are_dropped_and_counted() -> None:
    with meter.metering() as ledger:
        held, _, _ = memory([STAYS, STAYS, strengthen(99, -1, 0, 2)])
    assert links(held)[2] == [0]
    assert ledger.notes == {"amem.dropped_link": 3}


@pytest.mark.parametrize(("mode", "linked"), [("paper", [0]), ("code", [1, 0])])
def test_only_the_released_code_links_to_notes_that_were_not_shown(mode: str, linked: list[int]) -> None:
    held, _, _ = memory([STAYS, STAYS, strengthen(1, 0)], {"note0": 0.1, "note1": 0.9}, mode=mode, neighbours=1)
    assert links(held)[2] == linked


def test_a_link_needs_the_cosine_of_the_threshold() -> None:
    # note2 lies on the query's axis.
    table = {"note0": 0.76, "note1": 0.74, "note2": 1.0}
    held, _, _ = memory([STAYS, STAYS, strengthen(0, 1)], table, link_threshold=0.75)
    assert links(held)[2] == [0]


def test_one_list_of_tags_changes_one_neighbour_of_five() -> None:
    held, _, _ = memory([STAYS] * 5 + [update([["changed"]])], {**FALLING, "note5": 0.9})
    assert tags(held) == [["changed"], *[["old"]] * 5]
    assert [note.context for note in held._notes[:2]] == ["Context 0.", "Context 1."]


def test_contexts_are_changed_as_far_as_they_are_given() -> None:
    change = update([["a"], ["b"], ["c"]], ["New.", " "])
    held, _, _ = memory([STAYS] * 3 + [change], {**FALLING, "note3": 0.9})
    assert [note.context for note in held._notes] == ["New.", "Context 1.", "Context 2.", "Context 3."]
    assert tags(held) == [["a"], ["b"], ["c"], ["old"]]


def test_more_lists_than_neighbours_change_no_more_than_the_neighbours() -> None:
    held, _, _ = memory([STAYS, STAYS, update([["x"]] * 9, ["New."] * 9)], neighbours=1)
    assert tags(held) == [["x"], ["old"], ["old"]]


def test_what_is_suggested_without_an_evolution_is_not_done() -> None:
    reply = json.dumps({**json.loads(strengthen(0, tags=["x"])), "should_evolve": False})
    held, _, _ = memory([STAYS, reply])
    assert (links(held), tags(held)) == ([[], []], [["old"], ["old"]])
    assert held.report()["evolutions"] == 0


def test_what_belongs_to_an_action_that_is_not_taken_is_not_done() -> None:
    reply = json.dumps({**json.loads(update([["x"]])), "suggested_connections": [0], "tags_to_update": ["y"]})
    held, _, _ = memory([STAYS, reply])
    assert (links(held)[1], tags(held)) == ([], [["x"], ["old"]])


def test_a_changed_neighbour_keeps_its_place_in_the_index_until_the_threshold_of_evolutions() -> None:
    # Any document with the new tag is the query itself.
    evolutions = [STAYS, update([["query"]]), *[json.dumps({"should_evolve": True, "actions": []})] * 98, STAYS]
    table = {"query": 1.0, "note0": 0.5}
    held, llm, embedder = memory([], table)
    for number, reply in enumerate(evolutions):
        llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([described(number)]), iter([reply])
        held.write(unit(0, f"note{number}.") if number == 0 else _later(number))
        (first,) = [item for item in copy.copy(_with_k(held, 200)).read(QUESTION).items if item.id == "u0"]
        assert first.score == pytest.approx(0.5), number
        assert "tags: query" in first.text or number == 0
    assert held.report()["evolutions"] == 99
    embedder.texts.clear()
    llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([described(1)]), iter([update([])])
    held.write(_later(101))
    (first,) = [item for item in _with_k(held, 200).read(QUESTION).items if item.id == "u0"]
    assert (first.score, held.report()["evolutions"]) == (1.0, 100)
    # The note's document, the one document that had changed, and the query.
    assert len(embedder.texts) == 3
    assert held.report()["outdated"] == 0


def _later(number: int) -> Unit:
    return Unit(f"u{number}", (Turn(f"t{number}", "Ann", "later"),), "s1", datetime(2023, 8, 1), "1 August 2023")


def _with_k(held: AMem, k: int) -> AMem:
    wider = tuned(held, {"k": k})
    return wider


def test_the_index_holds_content_context_keywords_and_tags() -> None:
    held, _, _ = memory([STAYS, strengthen(0, tags=["new"])])
    assert next(held.nodes()).text == "content: Ann: note0. context: Context 0. keywords: key0, other tags: old"
    assert [node.text for node in held.nodes()][1].endswith("tags: new")


def test_the_released_code_drops_the_labels_when_it_renews_the_index() -> None:
    held, _, _ = memory([STAYS, update([["x"]])], mode="code", evo_threshold=1)
    assert [node.text for node in held.nodes()] == [
        "Ann: note0. , Context 0. key0 other x",
        "Ann: note1. , Context 1. key1 other old",
    ]


# --- replies that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [*GARBAGE, '{"keywords": [1], "context": "c", "tags": []}'])
def test_a_failed_description_is_general_and_the_note_is_kept(reply: str) -> None:
    held, llm, _ = memory()
    llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([reply]), iter([STAYS])
    with meter.metering() as ledger:
        held.write(unit(0))
    assert held.read(QUESTION).items[0].text == "[7 May 2023] Ann: note0. (context: General; keywords: ; tags: )"
    assert ledger.notes == {"amem.no_description": 1}
    assert ledger.parse_failures == {ANALYSE: 1}
    assert llm.purposes == [ANALYSE, EVOLVE, QUERY]


@pytest.mark.parametrize(
    "reply",
    [
        *GARBAGE,
        '{"should_evolve": "yes", "actions": ["strengthen"], "suggested_connections": [0]}',
        '{"should_evolve": true, "actions": ["strengthen"], "suggested_connections": ["first"]}',
        '{"should_evolve": true, "actions": ["update_neighbor"], "new_tags_neighborhood": ["x"]}',
        '{"should_evolve": true, "actions": ["merge"]}',
    ],
)
def test_a_failed_evolution_changes_nothing_and_the_note_is_kept(reply: str) -> None:
    with meter.metering() as ledger:
        held, _, _ = memory([STAYS, reply])
    assert (links(held), tags(held)) == ([[], []], [["old"], ["old"]])
    assert held._notes[1].keywords == ["key1", "other"]
    assert ledger.notes == {"amem.no_evolution": 1}
    assert ledger.parse_failures == {EVOLVE: 1}
    assert held.report()["evolutions"] == 0


@pytest.mark.parametrize("reply", [*GARBAGE, '{"keywords": " "}', '{"keywords": ["a", "b"]}'])
def test_a_question_whose_keywords_fail_is_looked_up_itself(reply: str) -> None:
    held, llm, embedder = memory([STAYS])
    llm._script = {QUERY: reply}
    with meter.metering() as ledger:
        held.read(QUESTION)
    assert embedder.texts[-1] == "Which one?"
    assert ledger.notes == {"amem.raw_question": 1}


@pytest.mark.parametrize("purpose", [ANALYSE, EVOLVE])
def test_a_call_that_fails_for_good_leaves_the_notes_as_they_were(purpose: str) -> None:
    held, llm, _ = memory([STAYS])
    llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([described(1)]), iter([update([["x"]])])
    llm._queues[purpose] = iter([ModelError("the endpoint is gone")])
    with pytest.raises(ModelError):
        held.write(unit(1))
    assert (held.held, tags(held)) == (1, [["old"]])


# --- recall ------------------------------------------------------------------------------------------------------------


def test_a_question_is_looked_up_by_its_keywords() -> None:
    held, _, embedder = memory([STAYS])
    held.read(QUESTION)
    assert embedder.texts[-1] == "query"


NETWORK = [STAYS, STAYS, STAYS, strengthen(0, 1), strengthen(3, 0)]
"""note3 links to note0 and note1; note4 to note3 and note0."""
RISING = {f"note{number}": number / 10 for number in range(5)}


def test_a_hit_is_followed_by_its_links_and_no_note_comes_twice() -> None:
    held, _, _ = memory(NETWORK, RISING)
    assert recalled(held) == ["u4", "u3", "u0", "u1", "u2"]
    dense = Dense(Cosines({"Which one?": 1.0, **RISING}))
    for number in range(5):
        dense.write(unit(number))
    assert [item.id for item in dense.read(QUESTION).items] == ["u4", "u3", "u2", "u1", "u0"]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_no_more_than_k_notes_are_recalled_links_included(k: int) -> None:
    """One budget for all, as SegTreeMem compares (App. E)."""
    held, _, _ = memory(NETWORK, RISING, k=k, cut=True)
    assert recalled(held) == ["u4", "u3", "u0", "u1"][:k]


def test_all_k_hits_are_recalled_and_their_links_come_on_top() -> None:
    """A-MEM §3.4: the k most similar notes, with those that they are linked to."""
    held, _, _ = memory(NETWORK, RISING, k=2)
    assert recalled(held) == ["u4", "u3", "u0", "u1"]
    evolutions = [*[STAYS] * 5, strengthen(0, 1, 2)]
    table = {f"note{number}": 0.9 - number / 10 for number in range(5)} | {"note5": 0.95}
    held, _, _ = memory(evolutions, table, k=3)
    assert recalled(held) == ["u5", "u0", "u1", "u2"], "note5, note0 and note1 are the hits, note2 is linked"
    held, _, _ = memory(NETWORK, RISING, k=1)
    assert recalled(held) == ["u4", "u3", "u0"]


@pytest.mark.parametrize(("mode", "shown"), [("paper", ["1"]), ("code", ["0"])])
def test_a_note_finds_its_neighbours_by_all_that_is_said_of_it_and_in_the_release_by_its_text(
    mode: str, shown: list[str]
) -> None:
    """A-MEM Eq. 3 and 4: the vector of a note is that of its content, keywords, tags and context."""
    # The new note speaks of note0, but its context puts it beside note1.
    held, llm, embedder = memory(
        [STAYS, STAYS], {"Context 7": 0.1, "note0": 0.9, "note1": 0.1}, mode=mode, neighbours=1
    )
    llm._queues[ANALYSE], llm._queues[EVOLVE] = iter([described(7)]), iter([STAYS])
    held.write(unit(7, "More of note0."))
    assert [option.label for option in llm.requests[-1].fields["options"]] == shown
    assert ("Ann: More of note0." in embedder.texts) == (mode == "code")


@pytest.mark.parametrize(
    ("settings", "sought"),
    [({}, "Which one?"), ({"mode": "code"}, "query"), ({"lookup": "keywords"}, "query"),
     ({"mode": "code", "lookup": "text"}, "Which one?")],
)  # fmt: skip
def test_a_question_is_looked_up_by_its_text_and_in_the_release_by_keywords(
    settings: dict[str, Any], sought: str
) -> None:
    """A-MEM Eq. 8."""
    held, llm, embedder = memory([STAYS], **{"lookup": None, **settings})
    held.read(QUESTION)
    assert embedder.texts[-1] == sought
    assert (QUERY in llm.purposes) == (sought == "query")


def test_the_released_code_lists_k_hits_with_up_to_k_plus_one_links_each_and_repeats_notes() -> None:
    held, _, _ = memory(NETWORK, RISING, mode="code", k=2)
    assert recalled(held) == ["u4", "u3", "u0", "u3", "u0", "u1"]
    evolutions = [*[STAYS] * 4, strengthen(0, 1, 2, 3)]
    held, _, _ = memory(evolutions, RISING, mode="code", k=1)
    assert recalled(held) == ["u4", "u0", "u1"]


def test_every_item_has_its_own_similarity_and_names_its_turns() -> None:
    held, _, _ = memory(NETWORK, RISING, k=3, cut=True)
    items = held.read(QUESTION).items
    assert [item.score for item in items] == pytest.approx([0.4, 0.3, 0.0])
    assert [item.sources for item in items] == [("t4",), ("t3",), ("t0",)]


def test_the_latest_description_is_shown_before_the_index_knows_it() -> None:
    held, _, _ = memory([STAYS, update([["changed"]], ["New."])], RISING)
    (first,) = [item for item in held.read(QUESTION).items if item.id == "u0"]
    assert first.text == "[7 May 2023] Ann: note0. (context: New.; keywords: key0, other; tags: changed)"


@pytest.mark.parametrize(("setting", "value"), [("lookup", "tags"), ("neighbours", 0), ("evo_threshold", 0)])
def test_nonsense_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        memory(**{setting: value})


def test_the_release_is_never_cut() -> None:
    with pytest.raises(ValueError, match="cut must be false in mode code"):
        memory(mode="code", cut=True)

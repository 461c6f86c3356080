from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memos import CAPACITY, MemOS, partition
from memsys.vectors import normalised

START = datetime(2023, 5, 7, 13)
READ, PARSE = "memos.read", "memos.parse"
RELATION, FUSE, SPLIT, PARENT = "memos.relation", "memos.fuse", "memos.split", "memos.parent"
GARBAGE = ["", "Sure!", "```json {", "[]", "{}"]


def utterance(number: int, text: str = "", session: str = "s1", days: int = 0) -> Unit:
    speaker, role = (("Ann", "user"), ("Bob", "assistant"))[number % 2]
    turn = Turn(f"t{number}", speaker, text or f"word{number}", role)  # type: ignore[arg-type]
    return Unit(f"u{number}", (turn,), session, START + timedelta(days=days), f"{7 + days} May")


def memories(*texts: str, kind: str = "LongTermMemory", **fields: Any) -> str:
    items = [{"key": "k", "memory_type": kind, "value": text, "tags": [], **fields} for text in texts]
    return json.dumps({"memory list": items, "summary": "all of it"})


def lines(request: Request) -> str:
    """Every line of the window is a memory, as it stands."""
    return memories(*(line.split("] ")[-1] for line in request.fields["text"]))


def memos(script: Mapping[str, Any] | None = None, **settings: Any) -> tuple[MemOS, ScriptedLLM]:
    llm = ScriptedLLM({READ: lines, **(script or {})})
    embedder = settings.pop("embedder", HashingEmbedder(512))
    return with_settings(MemOS, {"views": "user", **settings})(llm=llm, embedder=embedder, prompts=Prompts()), llm


def feed(memory: MemOS, units: Sequence[Unit]) -> MemOS:
    for index, unit in enumerate(units):
        memory.write(unit)
        if index + 1 == len(units) or units[index + 1].session_id != unit.session_id:
            memory.end_session(unit.session_id)
    memory.consolidate()
    return memory


def found(memory: MemorySystem, text: str = "word") -> list[str]:
    return [item.text for item in memory.read(Question("q", text)).items]


def remembering(*texts: str, **settings: Any) -> tuple[MemOS, ScriptedLLM]:
    """A memory that holds these texts, each read out of a session of one line."""
    memory, llm = memos({READ: [memories(text) for text in texts], **settings.pop("script", {})}, **settings)
    feed(memory, [utterance(number, session=f"s{number}", days=number) for number in range(len(texts))])
    return memory, llm


# --- windows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "windows"),
    [
        (1, [(0, 0)]),
        (9, [(0, 8)]),
        (10, [(0, 9), (8, 9)]),
        (25, [(0, 9), (8, 17), (16, 24)]),
        (26, [(0, 9), (8, 17), (16, 25), (24, 25)]),
    ],
)
def test_windows_of_ten_lines_overlap_by_two(count: int, windows: list[tuple[int, int]]) -> None:
    memory, llm = memos()
    feed(memory, [utterance(number) for number in range(count)])
    shown = [[line.split("word")[1] for line in request.fields["lines"]] for request in llm.requests]
    assert shown == [[str(number) for number in range(first, last + 1)] for first, last in windows]


def test_many_turns_in_one_unit_fill_the_same_windows() -> None:
    units = [utterance(number) for number in range(25)]
    whole = Unit("u", tuple(turn for unit in units for turn in unit.turns), "s1", START, "7 May")
    one, llm_one = memos(views="both")
    many, llm_many = memos(views="both")
    feed(one, [whole])
    feed(many, units)
    assert [request.messages for request in llm_one.requests] == [request.messages for request in llm_many.requests]


def test_a_session_ends_its_window_even_when_nobody_says_so() -> None:
    memory, llm = memos()
    for number in range(4):
        memory.write(utterance(number, session=f"s{number // 2}"))
    assert [len(request.fields["lines"]) for request in llm.requests] == [2]
    memory.consolidate()
    assert [len(request.fields["lines"]) for request in llm.requests] == [2, 2]


def test_two_sessions_are_two_windows_for_each_view() -> None:
    memory, llm = memos(views="both")
    feed(memory, [utterance(number, session="s1" if number < 4 else "s2") for number in range(6)])
    assert llm.purposes == [READ] * 4
    assert [len(request.fields["lines"]) for request in llm.requests] == [4, 4, 2, 2]


def test_each_side_is_the_user_of_its_own_view() -> None:
    memory, llm = memos(views="both")
    feed(memory, [utterance(0, "Hello!"), utterance(1, "Hi!")])
    shown = [request.messages[1][1] for request in llm.requests]
    assert "<dialogue>\nuser: [7 May]: Ann: Hello!\nassistant: [7 May]: Bob: Hi!\n</dialogue>" in shown[0]
    assert "<dialogue>\nassistant: [7 May]: Ann: Hello!\nuser: [7 May]: Bob: Hi!\n</dialogue>" in shown[1]
    assert {(request.temperature, request.max_tokens) for request in llm.requests} == {(0.8, 1024)}
    assert [item.id for item in memory.read(Question("q", "Hello")).items] == [
        "user-0", "user-1", "assistant-0", "assistant-1",
    ]  # fmt: skip


def test_an_open_window_is_read_for_a_question_and_again_when_it_is_full() -> None:
    units = [utterance(number) for number in range(12)]
    memory, llm = memos()
    for unit in units[:5]:
        memory.write(unit)
    assert memory.held == 0
    memory.consolidate()
    memory.consolidate()
    assert (len(llm.requests), memory.held) == (1, 5)
    assert len(found(memory)) == 5
    for unit in units[5:]:
        memory.write(unit)
    memory.consolidate()
    assert [len(request.fields["lines"]) for request in llm.requests] == [5, 10, 4]
    assert memory.read(Question("q", "word3")) == feed(memos()[0], units).read(Question("q", "word3"))


# --- stores --------------------------------------------------------------------------------------------------------


def test_the_working_store_holds_the_last_twenty() -> None:
    memory, _ = memos({READ: memories(*(f"fact{number}" for number in range(1, 22)))})
    feed(memory, [utterance(0)])
    assert memory.report()["user"] == {"working": 20, "long_term": 21, "user": 0, "windows": 1}
    assert memory.held == 21
    assert [node.text for node in memory._stores[0].working] == [f"fact{number}" for number in range(2, 22)]


def test_a_memory_in_both_stores_is_recalled_once_and_so_is_one_that_was_read_twice() -> None:
    memory, _ = remembering("Ann has a dog.", "Ann has a dog.", "Ann has a cat.")
    assert found(memory, "dog") == ["Ann has a dog.", "Ann has a cat."]
    assert memory.held == 3
    assert memory.read(Question("q", "dog")).items[0].id == "user-0"


def test_full_stores_lose_their_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CAPACITY == {"long_term": 1500, "user": 480}
    monkeypatch.setitem(CAPACITY, "user", 2)
    monkeypatch.setitem(CAPACITY, "long_term", 3)
    memory, _ = memos({READ: [
        memories(*(f"trait{number}" for number in range(25)), kind="UserMemory"), memories(*(f"event{number}" for number in range(22))),
    ]})  # fmt: skip
    feed(memory, [utterance(0), utterance(1, session="s2")])
    assert memory.report()["user"] == {"working": 20, "long_term": 3, "user": 2, "windows": 2}
    kept = {node.text for node in memory.nodes()}
    assert {"trait23", "trait24", "event2"} <= kept
    assert not {"trait22", "event1"} & kept
    assert memory.held == len(kept) == 2 + 20


@pytest.mark.parametrize(
    ("given", "kind"),
    [("UserMemory", "user"), ("LongTermMemory", "long_term"), ("Diary", "long_term"), (None, "long_term")],
)
def test_what_is_not_about_the_user_is_long_term(given: Any, kind: str) -> None:
    memory, _ = memos({READ: memories("Ann is kind.", memory_type=given)})
    feed(memory, [utterance(0)])
    assert [node.kind for node in memory.nodes()] == [kind]


@pytest.mark.parametrize("tags", ["dogs, cats", None, [7, "dogs"]])
def test_tags_that_are_no_list_of_words_do_no_harm(tags: Any) -> None:
    memory, _ = memos({READ: memories("Ann has a dog.", tags=tags)})
    assert found(feed(memory, [utterance(0)])) == ["Ann has a dog."]


@pytest.mark.parametrize(
    "garbage", [*GARBAGE, '{"memory list": "none"}', '{"memory list": [{"value": 7}]}', '{"memory list": [3]}']
)
def test_a_window_that_cannot_be_read_gives_no_memories(garbage: str) -> None:
    memory, _ = memos({READ: [garbage, memories("Ann has a dog.")]})
    with meter.metering() as ledger:
        feed(memory, [utterance(0), utterance(1, session="s2")])
    assert ledger.notes == {"memos.unread_window": 1}
    assert found(memory) == ["Ann has a dog."]
    assert memory.report()["user"]["unread_windows"] == 1


def test_memories_without_text_are_left_out() -> None:
    memory, _ = memos({READ: memories(" ", "Ann has a dog.", "")})
    assert found(feed(memory, [utterance(0)])) == ["Ann has a dog."]


def test_a_call_that_fails_for_good_is_not_hidden() -> None:
    memory, _ = memos({READ: ModelError("the endpoint is gone")})
    memory.write(utterance(0))
    with pytest.raises(ModelError):
        memory.end_session("s1")


# --- recall --------------------------------------------------------------------------------------------------------


def test_a_fast_search_makes_no_call() -> None:
    memory, llm = remembering("Ann has a dog.", "Ann has a cat.")
    count = len(llm.requests)
    found(memory)
    assert len(llm.requests) == count == 2


def test_a_recall_is_ranked_by_cosine_and_shows_no_time_unless_told_to() -> None:
    memory, _ = remembering("Ann has a cat.", "Ann has a dog.", "Bob sails.")
    items = memory.read(Question("q", "Who has a dog?")).items
    assert [item.text for item in items][:2] == ["Ann has a dog.", "Ann has a cat."]
    assert items[0].score > items[1].score > items[2].score
    assert (items[0].sources, items[0].kind, items[0].level) == (("t1",), "long_term", 1)
    dated = tuned(memory, {"timestamps": True})
    assert found(dated, "Who has a dog?")[0] == "[8 May] Ann has a dog."


def test_a_memory_stands_for_all_turns_of_its_window() -> None:
    memory, _ = memos()
    feed(memory, [utterance(number) for number in range(11)])
    sources = {node.id: node.sources for node in memory.nodes()}
    assert sources["user-0"] == tuple(f"t{number}" for number in range(10))
    assert sources["user-10"] == ("t8", "t9", "t10")


def test_each_view_gives_its_share_of_k() -> None:
    memory, _ = memos(views="both", k=7)
    feed(memory, [utterance(number) for number in range(9)])
    assert [item.id.split("-")[0] for item in memory.read(Question("q", "word3")).items] == ["user"] * 4 + [
        "assistant"
    ] * 3
    memory = tuned(memory, {"k": 1})
    assert len(found(memory)) == 1


def test_a_memory_counts_with_its_best_cosine_to_the_question_and_the_statements() -> None:
    table = {"near": (1, 0.2), "hers": (-0.2, 1), "neither": (0.6, -0.8), "q": (1, 0), "statement": (0, 1)}
    script = {READ: memories("near", "neither", "hers"), PARSE: json.dumps({"memories": ["statement"]})}
    memory, _ = memos(script, embedder=TableEmbedder(table), k=2)
    feed(memory, [utterance(0)])
    assert found(memory, "q") == ["near", "neither"]
    memory = tuned(memory, {"fine_parse": True})
    items = memory.read(Question("q", "q")).items
    assert [item.text for item in items] == ["near", "hers"]
    assert [item.score for item in items] == pytest.approx([1 / 1.04**0.5] * 2)


def test_of_each_store_twice_k_memories_are_candidates_and_repeated_texts_do_not_make_room() -> None:
    table = {"near": (1, 0), "next": (0.9, 0.4), "q": (1, 0)}
    for count, expected in ((3, ["near", "next"]), (4, ["near"])):
        memory, _ = memos({READ: memories(*["near"] * count, "next")}, embedder=TableEmbedder(table), k=2)
        assert found(feed(memory, [utterance(0)]), "q") == expected


def test_a_fine_search_is_one_call_for_each_view_and_shows_the_five_nearest_memories() -> None:
    script = {PARSE: json.dumps({"memories": []})}
    memory, llm = memos(script, views="both", fine_parse=True)
    feed(memory, [utterance(number) for number in range(9)])
    count = len(llm.requests)
    found(memory, "word3")
    assert llm.purposes[count:] == [PARSE] * 2
    for request in llm.requests[count:]:
        assert len(request.fields["context"]) == 5
        assert request.fields["context"][0] == "Bob: word3"


@pytest.mark.parametrize("garbage", [*GARBAGE, '{"memories": "k"}', '{"memories": [7]}'])
def test_a_question_that_cannot_be_parsed_is_searched_for_as_it_is(garbage: str) -> None:
    memory, _ = memos({PARSE: garbage})
    feed(memory, [utterance(number) for number in range(9)])
    plain = memory.read(Question("q", "word3"))
    memory = tuned(memory, {"fine_parse": True})
    with meter.metering() as ledger:
        assert memory.read(Question("q", "word3")) == plain
    assert ledger.notes == {"memos.fast_parse": 1}


def test_at_most_four_statements_are_searched_for_beside_the_question() -> None:
    class Remembering(HashingEmbedder):
        def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
            asked.extend(texts if query else ())
            return super().embed(texts, query=query)

    asked: list[str] = []
    parsed = {"memories": ["one", "q", "two", "one", " ", "three", "four", "five"]}
    memory, _ = memos({PARSE: json.dumps(parsed)}, embedder=Remembering(64), fine_parse=True)
    feed(memory, [utterance(0)])
    found(memory, "q")
    assert asked == ["q", "one", "two", "three", "four"]


def test_the_recall_differs_from_dense_retrieval() -> None:
    memory, _ = memos(k=3)
    dense = Dense(HashingEmbedder(512), k=3)
    units = [utterance(number, f"The boat needs paint {number % 2}.") for number in range(9)]
    feed(memory, units)
    for unit in units:
        dense.write(unit)
    assert len(found(memory, "boat")) == 2
    assert len(found(dense, "boat")) == 3


# --- reorganisation ------------------------------------------------------------------------------------------------


ALIKE = {"old": (1, 0), "new": (0.9, 0.43), "far": (0.7, 0.72), "both": (0.95, 0.3), "q": (1, 0)}


def pair(relation: Any, fuse: Any = "both", texts: Sequence[str] = ("old", "new")) -> tuple[MemOS, ScriptedLLM]:
    script = {RELATION: relation, FUSE: fuse}
    return remembering(*texts, script=script, embedder=TableEmbedder(ALIKE), reorganise=True)


def stored(memory: MemOS) -> list[str]:
    return [node.text for node in memory._current()[0].memories.values()]


@pytest.mark.parametrize("relation", ["contradictory", "Redundant."])
def test_memories_that_repeat_or_contradict_each_other_are_fused(relation: str) -> None:
    memory, llm = pair(relation)
    assert llm.purposes == [READ, READ, RELATION, FUSE]
    assert (llm.requests[2].fields["history"], llm.requests[2].fields["new"]) == ("old", "new")
    assert llm.requests[3].fields["texts"] == ("[7 May] old", "[8 May] new")
    assert stored(memory) == ["both"]
    node = next(node for node in memory.nodes() if node.text == "both")
    assert (node.sources, node.start, node.end) == (("t0", "t1"), START, START + timedelta(days=1))
    assert memory.report()["user"]["fused"] == 1


def test_independent_and_distant_memories_are_left_alone() -> None:
    memory, llm = pair("independent")
    assert llm.purposes == [READ, READ, RELATION]
    assert stored(memory) == ["old", "new"]
    memory, llm = pair("redundant", texts=("old", "far"))
    assert llm.purposes == [READ, READ]


def test_the_newer_of_two_that_cannot_be_fused_is_kept() -> None:
    memory, _ = pair("contradictory", " No. ")
    assert stored(memory) == ["new"]


@pytest.mark.parametrize("garbage", [*GARBAGE, "redundant contradictory", '{"relation": "redundant"}'])
def test_an_unclear_relation_is_none(garbage: str) -> None:
    with meter.metering() as ledger:
        memory, llm = pair(garbage)
    assert ledger.notes == {"memos.unknown_relation": 1}
    assert FUSE not in llm.purposes
    assert stored(memory) == ["old", "new"]


def test_where_the_fusion_is_empty_both_stay() -> None:
    with meter.metering() as ledger:
        memory, _ = pair("redundant", "")
    assert ledger.notes == {"memos.not_fused": 1}
    assert stored(memory) == ["old", "new"]


def test_a_memory_is_compared_with_the_five_nearest() -> None:
    memory, llm = remembering(
        *["old"] * 6, "new", script={RELATION: "independent"}, embedder=TableEmbedder(ALIKE), reorganise=True
    )
    assert llm.purposes.count(RELATION) == 1 + 2 + 3 + 4 + 5 + 5
    assert memory.held == 7


def structured(groups: Any, parent: Any = None, count: int = 20) -> tuple[MemOS, ScriptedLLM]:
    """That many memories in one window, which the clustering leaves together."""
    texts = [f"memory{number}" for number in range(count)]
    script = {
        READ: memories(*texts),
        SPLIT: groups if isinstance(groups, str) else json.dumps({"groups": [{"title": "x", "ids": ids} for ids in groups]}),
        PARENT: parent if parent is not None else (lambda request: json.dumps({"value": f"all of {request.fields['texts'][0]}"})),
    }  # fmt: skip
    memory, llm = memos(script, reorganise=True)
    return feed(memory, [utterance(0)]), llm


def test_four_groups_of_five_get_parents_and_those_one_of_their_own() -> None:
    memory, llm = structured([list(range(first, first + 5)) for first in (1, 6, 11, 16)])
    assert llm.purposes == [READ, SPLIT, *[PARENT] * 5]
    assert llm.requests[2].fields["texts"] == [f"memory{number}" for number in range(5)]
    nodes = {node.text: node for node in memory.nodes()}
    assert nodes["memory7"].parents == (nodes["all of memory5"].id,)
    assert nodes["all of memory5"].parents == (nodes["all of all of memory0"].id,)
    assert [nodes[text].level for text in ("memory0", "all of memory0", "all of all of memory0")] == [1, 2, 3]
    assert memory.report()["user"]["parents"] == 5
    assert found(memory, "all of memory5")[0] == "all of memory5"


def test_groups_of_three_get_no_parent_and_three_parents_none_of_their_own() -> None:
    _, llm = structured([[1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17]])
    assert llm.purposes == [READ, SPLIT, *[PARENT] * 3]


def test_ids_that_do_not_exist_or_are_taken_are_dropped_and_groups_have_ten_members_at_most() -> None:
    _, llm = structured([[1, 2, 3, 4, 77, -1, 4], [4, 3, 2, 5], list(range(6, 21))])
    assert [len(request.fields["texts"]) for request in llm.requests if request.purpose == PARENT] == [4, 10]


def test_fewer_than_twenty_memories_are_not_structured() -> None:
    _, llm = structured([[1, 2, 3, 4]], count=19)
    assert llm.purposes == [READ]


@pytest.mark.slow
def test_structure_is_looked_at_again_after_twenty_more_memories() -> None:
    script = {READ: lines, RELATION: "independent", SPLIT: json.dumps({"groups": []})}
    memory, llm = memos(script, reorganise=True, window=5, overlap=0)
    places = []
    for number in range(60):
        memory.write(utterance(number, f"unique{number} thing{number}"))
        places += [number] if SPLIT in llm.purposes else []
        llm.requests.clear()
    assert places == [19, 39, 59]


@pytest.mark.parametrize("garbage", [*GARBAGE, '{"groups": [{"ids": "1"}]}'])
def test_groups_that_cannot_be_read_are_none(garbage: str) -> None:
    with meter.metering() as ledger:
        memory, _ = structured(garbage)
    assert ledger.notes == {"memos.no_groups": 1}
    assert memory.held == 20


@pytest.mark.parametrize("garbage", [*GARBAGE, '{"value": " "}', '{"value": 3}'])
def test_a_parent_that_cannot_be_read_is_none(garbage: str) -> None:
    with meter.metering() as ledger:
        memory, _ = structured([[1, 2, 3, 4]], garbage)
    assert ledger.notes == {"memos.no_parent": 1}
    assert memory.held == 20
    assert not any(node.parents for node in memory.nodes())


def test_clusters_hold_at_most_twenty_and_every_row_once() -> None:
    rng = np.random.default_rng(0)
    centres = normalised(rng.normal(size=(3, 8)))
    rows = normalised(np.concatenate([centre + 0.01 * rng.normal(size=(15, 8)) for centre in centres])).astype(
        np.float32
    )
    clusters = partition(rows)
    assert sorted(row for cluster in clusters for row in cluster) == list(range(45))
    assert sorted(map(sorted, clusters)) == [list(range(first, first + 15)) for first in (0, 15, 30)]
    assert partition(rows) == clusters
    assert [len(cluster) for cluster in partition(np.ones((45, 4), dtype=np.float32))] == [20, 20, 5]


def test_reorganising_without_scikit_learn_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("memsys.systems.memos.find_spec", lambda name: None if name == "sklearn" else real(name))
    memos()
    with pytest.raises(ImportError, match="scikit-learn"):
        memos(reorganise=True)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("overlap", 10), ("overlap", -1), ("window", 2)])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        memos(**{name: value})

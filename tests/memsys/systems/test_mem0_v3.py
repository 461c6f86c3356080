from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError
from memsys.prompts import Prompts
from memsys.systems.bm25 import bm25_index, bm25_scores, words
from memsys.systems.dense import Dense
from memsys.systems.mem0_v3 import (
    KeywordIndex,
    Mem0V3,
    boost,
    content_terms,
    entities,
    entity_key,
    fused,
    pool_size,
    squashed,
    text_hash,
)

EXTRACT = "mem0_v3.extract"


class Cosines:
    """Texts with a given cosine to the query; every other text has an axis of its own (the query's is the first)."""

    def __init__(self, table: Mapping[str, float]) -> None:
        self._table, self._axes = table, dict[str, int]()

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        rows = np.zeros((len(texts), 200), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text in self._table:
                row[0], row[1] = self._table[text], (1 - self._table[text] ** 2) ** 0.5
            else:
                row[self._axes.setdefault(text, 2 + len(self._axes))] = 1
        return rows


def unit(number: int, text: str = "Hello.", day: int = 7, role: Any = "user") -> Unit:
    return Unit(f"u{number}", (Turn(f"t{number}", "Ann", text, role),), "s1", datetime(2023, 5, day), f"{day} May 2023")


def reply(*texts: str, **more: Any) -> str:
    return json.dumps({"memory": [{"id": str(n), "text": text, **more} for n, text in enumerate(texts)]})


def memory(*replies: str, **settings: Any) -> tuple[Mem0V3, ScriptedLLM]:
    """A memory that has taken in one unit for each reply, consolidated."""
    llm = ScriptedLLM({EXTRACT: list(replies)})
    held = with_settings(Mem0V3, {"embedder": HashingEmbedder(256), **settings})(llm=llm, prompts=Prompts())
    for number in range(len(replies)):
        held.write(unit(number))
    held.consolidate()
    return held, llm


def texts(held: Mem0V3) -> list[str]:
    return [node.text for node in held.nodes() if node.kind != "entity"]


def linked(held: Mem0V3) -> dict[str, list[str]]:
    """Entity names, with the texts of the memories that they are linked to."""
    nodes = list(held.nodes())
    return {
        entity.text: [node.text for node in nodes if entity.id in node.parents]
        for entity in nodes
        if entity.kind == "entity"
    }


def scores(held: Mem0V3, question: str) -> dict[str, float]:
    return {item.text.partition("] ")[2]: item.score for item in held.read(Question("q", question)).items}


# --- worked numbers ----------------------------------------------------------------------------------------------------


def indexed(*said: str) -> KeywordIndex:
    index = KeywordIndex()
    for text in said:
        index.add(content_terms(text))
    return index


def test_the_keyword_channel_has_the_constants_of_the_reference() -> None:
    """Qdrant's BM25 vectors as mem0ai 2.2.1 makes them: k1 1.2, b .75, average length 256, numerator k1 + 1, idf of the store.

    Of four memories one holds `kayak` twice among three terms, two hold `lake`.
    """
    index = indexed("kayak kayak lake", "the lake", "bread", "bread oven")
    kayak = math.log(1 + 3.5 / 1.5) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 256))
    lake = math.log(1 + 2.5 / 2.5)
    alone, in_two, in_three = (2.2 / (1 + 1.2 * (0.25 + 0.75 * length / 256)) for length in (1, 2, 3))
    asked = [(kayak + lake * in_three) * in_two, lake * alone * in_two, 0, 0]
    assert index.scores(["kayak", "lake"]).tolist() == pytest.approx(asked)
    assert index.scores(["canoe"]).tolist() == [0] * 4


def test_a_question_is_weighted_like_a_memory_of_its_length() -> None:
    """mem0ai 2.2.1 encodes both with fastembed's `embed`; `query_embed` would weight every term of a question by 1."""
    index = indexed("bread", "kayak")
    idf, in_memory = math.log(2), 2.2 / (1 + 1.2 * (0.25 + 0.75 / 256))
    once = 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / 256))
    twice = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 256))
    assert index.scores(["kayak", "heron", "lake"])[1] == pytest.approx(idf * in_memory * once)
    assert index.scores(["kayak", "heron", "kayak"])[1] == pytest.approx(idf * in_memory * twice)


def test_the_squashing_sees_the_scores_that_it_is_calibrated_on() -> None:
    """A memory that holds all three names of a question is as good as certain; scored with k1 1.5, the real average length, no
    numerator and the stop words of the question among its nine terms, it stays under the midpoint of the curve."""
    names = "kayak heron lighthouse".split()
    said = [f"{' '.join(names)} number{n}" if n == 0 else f"remark number{n} on bread" for n in range(60)]
    question = "which kayak did the heron see at the lighthouse"
    before = bm25_scores(bm25_index([words(text) for text in said], 1.5, 0.75), words(question), len(said))
    after = indexed(*said).scores(content_terms(question))
    assert squashed(before[:1], len(words(question)))[0] < 0.5
    assert squashed(after[:1], len(content_terms(question)))[0] > 0.99


def test_stop_words_are_dropped_before_the_terms_of_a_question_are_counted() -> None:
    """The reference counts what its lemmatiser leaves; ten words of which four say something take the curve for six."""
    assert content_terms("When did the two of them see Mara's kayaks?") == ["two", "see", "mara", "kayak"]
    question, text = "When did the two of them see Mara's kayaks?", "Mara has kayaks."
    held, _ = memory(reply(text), embedder=Cosines({question: 1.0, text: 0.62}), entities="none")
    raw = indexed(text).scores(["two", "see", "mara", "kayak"])
    assert scores(held, question)[text] == pytest.approx((0.62 + squashed(raw, 4)[0]) / 2, abs=1e-6)


def test_keyword_scores_are_squashed_by_the_number_of_terms() -> None:
    assert squashed(np.array([7.5]), 5) == pytest.approx(0.5744, abs=1e-4)
    middles = {0: 5, 3: 5, 4: 7, 6: 7, 7: 9, 9: 9, 10: 10, 15: 10, 16: 12, 400: 12}
    for terms, middle in middles.items():
        assert squashed(np.array([middle]), terms) == pytest.approx(0.5), terms
    steepness = {3: 0.7, 6: 0.6, 9: 0.5, 15: 0.5, 16: 0.5}
    for terms, steep in steepness.items():
        assert squashed(np.array([middles[terms] + 1]), terms) == pytest.approx(1 / (1 + np.exp(-steep))), terms


def test_the_boost_of_an_entity_falls_with_the_number_of_its_memories() -> None:
    assert boost(0.8, 1) == pytest.approx(0.4)
    assert boost(0.8, 5) == pytest.approx(0.3937, abs=1e-4)


def test_the_fused_score_is_the_sum_over_what_it_could_be_in_this_search() -> None:
    one = fused(np.array([0.62]), np.array([0.5744]), np.array([0.4]))
    assert one == pytest.approx(0.6378, abs=1e-4)
    assert fused(np.array([0.62]), np.array([0.5744]), np.zeros(1)) == pytest.approx(0.5972, abs=1e-4)
    assert fused(np.array([0.62]), np.zeros(1), np.zeros(1)) == pytest.approx(0.62)
    # What one memory has counts in the divisor of the others.
    assert fused(np.array([0.62, 0.5]), np.array([0, 0.5]), np.zeros(2))[0] == pytest.approx(0.31)
    assert fused(np.array([1.0]), np.array([0.99]), np.array([0.6])) <= 1


def test_the_pool_is_four_times_k_and_at_least_sixty() -> None:
    assert [pool_size(k) for k in (1, 10, 15, 16, 20)] == [60, 60, 60, 64, 80]


# --- extraction --------------------------------------------------------------------------------------------------------


def test_a_unit_is_one_call_and_a_question_none() -> None:
    held, llm = memory(reply("Ann sings."), reply(), reply("Ann paints.", "Ann has a cat."))
    assert llm.purposes == [EXTRACT] * 3
    held.read(Question("q", "Who sings?"))
    assert len(llm.requests) == 3
    assert held.report()["units_without_memories"] == 1


def test_a_unit_without_text_makes_no_call() -> None:
    held, llm = memory()
    held.write(unit(0, " \n"))
    assert (llm.requests, held.held) == ([], 0)


def test_the_prompt_shows_numbered_memories_the_last_messages_cut_and_the_date_of_the_unit() -> None:
    held, llm = memory(*[reply(f"Ann has {n} cats.") for n in range(12)])
    llm._queues[EXTRACT] = iter([reply(), reply()])
    held.write(unit(12, "x" * 300 + "y"))
    held.write(unit(13, "How many cats?", day=9))
    sent = llm.requests[-1].messages[-1][1]
    # "user (Ann): " is part of the message.
    assert f"user (Ann): {'x' * 288}…\n</earlier>" in sent
    assert sent.count("user (Ann): Hello.") == 9
    assert "<dialogue>\nuser (Ann): How many cats?\n</dialogue>" in sent
    assert "Observation date: 9 May 2023" in sent
    assert [option.label for option in llm.requests[-1].fields["memories"]] == [str(n) for n in range(10)]
    assert "<earlier>\n(none)\n</earlier>" in llm.requests[0].messages[-1][1]
    assert "<memories>\n(none)\n</memories>" in llm.requests[0].messages[-1][1]


def test_who_said_it_is_the_kind_of_the_item() -> None:
    replies = [
        reply("Try basil.", attributed_to="assistant"),
        reply("Ann sings.", attributed_to="Ann"),
        reply("Ann has bees."),
    ]
    held, _ = memory(*replies)
    assert [node.kind for node in held.nodes() if node.level == 1] == ["assistant_fact", "user_fact", "user_fact"]


def test_the_ids_of_related_memories_are_ignored() -> None:
    plain, _ = memory(reply("Ann sings."), reply("Ann paints."))
    with_links, _ = memory(reply("Ann sings."), reply("Ann paints.", linked_memory_ids=["0", 77]))
    question = Question("q", "What does Ann paint?")
    assert with_links.read(question) == plain.read(question)


@pytest.mark.parametrize(
    "garbage", ["", "Sure!", "```json {", "[]", "{}", '{"memory": [{"text": 3}]}', '{"memory": ["Ann sings."]}']
)
def test_a_reply_that_cannot_be_read_adds_nothing(garbage: str) -> None:
    with meter.metering() as ledger:
        held, _ = memory(reply("Ann sings."), garbage)
    assert texts(held) == ["Ann sings."]
    assert ledger.notes == {"mem0_v3.no_memories": 1}
    assert ledger.parse_failures == {EXTRACT: 1}


def test_memories_without_text_are_left_out() -> None:
    held, _ = memory('{"memory": [{"id": "0"}, {"text": "  "}, {"text": "Ann sings."}]}')
    assert texts(held) == ["Ann sings."]


def test_a_call_that_fails_for_good_is_not_hidden_and_adds_nothing() -> None:
    llm = ScriptedLLM({EXTRACT: ModelError("the endpoint is gone")})
    held = Mem0V3(llm=llm, embedder=HashingEmbedder(256), prompts=Prompts())
    with pytest.raises(ModelError):
        held.write(unit(0))
    assert held.held == 0


# --- repetitions -------------------------------------------------------------------------------------------------------


def test_the_same_text_twice_in_a_reply_is_one_memory() -> None:
    held, _ = memory(reply("Ann sings.", "Ann sings."))
    assert texts(held) == ["Ann sings."]
    assert held.report()["repetitions"] == 1


def test_a_repetition_of_a_memory_that_was_shown_is_dropped() -> None:
    held, _ = memory(reply("Ann sings."), reply("Ann sings."))
    assert held.held == 1


def test_a_repetition_of_a_memory_that_was_not_shown_stays() -> None:
    # Each unit says "Hello."; the nearest memory is the one shown.
    held, _ = memory(reply("Ann said hello.", "Ann sings."), reply("Ann sings."), neighbours=1)
    assert texts(held) == ["Ann said hello.", "Ann sings.", "Ann sings."]


@pytest.mark.parametrize(("hashing", "count"), [("raw", 2), ("normalised", 1)])
def test_only_normalised_hashes_overlook_case_and_white_space(hashing: str, count: int) -> None:
    held, _ = memory(reply("Ann sings.", " ann  SINGS."), hashing=hashing)
    assert held.held == count


def test_the_hash_is_the_md5_of_the_text_in_utf8() -> None:
    assert text_hash("Zoë", normalise=False) == "fb44af73417cf03c023d098e7f07c114"
    assert text_hash(" ZOË\n", normalise=True) == text_hash("zoë", normalise=False)


# --- entities ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Yesterday Ann flew to New York with Ben's aunt.", ["Ann", "New York", "Ben"]),
        ("When did Mara read the Lord of the Rings?", ["Mara", "Lord of the Rings"]),
        ('I\'m reading "A Pale Boat" on Monday, 7 May.', ["A Pale Boat"]),
        ("Her flight LH455 left from gate B12 in the 90s.", ["LH455", "B12"]),
        ("She joined a pottery class and the new club.", ["pottery class"]),
        ("what is it? It was ok.", []),
        (f'He said "{"x" * 101}".', []),
        ("Ann: Thanks, I met Zoë Ångström there.", ["Ann", "Zoë Ångström"]),
    ],
)
def test_entities_are_found_by_rules(text: str, names: list[str]) -> None:
    assert entities(text) == names


def test_where_spans_overlap_the_earlier_type_wins() -> None:
    assert entities('They saw "Boat 42 in Rome" twice.') == ["Boat 42 in Rome"]


def test_names_that_differ_in_case_and_white_space_are_one_entity() -> None:
    assert entity_key("Rome") == entity_key("rome ") == entity_key(" ROME")
    held, _ = memory(reply("They flew to Rome.", 'The file is called "rome ".'))
    assert linked(held) == {"Rome": ["They flew to Rome.", 'The file is called "rome ".']}


def test_a_memory_is_linked_once_to_an_entity_that_it_names_twice() -> None:
    held, _ = memory(reply("They love Rome, and in Rome they stay."))
    assert held.report()["entity_links"] == 1


@pytest.mark.parametrize(("cosine", "rows"), [(0.96, 1), (0.94, 2)])
def test_a_name_that_is_nearly_that_of_an_entity_is_linked_to_it(cosine: float, rows: int) -> None:
    held, _ = memory(reply("They saw Rome."), reply("They left Roma."), embedder=Cosines({"Rome": 1.0, "Roma": cosine}))
    found = linked(held)
    assert len(found) == rows
    assert found["Rome"] == ["They saw Rome.", "They left Roma."][: 3 - rows]


def test_without_entities_nothing_is_linked() -> None:
    held, _ = memory(reply("They saw Rome."), entities="none")
    assert linked(held) == {}


# --- recall ------------------------------------------------------------------------------------------------------------


def test_a_memory_with_an_entity_of_the_question_is_boosted() -> None:
    one, other = "They saw Rome.", "They went away."
    table = {"the question is Rome?": 1.0, one: 0.5, other: 0.5}
    held, _ = memory(reply(one, other), embedder=Cosines(table))
    found = scores(copy.copy(held), "the question is Rome?")
    keyword = squashed(indexed(one, other).scores(["question", "rome"]), 2)
    assert found[one] == pytest.approx((0.5 + keyword[0] + 0.5) / 2.5, abs=1e-6)
    assert found[other] == pytest.approx(0.5 / 2.5, abs=1e-6)


def test_of_several_entities_the_strongest_boost_counts() -> None:
    near, far = "They left Oslo for Rome.", "They left Oslo."
    table = {"Who is from Rome or Oslo?": 1.0, near: 0.5, far: 0.5}
    held, _ = memory(reply(near, far), embedder=Cosines(table))
    found = held._boosts("Who is from Rome or Oslo?")
    np.testing.assert_allclose(found, [boost(1, 1), boost(1, 2)])


@pytest.mark.parametrize(("cosine", "boosted"), [(0.51, True), (0.49, False)])
def test_an_entity_counts_from_a_similarity_of_one_half(cosine: float, boosted: bool) -> None:
    held, _ = memory(reply("They left Roma."), embedder=Cosines({"Rome": 1.0, "Roma": cosine}))
    assert held._boosts("Where is Rome?").any() == boosted


def test_only_eight_entities_of_a_question_are_looked_up() -> None:
    held, _ = memory(reply("They left Oslo."), embedder=Cosines({}))
    eight = "Bonn, Cork, Dover, Essen, Faro, Genoa, Hull, Izmir"
    assert not held._boosts(f"Where are {eight} and Oslo?").any()
    assert held._boosts(f"Where are {eight.removeprefix('Bonn, ')} and Oslo?").any()


def test_a_memory_below_the_threshold_is_dropped_whatever_else_it_has() -> None:
    table = {"Where is Rome?": 1.0, "Rome is Rome.": 0.09, "They left.": 0.11}
    held, _ = memory(reply("Rome is Rome.", "They left."), embedder=Cosines(table))
    assert list(scores(held, "Where is Rome?")) == ["They left."]
    held = tuned(held, {"threshold": 0.05})
    assert list(scores(held, "Where is Rome?")) == ["Rome is Rome.", "They left."]


def test_what_is_not_among_the_most_similar_is_no_candidate() -> None:
    said = {f"Text {n}": 0.9 - n / 100 for n in range(60)}
    table = {"Where is Rome?": 1.0, "Rome is Rome.": 0.2, **said}
    held, _ = memory(reply(*said, "Rome is Rome."), embedder=Cosines(table), k=10)
    assert "Rome is Rome." not in scores(held, "Where is Rome?")
    wider = tuned(held, {"k": 16})
    assert next(iter(scores(wider, "Where is Rome?"))) == "Rome is Rome."


def test_exactly_k_are_recalled_and_equal_scores_go_to_the_earlier_memory() -> None:
    said = {f"Text {n}": 0.5 for n in range(20)}
    held, _ = memory(reply(*said), embedder=Cosines({"q": 1.0, **said}), k=7)
    assert [item.id for item in held.read(Question("q", "q")).items] == [f"memory-{n}" for n in range(7)]


def test_equal_scores_go_to_the_earlier_memory_though_it_is_less_similar() -> None:
    table = {"q": 1.0, "Text 0": 0.3, "Text 1": 0.6}
    held, _ = memory(reply("Text 0", "Text 1"), embedder=Cosines(table), fusion="weighted", weights=(0, 0, 1))
    assert list(scores(held, "q")) == ["Text 0", "Text 1"]


def test_the_weighted_fusion_weighs_each_channel_between_zero_and_one() -> None:
    one, other = "They saw Rome.", "They went away."
    table = {"the question is Rome?": 1.0, one: 0.62, other: 0.3}
    held, _ = memory(reply(one, other), embedder=Cosines(table), fusion="weighted")
    keyword = squashed(indexed(one, other).scores(["question", "rome"]), 2)
    found = scores(held, "the question is Rome?")
    assert found == pytest.approx({one: 0.7 * 0.62 + 0.2 * keyword[0] + 0.1, other: 0.7 * 0.3}, abs=1e-6)


def test_a_memory_has_its_keyword_score_as_soon_as_it_is_written() -> None:
    """As in the reference, whose store is searched as it stands."""
    held, llm = memory(
        reply("Ann sings in Oslo."), embedder=Cosines({"sings": 1.0, "Ann sings in Oslo.": 0.5, "She sings.": 0.5})
    )
    llm._queues[EXTRACT] = iter([reply("She sings.")])
    held.write(unit(1))
    before = scores(held, "sings")
    assert before["She sings."] > 0.25
    held.consolidate()
    assert scores(held, "sings") == before


def test_an_item_shows_the_date_of_its_unit_and_names_its_turns() -> None:
    held, _ = memory(reply("Ann sings."))
    (item,) = held.read(Question("q", "Who sings?")).items
    assert (item.text, item.sources) == ("[7 May 2023] Ann sings.", ("t0",))


def test_keywords_and_entities_change_the_order_of_dense_retrieval() -> None:
    said = ["Someone bought it for the garden.", "Pavel has it."]
    table = {"What has Pavel?": 1.0, said[0]: 0.6, said[1]: 0.5}
    embedder = Cosines({**table, **{f"Ann: {text}": table[text] for text in said}})
    held, _ = memory(*map(reply, said), embedder=embedder)
    dense = Dense(embedder)
    for number, text in enumerate(said):
        dense.write(unit(number, text))
    question = Question("q", "What has Pavel?")
    assert [item.sources for item in dense.read(question).items] == [("t0",), ("t1",)]
    assert [item.sources for item in held.read(question).items] == [("t1",), ("t0",)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("neighbours", 0), ("window", 0)],
)
def test_nonsense_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        memory(**{setting: value})

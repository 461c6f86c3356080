from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.sparse import csr_array
from scripted import Script, ScriptedLLM, TableEmbedder

import memsys.systems.hipporag
from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.hipporag import HippoRag, normalised_phrase, pagerank, phrase_weights, synonyms, undirected
from memsys.vectors import scaled

CONF = Path(__file__).parents[3] / "conf" / "memory"
ASKED = Question("q", "asked")
GARBAGE = ("", "Sure, here it is.", '{"', "[]", "{}", '{"named_entities": 3, "triples": [1], "facts": [{}]}')

Stated = Sequence[Sequence[Any]]


def unit(text: str, number: int = 0, day: int = 1) -> Unit:
    turns = (Turn(f"t{number}", "", text),)
    return Unit(f"u{number}", turns, "s1", datetime(2023, 5, day), f"{day} May 2023")


def reply(facts: Sequence[str]) -> str:
    return json.dumps({"facts": facts})


class Counting:
    """The hashing embedder, remembering how many texts it was given."""

    def __init__(self) -> None:
        self.texts = 0
        self._inner = HashingEmbedder(4096)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.texts += len(texts)
        return self._inner.embed(texts, query=query)


def memory(
    passages: Mapping[str, Stated],
    *,
    vectors: Mapping[str, Sequence[float]] | None = None,
    kept: Script = '{"facts": []}',
    named: Script = '{"named_entities": []}',
    **settings: Any,
) -> tuple[HippoRag, ScriptedLLM]:
    """A memory of passages, each with the triples that the model reads in it."""
    script: dict[str, Script] = {
        "hipporag.entities": '{"named_entities": ["X"]}',
        "hipporag.triples": lambda request: json.dumps({"triples": passages[request.fields["text"]]}),
        "hipporag.filter": kept,
        "hipporag.question_entities": named,
    }
    llm = ScriptedLLM(script)
    embedder = (
        HashingEmbedder(256)
        if vectors is None
        else TableEmbedder(vectors, HashingEmbedder(len(next(iter(vectors.values())))))
    )
    made = with_settings(HippoRag, settings)(llm=llm, embedder=embedder, prompts=Prompts())
    for number, text in enumerate(passages):
        made.write(unit(text, number))
    made.consolidate()
    return made, llm


def axis(*places: int, size: int = 16) -> list[float]:
    return [float(place in places) for place in range(size)]


PARIS = {"P0": [["Alice", "visits", "Paris"]], "P1": [["Bob", "visits", "Paris"]]}
PARIS_VECTORS = {
    "P0": axis(0), "P1": axis(1), "alice": axis(2), "paris": axis(3), "bob": axis(4), "asked": axis(0, 5),
    "('alice', 'visits', 'paris')": axis(5), "('bob', 'visits', 'paris')": axis(6),
}  # fmt: skip
FIRST = reply(["(alice, visits, paris)"])


def scores(made: HippoRag, question: Question = ASKED) -> dict[str, float]:
    return {item.id: item.score for item in made.read(question).items}


def dense_scores(passages: Mapping[str, Stated], vectors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    dense = Dense(TableEmbedder(vectors))
    for number, text in enumerate(passages):
        dense.write(unit(text, number))
    items = dense.read(ASKED).items
    low, high = min(item.score for item in items), max(item.score for item in items)
    return {item.id: (item.score - low) / (high - low) for item in items}


# --- phrases -----------------------------------------------------------------------------------------------------------


def test_a_phrase_keeps_letters_digits_and_single_or_double_spaces() -> None:
    assert normalised_phrase("St. John's-2") == normalised_phrase("St. John's-2", "code") == "st  john s 2"


def test_other_scripts_keep_their_letters_in_paper_mode_and_collapse_in_code_mode() -> None:
    assert normalised_phrase("Éva lebt in हिन्दी!") == "éva lebt in हिन्दी"
    assert normalised_phrase("Éva", "code") == "va"
    assert normalised_phrase("東京", "code") == ""


def test_a_triple_with_an_empty_end_is_left_out_in_paper_mode_only() -> None:
    stated = {"P": [["東京", "is", "…"], ["東京", "is", "big"]]}
    assert memory(stated)[0].report()["facts"] == 1
    assert memory(stated, mode="code")[0].report()["facts"] == 2


# --- the walk ----------------------------------------------------------------------------------------------------------


def paris_graph(fact: float) -> csr_array[Any]:
    """alice, paris, bob, P0, P1 with passage edges of 1."""
    weights = np.zeros((5, 5))
    for one, other, weight in ((0, 1, fact), (2, 1, fact), (3, 0, 1), (3, 1, 1), (4, 2, 1), (4, 1, 1)):
        weights[one, other] = weights[other, one] = weight
    return csr_array(weights)


@pytest.mark.parametrize(
    ("fact", "expected"),
    [(2, (0.41148, 0.36118, 0.07066, 0.11481, 0.04188)), (1, (0.40323, 0.32903, 0.05484, 0.15806, 0.05484))],
)
def test_the_worked_example_has_the_published_ranks(fact: float, expected: Sequence[float]) -> None:
    found = pagerank(paris_graph(fact), np.array([1.0, 0.5, 0, 0.05, 0]), 0.5)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_walk_over_what_was_written_has_the_worked_ranks() -> None:
    made, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=FIRST)
    assert scores(made) == pytest.approx({"u0": 0.11481, "u1": 0.04188}, abs=1e-5)


@pytest.mark.parametrize("damping", [0.1, 0.5, 0.9])
def test_the_walk_equals_networkx_also_where_it_cannot_go_on(damping: float) -> None:
    import networkx

    random = np.random.default_rng(3)
    weights = np.triu(random.random((40, 40)) * (random.random((40, 40)) < 0.08), 1)
    weights[:, [7, 11]] = weights[[7, 11], :] = 0  # isolated nodes, one of them seeded
    weights += weights.T
    reset = random.random(40) * (random.random(40) < 0.3)
    reset[7] = 0.4
    graph = networkx.from_numpy_array(weights)
    theirs = networkx.pagerank(graph, alpha=damping, personalization=dict(enumerate(reset)), tol=1e-12, max_iter=1000)
    assert pagerank(csr_array(weights), reset, damping) == pytest.approx([theirs[node] for node in range(40)], abs=1e-9)


def test_ranks_sum_to_one_and_do_not_depend_on_the_size_of_the_seeds() -> None:
    reset = np.array([1.0, 0.5, 0, 0.05, 0])
    once = pagerank(paris_graph(2), reset, 0.5)
    assert once.sum() == pytest.approx(1)
    assert pagerank(paris_graph(2), 17 * reset, 0.5) == pytest.approx(once)


# --- edges -------------------------------------------------------------------------------------------------------------


def test_a_relation_weighs_two_for_each_statement_of_it() -> None:
    made, _ = memory(
        {"P0": [["a", "likes", "b"], ["b", "helps", "a"], ["a", "likes", "a"]], "P1": [["a", "likes", "b"]]}
    )
    assert made._graph is not None
    weights = made._graph.weights.toarray()
    assert weights[0, 1] == weights[1, 0] == 6
    assert weights[0, 0] == 0
    assert weights[2:, :2].tolist() == [[1, 1], [1, 1]]


def cosines(*values: float) -> np.ndarray:
    return np.array([[value, math.sqrt(1 - value**2)] for value in values], dtype=np.float32)


def test_synonymy_overwrites_the_count_of_that_ordered_pair_only() -> None:
    # "ab" is too short to look for synonyms but is found as one.
    near = synonyms(cosines(1, 0.9), ["abc", "ab"], 0.8)
    assert near.toarray() == pytest.approx(np.array([[0, 0.9], [0, 0]]))
    made, _ = memory({"P0": [["abc", "is", "ab"]]}, vectors={"abc": (1, 0), "ab": cosines(0.9)[0]})
    assert made._graph is not None
    assert made._graph.weights.toarray()[0, 1] == pytest.approx(1 + 0.9)


def test_mutual_synonyms_weigh_twice_their_cosine() -> None:
    near = synonyms(cosines(1, 0.9), ["abc", "abd"], 0.8)
    counts = Counter({(0, 1): 5, (1, 0): 5})
    assert undirected(counts, near, 2).toarray() == pytest.approx(np.array([[0, 1.8], [1.8, 0]]))


def test_synonyms_are_at_least_as_near_as_the_threshold_and_never_the_empty_phrase() -> None:
    near = synonyms(cosines(1, 0.81, 0.79, 1), ["first", "second", "third", ""], 0.8).toarray()
    assert (near[0] > 0).tolist() == [False, True, False, False]
    assert not near[3].any()


def test_a_phrase_has_101_synonyms_at_most_the_nearest_first() -> None:
    nearness = [1.0] + [0.95 if place % 2 else 0.9 for place in range(150)]
    near = synonyms(cosines(*nearness), [f"name {place}" for place in range(151)], 0.8).toarray()
    kept = np.flatnonzero(near[0])
    assert len(kept) == 101
    nearest = [1 + place for place in range(150) if place % 2]
    others = [1 + place for place in range(150) if not place % 2]
    assert set(kept) == set(nearest) | set(others[:26])


def test_synonyms_found_block_by_block_are_those_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"lamp {place % 7} of hall {place % 5}" for place in range(60)]
    vectors = HashingEmbedder(64).embed(names)
    whole = synonyms(vectors, names, 0.8)
    monkeypatch.setattr(memsys.systems.hipporag, "_BLOCK", 7)
    parts = synonyms(vectors, names, 0.8)
    assert whole.nnz == parts.nnz > 60
    assert parts.toarray() == pytest.approx(whole.toarray())


# --- seeds -------------------------------------------------------------------------------------------------------------


def test_a_phrase_is_seeded_by_the_mean_of_score_over_number_of_its_passages() -> None:
    mentions = np.array([4, 1, 1])
    assert phrase_weights(np.array([[0, 1]]), np.array([0.8]), mentions).tolist() == pytest.approx([0.2, 0.8, 0])
    both = phrase_weights(np.array([[0, 1], [2, 0]]), np.array([0.8, 0.4]), mentions)
    assert both[0] == pytest.approx((0.2 + 0.1) / 2)


def seeds_of(made: HippoRag, monkeypatch: pytest.MonkeyPatch, question: Question = ASKED) -> np.ndarray:
    seen: list[np.ndarray] = []

    def record(weights: csr_array[Any], reset: np.ndarray, damping: float) -> np.ndarray:
        seen.append(reset.copy())
        return pagerank(weights, reset, damping)

    monkeypatch.setattr(memsys.systems.hipporag, "pagerank", record)
    made.read(question)
    return seen[0]


def many(count: int) -> dict[str, Stated]:
    return {f"passage {place}": [[f"person {place}", "asked for", f"thing {place}"]] for place in range(count)}


def all_shown(request: Request) -> str:
    return reply(request.fields["facts"])


def test_the_five_strongest_phrases_and_all_passages_are_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    made, llm = memory(many(12), kept=all_shown, max_facts=9)
    seeds = seeds_of(made, monkeypatch, Question("q", "Person 1, person 2, person 3, person 4, person 5 or person 6?"))
    assert len(llm.requests[-1].fields["facts"]) == 5  # with ten phrases
    assert np.count_nonzero(seeds[:24]) == 5
    assert seeds[24:].max() == pytest.approx(0.05)
    assert seeds[24:].min() == 0
    assert np.count_nonzero(seeds[24:]) > 5


def test_a_chosen_fact_with_the_lowest_score_breaks_nothing() -> None:
    made, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=reply(["(bob, visits, paris)"]))
    found = scores(made)
    assert found["u0"] > found["u1"] > 0


def test_without_any_seed_passages_are_ranked_by_similarity() -> None:
    made, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=reply(["(bob, visits, paris)"]), passage_weight=0.0)
    assert scores(made) == {"u0": 1.0, "u1": 0.0}


# --- recognition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ['{"facts": []}', *GARBAGE])
def test_without_a_fact_the_ranking_is_the_dense_one(said: str) -> None:
    made, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=said)
    with meter.metering() as ledger:
        assert scores(made) == pytest.approx(dense_scores(PARIS, PARIS_VECTORS))
    assert ledger.notes["hipporag.dense_passages"] == (said != '{"facts": []}')


def test_the_filter_sees_the_nearest_facts_and_may_keep_four() -> None:
    made, llm = memory(many(12), kept=all_shown)
    made.read(Question("q", "thing 3"))
    shown = llm.requests[-1]
    assert shown.fields["facts"][0] == "(person 3, asked for, thing 3)"
    assert shown.fields["limit"] == 4
    assert "\n(person 3, asked for, thing 3)\n" in shown.messages[-1][1]


def test_no_more_facts_are_kept_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = memory(many(12), kept=all_shown, max_facts=1, linking_top_k=9)
    assert np.count_nonzero(seeds_of(made, monkeypatch)[:24]) == 2


def test_a_fact_that_is_no_candidate_stands_for_the_most_similar_one() -> None:
    exact, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=FIRST)
    for told in ('["alice visited paris"]', '[["alice", "visits", "paris"]]'):
        near, _ = memory(PARIS, vectors=PARIS_VECTORS, kept=f'{{"facts": {told}}}')
        assert scores(near) == scores(exact)


def test_a_fact_named_twice_counts_twice_in_code_mode_only() -> None:
    stated = {"P0": [["alice", "knows", "paris"], ["bob", "knows", "alice"]], "P1": [["carl", "knows", "dora"]]}
    vectors = {
        "P0": axis(0), "P1": axis(1), "asked": (4, 0, 4, 3, *axis(size=12)), "('alice', 'knows', 'paris')": axis(2),
        "('bob', 'knows', 'alice')": axis(3), "('carl', 'knows', 'dora')": axis(9),
    }  # fmt: skip
    first, second = "(alice, knows, paris)", "(bob, knows, alice)"

    def found(mode: str, *facts: str) -> dict[str, float]:
        return scores(memory(stated, vectors=vectors, kept=reply(facts), mode=mode)[0])

    assert found("paper", first, first, second) == found("paper", first, second)
    assert found("code", first, first, second) != pytest.approx(found("code", first, second))


def test_a_passage_two_steps_away_is_recalled_before_a_similar_one() -> None:
    passages = {
        "The ferry of Okke is green.": [["okke", "owns", "green ferry"]],
        "The green ferry sails from Halmby.": [["green ferry", "sails from", "halmby"]],
        "What does Okke eat?": [["lunch", "is", "soup"]],
    }
    asked = Question("q", "Where does the boat of Okke sail from?")
    made, _ = memory(passages, kept=reply(["(okke, owns, green ferry)"]), k=2)
    dense = Dense(HashingEmbedder(256), k=2)
    for number, text in enumerate(passages):
        dense.write(unit(text, number))
    assert {item.id for item in dense.read(asked).items} != {"u0", "u1"}
    assert {item.id for item in made.read(asked).items} == {"u0", "u1"}


# --- version 1 ---------------------------------------------------------------------------------------------------------

THREE_AND_ONE = {
    "P0": [["stella", "likes", "milk"]],
    "P1": [["stella", "likes", "tea"], ["stella", "owns", "boat"], ["stella", "sings", "songs"]],
    "P2": [["rover", "likes", "bones"]],
}


def test_a_passage_with_three_facts_about_the_seed_beats_one_with_a_single_fact() -> None:
    made, _ = memory(THREE_AND_ONE, version=1, named='{"named_entities": ["Stella!"]}')
    assert [item.id for item in made.read(ASKED).items] == ["u1", "u0", "u2"]


def test_a_passage_of_version_1_scores_the_rank_of_the_ends_of_its_facts() -> None:
    import networkx

    made, _ = memory(THREE_AND_ONE, version=1, named='{"named_entities": ["Stella"]}')
    graph = networkx.Graph()
    for subject, _, other in (fact for facts in THREE_AND_ONE.values() for fact in facts):
        graph.add_edge(subject, other, weight=2)
    rank = networkx.pagerank(graph, alpha=0.5, personalization={"stella": 1}, tol=1e-12)
    raw = [sum(rank[end] for s, _, o in facts for end in (s, o)) for facts in THREE_AND_ONE.values()]
    assert scores(made) == pytest.approx(dict(zip(("u0", "u1", "u2"), scaled(np.array(raw), flat=1.0), strict=True)))


def test_a_seed_of_version_1_weighs_one_over_the_number_of_its_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = memory(THREE_AND_ONE, version=1, named='{"named_entities": ["STELLA", "stella", "rover"]}')
    assert made._graph is not None
    seeds = dict(zip(made._graph.phrases, seeds_of(made, monkeypatch).tolist(), strict=True))
    assert {phrase: seed for phrase, seed in seeds.items() if seed} == {"stella": 0.5, "rover": 1.0}


@pytest.mark.parametrize("named", ['{"named_entities": []}', '{"named_entities": ["…"]}', *GARBAGE])
def test_a_question_that_names_nothing_finds_all_passages_alike(named: str) -> None:
    made, _ = memory(THREE_AND_ONE, version=1, named=named)
    with meter.metering() as ledger:
        assert scores(made) == {"u0": 1.0, "u1": 1.0, "u2": 1.0}
    assert ledger.notes["hipporag.all_passages_alike"] == (named in GARBAGE)


# --- writing -----------------------------------------------------------------------------------------------------------


def test_a_passage_costs_two_calls_and_a_question_one() -> None:
    for version, step in ((2, "filter"), (1, "question_entities")):
        made, llm = memory(PARIS, version=version)
        assert llm.purposes == ["hipporag.entities", "hipporag.triples"] * 2
        made.read(ASKED)
        assert llm.purposes[4:] == [f"hipporag.{step}"]


@pytest.mark.parametrize("version", [1, 2])
def test_without_facts_a_question_costs_no_call(version: int) -> None:
    made, llm = memory({"P0": [], "P1": []}, version=version)
    assert len(made.read(ASKED).items) == 2
    assert len(llm.requests) == 4


def test_the_triples_are_asked_for_with_the_passage_and_its_entities() -> None:
    _, llm = memory(PARIS)
    shown = llm.requests[1].messages[-1][1]
    assert "<passage>\nP0\n</passage>" in shown
    assert '["X"]' in shown


def test_only_triples_of_three_parts_count_and_each_once() -> None:
    stated: list[list[Any]] = [
        ["Ann", "is", 7],
        ["Ann", "is", 7],
        ["Ann", "is", "7"],
        ["Ann", "is"],
        ["a", "b", "c", "d"],
        ["ann", "is", "7!"],
    ]
    made, _ = memory({"P0": stated})
    assert made._graph is not None
    assert made._graph.facts == ("(ann, is, 7)",)
    assert made._graph.weights.toarray()[0, 1] == 4  # two statements, as the model wrote two


@pytest.mark.parametrize("stage", ["entities", "triples"])
@pytest.mark.parametrize("said", GARBAGE)
def test_a_failed_extraction_is_counted_and_leaves_the_passage_findable(stage: str, said: str) -> None:
    script = {"hipporag.entities": '{"named_entities": []}', "hipporag.triples": '{"triples": [["a", "b", "c"]]}'}
    llm = ScriptedLLM(script | {f"hipporag.{stage}": said, "hipporag.filter": '{"facts": []}'})
    made = HippoRag(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
    with meter.metering() as ledger:
        made.write(unit("P0"))
    made.consolidate()
    assert ledger.notes == {f"hipporag.no_{stage}": 1}
    assert made.report()[f"no_{stage}"] == 1
    assert made.report()["facts"] == (stage == "entities")
    assert [item.id for item in made.read(ASKED).items] == ["u0"]


def test_a_reply_that_was_cut_off_gives_the_triples_before_the_cut() -> None:
    llm = ScriptedLLM(
        {
            "hipporag.entities": '{"named_entities": ["Ann"]}',
            "hipporag.triples": '{"triples": [["a", "b", "c"], ["d", "e',
        }
    )
    made = HippoRag(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
    made.write(unit("P0"))
    made.consolidate()
    assert made.report() == {"passages": 1, "phrases": 2, "facts": 1, "synonyms": 0, "no_entities": 0, "no_triples": 0}


def test_the_same_passage_again_changes_nothing_but_its_turns_and_times() -> None:
    made, llm = memory(PARIS, vectors=PARIS_VECTORS, kept=FIRST)
    before, calls, held = scores(made), len(llm.requests), made.held
    made.write(unit("P0", 9, day=20))
    made.consolidate()
    assert len(llm.requests) == calls
    assert (scores(made), made.held) == (before, held)
    item = made.read(ASKED).items[0]
    assert (item.text, item.sources) == ("[1 May 2023 – 20 May 2023] P0", ("t0", "t9"))


def test_a_failed_call_fails_the_write() -> None:
    made = HippoRag(llm=ScriptedLLM(ModelError("down")), embedder=HashingEmbedder(64), prompts=Prompts())
    with pytest.raises(ModelError):
        made.write(unit("P0"))


def test_a_build_between_two_writes_leaves_no_trace() -> None:
    passages = {f"P{place}": [[f"lamp {place % 4}", "hangs in", f"hall {place % 3}"]] for place in range(20)}
    at_once, _ = memory(passages, kept=all_shown)
    stepwise, _ = memory({}, kept=all_shown)
    stepwise.llm = at_once.llm
    for number, text in enumerate(passages):
        stepwise.write(unit(text, number))
        stepwise.consolidate()
    assert scores(stepwise) == scores(at_once)
    assert stepwise.report() == at_once.report()


@pytest.mark.slow
def test_writing_four_times_as_much_costs_four_times_as_much() -> None:
    """The vocabulary grows with the history, as names do; the product of all phrases is the one quadratic step."""

    def costs(count: int) -> tuple[int, int, int]:
        llm = ScriptedLLM(
            {
                "hipporag.entities": '{"named_entities": []}',
                "hipporag.triples": lambda request: json.dumps(
                    {"triples": [[f"{request.fields['text']} {part}", "meets", "everybody"] for part in "abc"]}
                ),
            }
        )
        embedder = Counting()
        made = HippoRag(llm=llm, embedder=embedder, prompts=Prompts())
        for number in range(count):
            made.write(unit(f"q{number * 7919}x", number))
        made.consolidate()
        assert made._graph is not None
        return len(llm.requests), embedder.texts, made._graph.weights.nnz

    for small, large in zip(costs(40), costs(160), strict=True):
        assert 3.9 * small < large < 4.1 * small


# --- structure and settings --------------------------------------------------------------------------------------------


def test_phrases_are_the_parents_of_the_passages_that_mention_them() -> None:
    made, _ = memory(PARIS)
    nodes = {node.id: node for node in made.nodes()}
    assert {node.text: node.sources for node in nodes.values() if node.kind == "phrase"} == {
        "alice": ("t0",), "paris": ("t0", "t1"), "bob": ("t1",),
    }  # fmt: skip
    assert [nodes[parent].text for parent in nodes["u1"].parents] == ["paris", "bob"]


@pytest.mark.parametrize("name", ["hipporag", "hipporag1"])
def test_the_files_hold_the_settings_of_segtreemem_appendix_e(name: str) -> None:
    build = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))["build"]
    wanted = {"k": 10, "damping": 0.5, "synonymy": 0.8, "linking_top_k": 5, "max_facts": 4, "passage_weight": 0.05}
    assert {key: build[key] for key in wanted} == wanted
    assert build["version"] == (2 if name == "hipporag" else 1)


@pytest.mark.parametrize("setting", [{"version": 3}, {"damping": 1.0}, {"synonymy": 0.0}, {"passage_weight": -1.0}])
def test_nonsense_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        with_settings(HippoRag, setting)(llm=ScriptedLLM(""), embedder=HashingEmbedder(8), prompts=Prompts())

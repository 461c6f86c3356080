from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import graspologic_native
import numpy as np
import pytest
import yaml
from scripted import Script, ScriptedLLM

import memsys.systems.graphrag
from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import Item, Recall, tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.graphrag import NO_ANSWER, GraphRag
from memsys.systems.graphrag.graph import (
    Community,
    Entity,
    Relationship,
    Tables,
    communities,
    finalised,
    merged,
    parse_records,
    text_units,
)
from memsys.tokens import count_tokens

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf" / "memory"
GARBAGE = ("", "Sure, here it is.", '{"', "[]", "{}", '{"entities": 3, "relationships": "none", "points": [{}]}')
NOTHING = '{"entities": [], "relationships": []}'
POINT = '{"points": [{"description": "The ferry is green.", "score": 70}]}'

Facts = Mapping[str, Sequence[tuple[str, str]] | Sequence[tuple[str, str, float]]]


def unit(text: str, number: int = 0, session: str = "s1", speaker: str = "") -> Unit:
    turn = Turn(f"t{number}", speaker, text)
    return Unit(f"u{number}", (turn,), session, datetime(2023, 5, 1 + number % 28), f"{1 + number % 28} May 2023")


def graph_json(entities: Iterable[Sequence[str]] = (), relationships: Iterable[Sequence[Any]] = ()) -> str:
    nodes = [{"title": title, "type": kind, "description": text} for title, kind, text in entities]
    edges = [{"source": a, "target": b, "description": text, "strength": s} for a, b, text, s in relationships]
    return json.dumps({"entities": nodes, "relationships": edges})


def named(*titles: str) -> list[tuple[str, str, str]]:
    return [(title, "person", f"{title} is known.") for title in titles]


def linked(*pairs: tuple[str, str]) -> list[tuple[str, str, str, float]]:
    return [(one, other, f"{one} knows {other}.", 1.0) for one, other in pairs]


def report_of(request: Request) -> str:
    rows = [
        row.split(" | ")[1] for row in request.fields["texts"].split("\n") if row.count(" | ") == 3 and row[0].isdigit()
    ]
    finding = {"summary": "They meet.", "explanation": "Every day."}
    return json.dumps(
        {"title": " and ".join(sorted(rows)[:3]), "summary": "A group.", "rating": 5, "findings": [finding]}
    )


def scripted(**replies: Script) -> ScriptedLLM:
    usual: dict[str, Script] = {
        "extract": NOTHING, "glean": NOTHING, "describe": "Joined.", "report": report_of, "map": POINT, "reduce": "Green.",
    }  # fmt: skip
    return ScriptedLLM({f"graphrag.{step}": reply for step, reply in (usual | replies).items()})


def memory(
    said: Mapping[str, str], settings: Mapping[str, Any] | None = None, **replies: Script
) -> tuple[GraphRag, ScriptedLLM]:
    """A memory of text units (each a unit), each with the graph that the model finds in it."""
    llm = scripted(**({"extract": lambda request: said[request.fields["text"]]} | replies))
    chosen = {"chunk_tokens": None} | dict(settings or {})
    made = with_settings(GraphRag, chosen)(llm=llm, embedder=HashingEmbedder(512), prompts=Prompts())
    for number, text in enumerate(said):
        made.write(unit(text, number))
    made.consolidate()
    return made, llm


def clique(letter: str, size: int = 5) -> list[tuple[str, str]]:
    return list(itertools.combinations([f"{letter}{place}" for place in range(size)], 2))


def cliques(*letters: str, size: int = 5) -> str:
    """Cliques in a row, each joined to the next by one edge."""
    pairs = [pair for letter in letters for pair in clique(letter, size)]
    pairs += [(f"{one}0", f"{other}0") for one, other in itertools.pairwise(letters)]
    return graph_json(named(*sorted({end for pair in pairs for end in pair})), linked(*pairs))


def kinds(made: GraphRag, text: str = "Who knows A0?") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in made.read(Question("q", text)).items:
        found.setdefault(item.kind, []).append(item.text.split("] ", 1)[-1])
    return found


# --- text units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "windows"), [(1, 1), (1200, 1), (1201, 2), (2300, 2), (2301, 3)])
def test_windows_of_1200_tokens_step_by_1100_until_the_text_is_covered(tokens: int, windows: int) -> None:
    text = "tea" + " tea" * (tokens - 1)
    assert count_tokens(text, "cl100k_base") == tokens
    made = text_units([unit(text)], 1200, 100, "cl100k_base")
    assert len(made) == windows
    assert all(count_tokens(one.text, "cl100k_base") <= 1200 for one in made)


def test_a_window_repeats_the_end_of_the_one_before_and_names_the_turns_that_it_holds() -> None:
    said = [unit(f"{name} sat there all day", place, speaker=name) for place, name in enumerate(["Ann", "Bob", "Cy"])]
    whole = "\n".join(one.text for one in said)
    made = text_units(said, 8, 4, "cl100k_base")
    starts = [whole.index(one.text) for one in made]
    stops = [start + len(one.text) for start, one in zip(starts, made, strict=True)]
    assert (starts[0], stops[-1], len(made)) == (0, len(whole), 5)
    for stop, start in zip(stops, starts[1:], strict=False):
        assert count_tokens(whole[start:stop], "cl100k_base") == 4
    for one, start, stop in zip(made, starts, stops, strict=True):
        held = [
            turn for turn in said if start < whole.index(turn.text) + len(turn.text) and whole.index(turn.text) < stop
        ]
        assert one.sources == tuple(turn.turns[0].id for turn in held)


def test_a_window_that_holds_no_character_of_a_turn_is_left_out() -> None:
    made = text_units([unit("tea", 0), unit("ice", 1)], 1, 0, "cl100k_base")
    assert [(one.text, one.sources) for one in made] == [("tea", ("t0",)), ("ice", ("t1",))]


def test_no_window_crosses_sessions() -> None:
    made = text_units([unit("one", 0, "s1"), unit("two", 1, "s1"), unit("three", 2, "s2")], 1200, 100, "cl100k_base")
    assert [(one.text, one.sources) for one in made] == [("one\ntwo", ("t0", "t1")), ("three", ("t2",))]


# --- parsing and merging -----------------------------------------------------------------------------------------------


def test_records_are_read_with_names_made_regular() -> None:
    found = parse_records(
        '("entity"<|>a&amp;b<|>org<|>x)##  ##("relationship"<|>a&amp;b<|>c\x07d<|>they meet<|>7)\n##\n'
        '("relationship"<|>c<|>d<|>why<|>very)##(\'entity\'<|>c<|>person)##("relationship"<|>c<|>d)##chatter<|COMPLETE|>'
    )
    assert found.entities == (("A&B", "ORG", "x"),)
    assert found.relationships == (("A&B", "CD", "they meet", 7.0), ("C", "D", "why", 1.0))


@pytest.mark.parametrize("strength", ["nan", "inf", "-2", "0", "strong", -7])
def test_a_weight_that_is_no_positive_number_is_one(strength: Any) -> None:
    made, _ = memory({"P": graph_json(named("A", "B"), [("A", "B", "met", strength)])})
    assert [edge.weight for edge in made._graph.relationships] == [1.0]


def test_the_same_pair_in_two_text_units_is_one_edge_of_summed_weight() -> None:
    made, _ = memory(
        {
            "P0": graph_json(named("A", "B"), [("a", "b", "They meet.", 3)]),
            "P1": graph_json(named("A", "B"), [("A", "B", "They meet.", 4)]),
        }
    )
    (edge,) = made._graph.relationships
    assert (edge.weight, edge.units) == (7.0, (0, 1))


def test_degree_counts_a_pair_once_whatever_its_direction() -> None:
    made, _ = memory({"P": graph_json(named("A", "B", "C"), linked(("A", "B"), ("B", "A"), ("B", "C"), ("C", "C")))})
    assert {entity.title: entity.degree for entity in made._graph.entities} == {"A": 1, "B": 2, "C": 1}
    assert [edge.combined_degree for edge in made._graph.relationships] == [3, 3, 3]


def test_an_unknown_end_is_a_blank_entity_in_paper_mode_and_drops_the_relationship_in_code_mode() -> None:
    said = {"P": graph_json(named("A"), linked(("A", "GHOST")))}
    paper, code = (memory(said, {"mode": mode})[0]._graph for mode in ("paper", "code"))
    assert [(entity.title, entity.description) for entity in paper.entities] == [("A", "A is known."), ("GHOST", "")]
    assert ([entity.title for entity in code.entities], code.relationships) == (["A"], ())


def test_of_two_types_of_one_title_the_first_is_kept() -> None:
    found = [parse_records('("entity"<|>A<|>geo<|>A town.)##("entity"<|>A<|>person<|>A man.)')]
    entities, relationships = merged(found, blank_ends=True)
    nodes, _ = finalised(entities, relationships, ["A town.", "A man."])
    assert [(node.title, node.description) for node in nodes] == [("A", "A town.")]


@pytest.mark.parametrize(("texts", "calls"), [(("x", "x"), 0), (("y", "x"), 1), (("", "x"), 0), (("x", "y", "z"), 1)])
def test_descriptions_are_joined_by_one_call_when_two_differ(texts: Sequence[str], calls: int) -> None:
    said = {f"P{place}": graph_json([("A", "person", text)]) for place, text in enumerate(texts)}
    made, llm = memory(said)
    assert llm.purposes.count("graphrag.describe") == calls
    assert made._graph.entities[0].description == ("Joined." if calls else "x")
    if calls:
        asked = next(request for request in llm.requests if request.purpose == "graphrag.describe")
        assert asked.fields["texts"] == sorted(set(texts))


def test_descriptions_that_do_not_fit_one_prompt_go_on_from_the_summary() -> None:
    said = {f"P{place}": graph_json([("A", "person", f"{place}" + " tea" * 30)]) for place in range(5)}
    _, llm = memory(said, {"description_tokens": 100})
    packs = [request.fields["texts"] for request in llm.requests if request.purpose == "graphrag.describe"]
    assert [[text[0] for text in pack] for pack in packs] == [["0", "1", "2"], ["J", "3", "4"]]


# --- communities -------------------------------------------------------------------------------------------------------


def levels(made: GraphRag) -> list[tuple[int, list[str]]]:
    titles = [entity.title for entity in made._graph.entities]
    return [(one.level, [titles[place] for place in one.entities]) for one in made._graph.communities.values()]


@pytest.mark.parametrize("cap", [10, 4])
def test_two_cliques_are_two_communities_also_when_they_exceed_the_cap(cap: int) -> None:
    made, _ = memory({"P": cliques("A", "B")}, {"max_cluster_size": cap})
    assert levels(made) == [(0, ["A0", "A1", "A2", "A3", "A4"]), (0, ["B0", "B1", "B2", "B3", "B4"])]


def random_graph(size: int = 80, degree: int = 4, seed: int = 5) -> tuple[list[Entity], list[Relationship]]:
    rng = np.random.default_rng(seed)
    nodes = [Entity(f"N{place:02}", "", (0,), degree) for place in range(size)]
    pairs = {tuple(sorted(map(int, rng.choice(size, 2, replace=False)))) for _ in range(size * degree // 2)}
    return nodes, [Relationship(one, other, "", 1.0, (0,), 2 * degree) for one, other in sorted(pairs)]


def test_communities_nest_and_have_ids_of_their_own_and_keep_to_the_cap_where_they_can_be_divided() -> None:
    nodes, edges = random_graph()
    found = communities(nodes, edges, 5)
    assert max(one.level for one in found.values()) >= 1
    divided = {one.parent for one in found.values()}
    for name, one in found.items():
        assert one.id == name
        assert len(one.entities) <= 5 or name in divided
        assert one.relationships == tuple(
            place for place, edge in enumerate(edges) if {edge.source, edge.target} <= set(one.entities)
        )
        if one.parent is not None:
            assert set(one.entities) < set(found[one.parent].entities)
            assert found[one.parent].level == one.level - 1
    for level in {one.level for one in found.values()}:
        members = [entity for one in found.values() if one.level == level for entity in one.entities]
        assert len(members) == len(set(members))


def test_leiden_gets_sorted_edges_of_last_weights_and_the_released_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(**settings: Any) -> list[Any]:
        given.update(settings)
        return []

    monkeypatch.setattr(graspologic_native, "hierarchical_leiden", record)
    nodes = [Entity(title, "", (0,), 1) for title in "CAB"]
    weighed = [(0, 1, 2.0), (2, 1, 5.0), (1, 0, 3.0)]
    assert communities(nodes, [Relationship(a, b, "", weight, (0,), 2) for a, b, weight in weighed], 10) == {}
    assert given == {
        "edges": [("A", "B", 5.0), ("A", "C", 3.0)], "starting_communities": None, "resolution": 1.0, "randomness": 0.001,
        "iterations": 1, "use_modularity": True, "max_cluster_size": 10, "seed": 0xDEADBEEF,
    }  # fmt: skip


def test_a_minor_component_has_no_community_but_is_found_by_its_entities() -> None:
    said = {"P0": cliques("A"), "P1": graph_json(named("OKKE", "HALMBY"), linked(("OKKE", "HALMBY")))}
    made, _ = memory(said)
    assert levels(made) == [(0, ["A0", "A1", "A2", "A3", "A4"])]
    assert made.report()["outside"] == 2
    item = made.read(Question("q", "Who is Okke?")).items
    assert {one.id for one in item} >= {"entity-5", "relationship-10", "text-1"}
    everywhere, _ = memory(said, {"use_lcc": False})
    assert len(everywhere._graph.communities) == 2


def test_communities_are_the_same_whatever_the_direction_of_relationships() -> None:
    nodes, edges = random_graph()
    turned = [Relationship(e.target, e.source, "", e.weight, e.units, e.combined_degree) for e in edges]
    assert communities(nodes, edges, 10) == communities(nodes, turned, 10)


# --- reports -----------------------------------------------------------------------------------------------------------


def test_reports_are_written_from_the_deepest_level_up_one_call_for_each_community() -> None:
    nodes, edges = random_graph()
    said = graph_json(
        [(n.title, "x", "known") for n in nodes],
        linked(*((nodes[e.source].title, nodes[e.target].title) for e in edges)),
    )
    made, llm = memory({"P": said}, {"max_cluster_size": 5})
    asked = [request for request in llm.requests if request.purpose == "graphrag.report"]
    order = sorted(made._graph.communities.values(), key=lambda one: -one.level)
    assert len(asked) == len(order) == len(made._graph.reports)
    shown = [len([row for row in one.fields["texts"].split("\n") if row.count(" | ") == 3]) - 1 for one in asked]
    connected = [len({end for e in one.relationships for end in (edges[e].source, edges[e].target)}) for one in order]
    assert shown == connected


def parent_and_children(words: int) -> tuple[list[Entity], list[Relationship], dict[int, Community]]:
    """One community of two cliques of six, the second with the longer rows."""
    nodes = [Entity(f"N{place}", "tea " * (words + place), (0,), 5) for place in range(12)]
    pairs = [*itertools.combinations(range(6), 2), *itertools.combinations(range(6, 12), 2), (0, 6)]
    edges = [Relationship(one, other, "met " * 20, 1.0, (0,), 10 + (other == 5)) for one, other in pairs]
    whole = Community(0, 0, None, tuple(range(12)), tuple(range(31)))
    first = Community(1, 1, 0, tuple(range(6)), tuple(range(15)))
    second = Community(2, 1, 0, tuple(range(6, 12)), tuple(range(15, 30)))
    return nodes, edges, {0: whole, 1: first, 2: second}


def tables(words: int, budget: int = 8000, as_released: bool = False) -> tuple[Tables, dict[int, Community]]:
    nodes, edges, divided = parent_and_children(words)
    return Tables(nodes, edges, divided, budget, "cl100k_base", as_released), divided


REPORTS = {1: "first report " + "ice " * 490, 2: "second report " + "sea " * 490}


def test_a_community_whose_tables_fit_is_shown_whole_without_reports() -> None:
    made, divided = tables(words=100)
    text = made.context(divided[0], REPORTS)
    assert "report" not in text.replace("Reports", "")
    assert text.count("\n") == 2 - 1 + 12 + 31


def test_the_largest_sub_community_s_report_stands_in_when_the_tables_are_too_long() -> None:
    made, divided = tables(words=650)
    assert count_tokens(tables(words=650, budget=100_000)[0].context(divided[0], {}), "cl100k_base") > 8000
    text = made.context(divided[0], REPORTS)
    assert "second report" in text
    assert "first report" not in text
    assert {row.split(" | ")[1] for row in text.split("\n") if row.count(" | ") == 3 and row[0].isdigit()} == {
        f"N{place}" for place in range(6)
    }
    assert count_tokens(text, "cl100k_base") <= 8000


def test_both_reports_stand_in_when_one_is_not_enough_and_no_more_than_fit() -> None:
    made, divided = tables(words=1500)
    text = made.context(divided[0], REPORTS)
    assert text.startswith("Reports:\nsecond report")
    assert "\nfirst report" in text
    assert "Entities" not in text
    short = tables(words=1500, budget=700)[0].context(divided[0], REPORTS)
    assert ("second report" in short, "first report" in short) == (True, False)


def test_tables_without_sub_reports_are_cut_off_by_combined_degree() -> None:
    made, divided = tables(words=650)
    text = made.context(divided[0], {})
    assert count_tokens(text, "cl100k_base") <= 8000
    first = text[text.index("Relationships") :].split("\n")[1]
    assert first.startswith("4 | N0 | N5")
    assert first.endswith("| 11")


def test_as_released_an_entity_shows_one_relationship_and_reports_never_stand_in() -> None:
    made, divided = tables(words=650, as_released=True)
    assert "report" not in made.context(divided[0], REPORTS).replace("Reports", "")
    whole = tables(words=1, as_released=True)[0].context(divided[1], {})
    rows = [row.split(" | ")[:3] for row in whole[whole.index("Relationships") :].split("\n")[1:]]
    # The first outgoing one of N0 to N4, and for N5, which has none, the first incoming.
    assert sorted(rows) == sorted(
        [
            ["0", "N0", "N1"],
            ["5", "N1", "N2"],
            ["9", "N2", "N3"],
            ["12", "N3", "N4"],
            ["14", "N4", "N5"],
            ["4", "N0", "N5"],
        ]
    )


def test_a_report_is_title_summary_and_findings_under_headings() -> None:
    made, _ = memory({"P": cliques("A")})
    (report,) = made._graph.reports.values()
    assert report.content == "# A0 and A1 and A2\n\nA group.\n\n## They meet.\n\nEvery day."
    assert report.rating == 5.0


# --- calls -------------------------------------------------------------------------------------------------------------


def test_a_build_costs_two_calls_a_text_unit_one_for_several_descriptions_and_one_a_community() -> None:
    other = graph_json([("A0", "person", "A0 is old.")], [("A0", "A1", "A0 likes A1.", 2)])
    made, llm = memory({"P0": cliques("A", "B"), "P1": other, "P2": NOTHING})
    assert Counter(llm.purposes) == {
        "graphrag.extract": 3, "graphrag.glean": 3, "graphrag.describe": 2, "graphrag.report": 2,
    }  # fmt: skip
    steps = [step for step, _ in itertools.groupby(llm.purposes)]
    assert steps == ["graphrag.extract", "graphrag.glean", "graphrag.describe", "graphrag.report"]
    before = len(llm.requests)
    made.read(Question("q", "Who knows A0?"))
    assert len(llm.requests) == before


def test_a_gleaning_shows_the_text_and_what_was_found_and_adds_to_it() -> None:
    made, llm = memory({"P": graph_json(named("A"))}, glean=graph_json(named("B"), linked(("A", "B"))))
    shown = llm.requests[1].messages[-1][1]
    assert "<text>\nP\n</text>" in shown
    assert '"title": "A"' in shown
    assert [entity.title for entity in made._graph.entities] == ["A", "B"]


def test_before_a_further_gleaning_the_model_must_answer_exactly_y() -> None:
    said = {"P0": NOTHING, "P1": NOTHING, "P2": NOTHING}
    _, llm = memory(said, {"gleanings": 3}, more=["Y", "N", "Yes", "Y"])
    asked = [(request.purpose.split(".")[1], request.fields.get("text")) for request in llm.requests]
    assert asked == [
        *(("extract", text) for text in said), *(("glean", text) for text in said), *(("more", text) for text in said),
        ("glean", "P0"), ("more", "P0"), ("glean", "P0"),
    ]  # fmt: skip


def test_without_gleanings_a_text_unit_costs_one_call() -> None:
    _, llm = memory({"P0": NOTHING, "P1": NOTHING}, {"gleanings": 0})
    assert llm.purposes == ["graphrag.extract"] * 2


def test_delimited_records_are_asked_for_and_read_as_released() -> None:
    records = '("entity"<|>okke<|>person<|>A man.)##("relationship"<|>okke<|>halmby<|>lives there<|>3)<|COMPLETE|>'
    llm = ScriptedLLM(
        {"graphrag.extract_records": records, "graphrag.glean_records": "<|COMPLETE|>", "graphrag.report": report_of}
    )
    made = with_settings(GraphRag, {"format": "records"})(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
    made.write(unit("Okke lives in Halmby."))
    made.consolidate()
    assert [entity.title for entity in made._graph.entities] == ["OKKE", "HALMBY"]
    assert llm.purposes == ["graphrag.extract_records", "graphrag.glean_records", "graphrag.report"]


def test_the_types_and_the_time_stand_in_the_prompt() -> None:
    _, llm = memory({"P": NOTHING}, {"entity_types": ["ship", "port"]})
    assert "ship, port" in llm.requests[0].messages[0][1]
    assert "Time of the text: 1 May 2023" in llm.requests[0].messages[1][1]


# --- local search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.15, {"report": 1800, "entity": 4200, "text": 6000}), (0.1, {"report": 1200, "entity": 4800, "text": 6000})],
)
def test_the_budget_is_split_among_reports_tables_and_text(
    share: float, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = memory({"P": cliques("A")}, {"community_share": share})
    budgets: dict[str, int] = {}
    within = memsys.systems.graphrag.first_within

    def record(items: Iterable[Item], budget: int, size: Callable[[Item], int]) -> list[Item]:
        kept = within(items, budget, size)
        budgets[kept[0].kind] = budget
        return kept

    monkeypatch.setattr(memsys.systems.graphrag, "first_within", record)
    made.read(Question("q", "Who knows A0?"))
    assert budgets == expected


def test_reports_come_first_then_entities_then_relationships_then_texts() -> None:
    made, _ = memory({"P": cliques("A", "B")})
    assert list(kinds(made)) == ["report", "entity", "relationship", "text"]


@pytest.mark.parametrize("mode", ["paper", "code"])
def test_a_local_search_of_either_release_starts_from_twice_the_ten_entities(mode: str) -> None:
    """Releases 0.3.6 and 3.1.2 ask for top_k x 2 entities and never cut back to top_k."""
    made, _ = memory({"P": graph_json(named(*(f"M{place}" for place in range(30))))}, {"mode": mode})
    assert len(kinds(made)["entity"]) == 20


def rated(request: Request) -> str:
    """A report that rates C highest."""
    return json.dumps(json.loads(report_of(request)) | {"rating": 9 if " | C1 | " in request.fields["texts"] else 1})


def test_the_community_with_most_matches_comes_first_then_the_higher_rated() -> None:
    made, _ = memory({"P": cliques("A", "B", "C")}, report=rated)
    places = {entity.title: place for place, entity in enumerate(made._graph.entities)}

    def found(*titles: str) -> list[str]:
        reports = made._nearby_reports([places[title] for title in titles])
        return [report.text.split("# ")[1][0] for report in reports]

    assert found("B1", "B2", "C1") == ["B", "C"]
    assert found("B1", "C1", "A1") == ["C", *sorted(["A", "B"], key=found("A1", "B1").index)]
    assert found("A1") == ["A"]


def test_the_first_report_that_does_not_fit_ends_the_reports() -> None:
    def long_first(request: Request) -> str:
        report = json.loads(report_of(request))
        return json.dumps(report | {"summary": "long " * (2000 if " | A1 | " in request.fields["texts"] else 5)})

    made, _ = memory({"P": cliques("A", "B")}, {"top_entities": 6}, report=long_first)
    question = "A0 A1 A2 A3 A4 is known B1"
    assert "report" not in kinds(made, question)
    made = tuned(made, {"max_tokens": 30_000})
    assert len(kinds(made, question)["report"]) == 2


def star() -> GraphRag:
    """Selected S1 and S2 know each other; both know X, S1 knows Y (of high degree) and Z."""
    pairs = [
        ("S1", "Z"),
        ("S1", "Y"),
        ("S1", "X"),
        ("S2", "X"),
        ("S1", "S2"),
        ("Y", "Q1"),
        ("Y", "Q2"),
        ("Y", "Q3"),
        ("Y", "Q4"),
    ]
    titles = sorted({end for pair in pairs for end in pair})
    made, _ = memory({"P": graph_json(named(*titles), linked(*pairs))})
    return made


def around(made: GraphRag, *titles: str) -> list[str]:
    graph = made._graph
    places = {place for place, entity in enumerate(graph.entities) if entity.title in titles}
    edges = [graph.relationships[edge] for edge in made._around(places)]
    return [f"{graph.entities[edge.source].title}-{graph.entities[edge.target].title}" for edge in edges]


def test_relationships_inside_the_selection_come_first_then_the_best_linked_then_the_best_connected() -> None:
    assert around(star(), "S1", "S2") == ["S1-S2", "S1-X", "S2-X", "S1-Y", "S1-Z"]


def test_relationships_that_lead_outside_are_limited_for_each_selected_entity() -> None:
    made = star()
    made = tuned(made, {"top_relationships": 1})
    assert around(made, "S1", "S2") == ["S1-S2", "S1-X", "S2-X"]
    assert around(made, "S1") == ["S1-Y"]


def test_the_relationship_table_grows_entity_by_entity_until_it_exceeds_its_budget() -> None:
    made = star()
    places = {entity.title: place for place, entity in enumerate(made._graph.entities)}
    chosen, similarities = [places["Z"], places["S1"]], np.ones(len(places))
    whole = made._tables(chosen, similarities, 10_000)
    assert [item.kind for item in whole] == ["entity"] * 2 + ["relationship"] * 4
    both = sum(count_tokens(item.text, "cl100k_base") for item in whole[:2])
    # With S1 the table would have four rows of more than ten tokens each.
    cut = made._tables(chosen, similarities, both + 25)
    assert [item.text.split("] ")[1] for item in cut[2:]] == ["S1 – Z: S1 knows Z."]


def test_texts_follow_the_rank_of_their_entity_then_the_number_of_its_relationships() -> None:
    said = {
        "P0": graph_json(named("OKKE", "ANN")),
        "P1": graph_json(named("OKKE"), linked(("OKKE", "BO"), ("OKKE", "CY"))),
        "P2": graph_json(named("OKKE"), linked(("OKKE", "DI"))),
        "P3": graph_json(named("ZOE")),
    }
    made, _ = memory(said)
    places = {entity.title: place for place, entity in enumerate(made._graph.entities)}
    ranked = made._nearby_texts([places["OKKE"], places["ZOE"], places["ANN"]], np.ones(len(places)))
    assert [item.id for item in ranked] == ["text-1", "text-2", "text-0", "text-3"]


def test_a_text_without_a_word_of_the_question_is_found_through_its_entity() -> None:
    said = {
        "It left at dawn and came back empty.": graph_json([("GREEN FERRY", "ship", "The green ferry of Halmby.")]),
        "Who eats what at noon?": graph_json([("SOUP", "food", "A meal.")]),
    }
    made, _ = memory(said, {"top_entities": 1})
    question = Question("q", "What happened to the ferry of Halmby?")
    dense = Dense(HashingEmbedder(512), k=1)
    for number, text in enumerate(said):
        dense.write(unit(text, number))
    assert dense.read(question).items[0].id == "u1"
    found = made.read(question).items
    assert next(item.id for item in found if item.kind == "text") == "text-0"


def test_an_item_stands_for_the_turns_of_its_text_units_and_their_times() -> None:
    made, _ = memory({"P0": graph_json(named("OKKE")), "P1": graph_json(named("OKKE")), "P2": graph_json(named("ANN"))})
    item = next(item for item in made.read(Question("q", "okke")).items if item.id == "entity-0")
    assert item.text == "[1 May 2023 – 2 May 2023] OKKE (0 related): OKKE is known."
    assert item.sources == ("t0", "t1")


# --- global search -----------------------------------------------------------------------------------------------------

EVERYWHERE = {"search": "global"}


def test_every_batch_is_mapped_and_the_points_are_reduced_by_score() -> None:
    points = [
        '{"points": [{"description": "weak", "score": 10}, {"description": "useless", "score": 0}]}',
        '{"points": [{"description": "strong", "score": 90}, {"description": " ", "score": 80}]}',
    ]
    made, llm = memory({"P": cliques("A", "B")}, EVERYWHERE | {"max_tokens": 40}, map=points)
    recall = made.read(Question("q", "Who?", options=("Ann", "Bo"), time_text="3 May 2023", instruction="One word."))
    assert llm.purposes[-3:] == ["graphrag.map", "graphrag.map", "graphrag.reduce"]
    assert recall.answer == "Green."
    assert [(item.text, item.score) for item in recall.items] == [("strong", 90.0), ("weak", 10.0)]
    assert llm.requests[-1].fields["memories"] == [
        "(analyst 2, importance 90) strong",
        "(analyst 1, importance 10) weak",
    ]
    assert "Who?\n(A) Ann\n(B) Bo\nOne word.\n(Current date: 3 May 2023)" in llm.requests[-1].messages[-1][1]


@pytest.mark.parametrize(
    "said", ['{"points": [{"description": "I do not know.", "score": 0}]}', '{"points": []}', *GARBAGE]
)
def test_without_a_point_the_answer_is_fixed_and_nothing_is_reduced(said: str) -> None:
    made, llm = memory({"P": cliques("A", "B")}, EVERYWHERE, map=said)
    with meter.metering() as ledger:
        recall = made.read(Question("q", "Who?"))
    unread = "a batch of reports could not be read"  # no abstention, which would be right where nothing answers
    assert recall == (Recall((), aborted=unread) if said in GARBAGE else Recall((), NO_ANSWER))
    assert "graphrag.reduce" not in llm.purposes
    assert ledger.notes["graphrag.no_points"] == (said in GARBAGE)


def test_a_reduction_that_fails_is_no_abstention() -> None:
    made, _ = memory({"P": cliques("A")}, EVERYWHERE, reduce=" ")
    with meter.metering() as ledger:
        recall = made.read(Question("q", "Who?"))
    assert (len(recall.items), recall.answer, recall.aborted) == (1, None, "the answer could not be read")
    assert ledger.notes == {"graphrag.no_answer": 1}


def test_a_point_stands_for_the_reports_that_it_names_or_for_the_whole_batch() -> None:
    said = {"P0": cliques("A"), "P1": cliques("B"), "P2": graph_json((), linked(("A0", "B0")))}
    made, _ = memory(said, EVERYWHERE)
    of = {made._graph.entities[one.entities[1]].title[0]: one.id for one in made._graph.communities.values()}

    def sources(reports: Sequence[int]) -> tuple[str, ...]:
        point = {"description": "x", "score": 5, "reports": reports}
        made.llm = scripted(map=json.dumps({"points": [point]}))
        return made.read(Question("q", "Who?")).items[0].sources

    assert sources([of["B"]]) == ("t1",)
    assert sources([]) == sources([999]) == ("t0", "t1")


def test_a_point_stands_above_the_highest_of_its_reports() -> None:
    made, _ = memory({"P": deep()}, EVERYWHERE | {"max_cluster_size": 5})
    assert made._graph.deepest > 0
    batch = list(made._graph.communities.values())
    (point,) = made._points(1, batch, [{"description": "x", "score": 5}])
    assert point.level == 3 + made._graph.deepest


def test_points_that_exceed_the_budget_are_left_out() -> None:
    points = [{"description": "tea " * 30, "score": score} for score in (50, 70, 90)]
    made, llm = memory({"P": cliques("A")}, EVERYWHERE | {"max_tokens": 70}, map=json.dumps({"points": points}))
    assert [item.score for item in made.read(Question("q", "Who?")).items] == [90, 70]
    assert len(llm.requests[-1].fields["memories"]) == 2


def deep() -> str:
    nodes, edges = random_graph()
    pairs = [(nodes[edge.source].title, nodes[edge.target].title) for edge in edges]
    return graph_json(named(*(node.title for node in nodes)), linked(*pairs))


def test_paper_mode_uses_each_entity_s_deepest_report_and_code_mode_all() -> None:
    paper, code = (
        memory({"P": deep()}, EVERYWHERE | {"mode": mode, "max_cluster_size": 5})[0] for mode in ("paper", "code")
    )
    used = [{one.id for batch in made._batches() for one in batch} for made in (paper, code)]
    divided = {one.parent for one in paper._graph.communities.values()}
    assert used[1] == set(code._graph.communities)
    assert {one for one in used[1] if one not in divided} <= used[0] < used[1]
    paper = tuned(paper, {"level": 0})
    assert {one.level for batch in paper._batches() for one in batch} == {0}


def test_a_local_search_of_release_0_3_6_counts_an_entity_for_its_deepest_community_alone() -> None:
    """Counted over all levels (release 3.1.2), a parent has every match of its children and always leads."""
    paper, code = (memory({"P": deep()}, {"mode": mode, "max_cluster_size": 5})[0] for mode in ("paper", "code"))
    graph = paper._graph
    parents = {one.parent for one in graph.communities.values()} - {None}
    child = next(one for one in graph.communities.values() if one.level == 1 and one.id not in parents)

    def found(made: GraphRag) -> list[str]:
        return [item.id for item in made._nearby_reports(child.entities)]

    assert found(paper) == [f"report-{child.id}"]
    assert {f"report-{child.id}", f"report-{child.parent}"} == set(found(code))
    paper = tuned(paper, {"level": 0})
    assert found(paper) == [f"report-{child.parent}"], "the deepest of those down to the level"


def test_reports_are_shuffled_and_packed_and_the_weightiest_lead_each_batch() -> None:
    said = {f"P{place}": graph_json(named(f"{letter}1")) for place, letter in enumerate("AACCC")}
    made, _ = memory({"P": cliques("A", "B", "C")} | said, EVERYWHERE | {"max_tokens": 60})
    batches = made._batches()
    content = [[f"[{one.id}] {made._graph.reports[one.id].content}\n" for one in batch] for batch in batches]
    assert [len(batch) for batch in batches] == [2, 1]
    assert all(sum(count_tokens(text, "cl100k_base") for text in batch) <= 60 for batch in content)
    made = tuned(made, {"max_tokens": 1})
    expected = sorted(made._graph.reports)
    expected = [expected[at] for at in np.random.default_rng(86).permutation(len(expected))]
    assert [one.id for batch in made._batches() for one in batch] == expected != sorted(expected)
    made = tuned(made, {"max_tokens": 12_000})
    (batch,) = made._batches()
    assert [made._graph.entities[one.entities[0]].title for one in batch] == ["C0", "A0", "B0"]
    assert [len(made._text_units(one)) for one in batch] == [4, 3, 1]
    equal, _ = memory({"P": cliques("A", "B", "C")}, EVERYWHERE, report=rated)
    assert [equal._graph.entities[one.entities[0]].title for one in equal._batches()[0]] == ["C0", "A0", "B0"]


# --- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", GARBAGE)
def test_an_extraction_that_fails_leaves_its_text_unit_without_a_graph(said: str) -> None:
    with meter.metering() as ledger:
        made, _ = memory({"P0": said, "P1": cliques("A")})
    assert made.report()["no_extract"] == ledger.notes["graphrag.no_extract"] == 1
    assert {unit for entity in made._graph.entities for unit in entity.units} == {1}
    assert made.report()["communities"] == [1]


@pytest.mark.parametrize("said", GARBAGE)
def test_a_report_that_fails_is_missing(said: str) -> None:
    with meter.metering() as ledger:
        made, _ = memory({"P": cliques("A", "B")}, report=said)
    assert made.report()["no_report"] == ledger.notes["graphrag.no_report"] == 2
    assert made.report()["reports"] == 0
    assert set(kinds(made)) == {"entity", "relationship", "text"}


def test_a_description_that_fails_is_its_pieces() -> None:
    said = {"P0": graph_json([("A", "x", "old")]), "P1": graph_json([("A", "x", "big")])}
    with meter.metering() as ledger:
        made, _ = memory(said, describe="")
    assert made._graph.entities[0].description == "big old"
    assert ledger.notes["graphrag.joined_descriptions"] == 1


def test_a_history_without_relationships_is_searched_by_its_entities() -> None:
    with meter.metering() as ledger:
        made, _ = memory({"P": graph_json(named("OKKE"))})
    assert ledger.notes == {"graphrag.no_relationships": 1}
    assert set(kinds(made, "okke")) == {"entity", "text"}


def test_a_failed_call_fails_the_build() -> None:
    made = GraphRag(llm=ScriptedLLM(ModelError("down")), embedder=HashingEmbedder(64), prompts=Prompts())
    made.write(unit("P"))
    with pytest.raises(ModelError):
        made.consolidate()


# --- structure, cost and settings --------------------------------------------------------------------------------------


def test_a_read_before_the_next_build_sees_the_last_one() -> None:
    made, llm = memory({"P0": cliques("A")}, extract=lambda request: cliques("A"))
    before = made.read(Question("q", "A0")).items
    made.write(unit("P1", 5))
    assert made.read(Question("q", "A0")).items == before
    calls = len(llm.requests)
    made.consolidate()
    assert len(llm.requests) == calls + 5  # two text units and a report: everything again
    assert GraphRag.OFFLINE


def test_texts_hang_on_entities_and_entities_on_their_finest_community() -> None:
    made, _ = memory({"P": deep()}, {"max_cluster_size": 5})
    nodes = {node.id: node for node in made.nodes()}
    assert Counter(node.kind for node in nodes.values())["entity"] == 80
    assert set(nodes["text-0"].parents) == {f"entity-{place}" for place in range(80)}
    for node in nodes.values():
        if node.kind == "entity" and node.parents:
            below = [other for other in nodes.values() if node.parents[0] in other.parents and other.kind == "report"]
            assert not any(int(node.id[7:]) in made._graph.communities[int(other.id[7:])].entities for other in below)
    assert {node.level for node in nodes.values() if node.kind == "report" and not node.parents} == {
        2 + max(one.level for one in made._graph.communities.values())
    }


def test_four_times_the_history_costs_four_times_as_much() -> None:
    """Calls, texts embedded and sizes of the graph; names repeat within a neighbourhood, as in a real history."""

    def costs(count: int) -> tuple[int, ...]:
        def found(request: Request) -> str:
            place = int(request.fields["text"].split()[1])
            titles = [f"N{place + step}" for step in range(4)]
            return graph_json(named(*titles), linked(*itertools.pairwise(titles)))

        llm = scripted(extract=found)
        made = with_settings(GraphRag, {"chunk_tokens": None})(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
        for number in range(count):
            made.write(unit(f"text {number}", number))
        made.consolidate()
        shown = sum(len(text) for request in llm.requests for _, text in request.messages)
        return len(llm.requests), made.held, shown

    for small, large in zip(costs(50), costs(200), strict=True):
        assert 3.6 * small < large < 4.6 * small


def test_without_graspologic_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memsys.systems.graphrag, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install memsys-bench\[graph\]"):
        GraphRag(llm=ScriptedLLM(""), embedder=HashingEmbedder(8), prompts=Prompts())


@pytest.mark.parametrize("name", ["graphrag", "graphrag_global"])
def test_the_files_hold_the_released_settings(name: str) -> None:
    build = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))["build"]
    wanted = {
        "mode": "paper", "chunk_tokens": 1200, "overlap": 100, "gleanings": 1, "max_cluster_size": 10, "report_tokens": 8000,
        "max_tokens": 12000, "text_share": 0.5, "level": 2, "description_tokens": 4000, "top_entities": 10,
        "entity_types": ["organization", "person", "geo", "event"],
    }  # fmt: skip
    assert {key: build[key] for key in wanted} == wanted
    assert build["search"] == ("local" if name == "graphrag" else "global")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"top_entities": 0}, "top_entities"),
        ({"max_cluster_size": 0}, "max_cluster_size"),
        ({"text_share": 0.9}, "text_share"),
        ({"overlap": 1200}, "overlap"),
    ],
)
def test_nonsense_is_refused_by_name(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_settings(GraphRag, setting)(llm=ScriptedLLM(""), embedder=HashingEmbedder(8), prompts=Prompts())

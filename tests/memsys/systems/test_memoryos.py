from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from scripted import ScriptedLLM, TableEmbedder

from data_loaders.schema import Question, Session, Turn, Unit
from data_loaders.units import make_units
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem, tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memoryos import RELEASES, MemoryOS
from memsys.systems.memoryos.midterm import heat, jaccard, mean_overlap, recency

START = datetime(2023, 5, 7, 18)
CONTINUITY, META, THEMES = "memoryos.continuity", "memoryos.meta", "memoryos.themes"
KEYWORDS, PROFILE, ASSISTANT, MERGE = (
    "memoryos.keywords", "memoryos.profile", "memoryos.assistant", "memoryos.merge",
)  # fmt: skip
PAGE = [CONTINUITY, THEMES, META]
GARBAGE = ["", "Sure!", "```json {", "[]", "{}"]


def page(number: int, said: str, reply: str = "I see.", hours: float | None = None) -> Unit:
    turns = (Turn(f"t{number}", "Ann", said), Turn(f"r{number}", "Bob", reply, "assistant"))
    time = START + timedelta(hours=number if hours is None else hours)
    return Unit(f"p{number}", tuple(turn for turn in turns if turn.text), "s1", time, f"{time:%H:%M}")


def themed(*themes: tuple[str, Sequence[str]]) -> str:
    return json.dumps({"themes": [{"theme": text, "keywords": list(words), "content": text} for text, words in themes]})


def by_text(request: Request) -> str:
    """What the user says is the theme; the words in capitals are its keywords."""
    text = request.fields["text"].split("\n")[0].removeprefix("Ann: ")
    return themed((text, [word for word in text.split() if word.isupper()]))


def facts(**values: Any) -> str:
    return json.dumps(values)


SCRIPT: Mapping[str, Any] = {
    CONTINUITY: "false",
    META: lambda request: f"about {request.fields['texts'][-1].splitlines()[0]}",
    THEMES: by_text,
    KEYWORDS: lambda request: ", ".join(word for word in request.fields["text"].split() if word.isupper()) or ",",
    PROFILE: facts(profile="Ann is kind.", facts=["Ann gardens."]),
    ASSISTANT: facts(facts=["Bob gave advice."]),
    MERGE: "Ann is kind and busy.",
}


def memoryos(script: Mapping[str, Any] | None = None, **settings: Any) -> tuple[MemoryOS, ScriptedLLM]:
    llm = ScriptedLLM({**SCRIPT, **(script or {})})
    embedder = settings.pop("embedder", HashingEmbedder(512))
    return with_settings(MemoryOS, settings)(llm=llm, embedder=embedder, prompts=Prompts()), llm


def feed(memory: MemoryOS, *units: Unit) -> MemoryOS:
    for unit in units:
        memory.write(unit)
    return memory


def same(count: int, first: int = 0) -> list[Unit]:
    """Pages that all go into one segment."""
    return [page(first + number, "beans BEANS") for number in range(count)]


def found(memory: MemorySystem, text: str = "beans") -> list[tuple[str, str]]:
    return [(item.kind, item.id) for item in memory.read(Question("q", text)).items]


def segments(memory: MemoryOS) -> dict[str, list[str]]:
    """The pages of each segment."""
    nodes = list(memory.nodes())
    return {one.text: [node.id for node in nodes if one.id in node.parents] for one in nodes if one.kind == "segment"}


# --- formulas ------------------------------------------------------------------------------------------------------


def test_keyword_overlaps() -> None:
    three, two, none = frozenset("abc"), frozenset("bc"), frozenset[str]()
    assert mean_overlap(three, two) == pytest.approx(0.8333, abs=5e-5)
    assert jaccard(three, two) == jaccard(two, three) == pytest.approx(0.6667, abs=5e-5)
    assert jaccard(two, frozenset("ab")) == pytest.approx(1 / 3)
    assert mean_overlap(three, none) == mean_overlap(none, none) == jaccard(three, none) == jaccard(none, none) == 0


@pytest.mark.parametrize(("mode", "value"), [("code", 5.6001), ("paper", 8.0), ("library", 8.0)])
def test_heat_of_two_visits_and_five_pages(mode: str, value: float) -> None:
    assert heat(2, 5, 1.0, RELEASES[mode].weights) == pytest.approx(value)


def test_recency_after_a_day() -> None:
    assert recency(86_400, RELEASES["paper"].decay) == pytest.approx(0.9914, abs=5e-5)
    assert recency(86_400, RELEASES["library"].decay) == pytest.approx(0.3679, abs=5e-5)
    assert recency(86_400, RELEASES["code"].decay) == 1
    assert recency(-5, RELEASES["paper"].decay) == 1


def test_the_three_sets_of_settings() -> None:
    paper, code, library = (RELEASES[mode] for mode in ("paper", "code", "library"))
    assert [(one.short_term, one.mid_term, one.long_term) for one in (paper, code, library)] == [
        (7, 200, 100), (1, 2000, None), (10, 2000, 100),
    ]  # fmt: skip
    assert [(one.k, one.knowledge_k, one.traits_k) for one in (paper, code, library)] == [
        (10, 10, 10), (10, 10, None), (7, 20, 20),
    ]  # fmt: skip
    assert code.thresholds == (0.1, 0.1, 0.1)
    assert library.thresholds == (0.1, 0.1, 0.01)


# --- filing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paper", "code", "library"])
@pytest.mark.parametrize(("first", "second", "together"), [("A B C", "B C", True), ("", "", False), ("A", "B", False)])
def test_a_page_joins_a_segment_by_cosine_and_shared_keywords(
    mode: Any, first: str, second: str, together: bool
) -> None:
    """Cosine .45 plus .8333 (mean overlap) or .6667 (Jaccard) is above .6; without shared keywords it is not."""
    one, two = f"oats {first}".strip(), f"rye {second}".strip()
    other = HashingEmbedder(2)
    embedder = TableEmbedder({one: (1, 0), two: (0.45, (1 - 0.45**2) ** 0.5)}, other)
    memory, _ = memoryos(embedder=embedder, mode=mode, short_term=1)
    feed(memory, page(0, one), page(1, two), page(2, "later"))
    assert (segments(memory)[one] == ["p0", "p1"]) is together
    assert (two not in segments(memory)) is together


def test_the_paper_maximises_the_sum_and_the_evaluation_code_only_the_cosine() -> None:
    """`near` has the better cosine (.5 against .3), `far` the shared keyword."""
    table = {"far X": (1, 0, 0), "near": (0, 1, 0), "new X": (0.3, 0.5, 0.66**0.5)}
    for mode, home in (("paper", "far X"), ("code", None)):
        embedder = TableEmbedder(table, HashingEmbedder(3))
        memory, _ = memoryos(embedder=embedder, mode=mode, short_term=1)
        feed(memory, page(0, "far X"), page(1, "near"), page(2, "new X"), page(3, "later"))
        homes = [text for text, pages in segments(memory).items() if "p2" in pages]
        assert homes == [home or "new X"]


def test_a_page_with_two_themes_is_stored_and_recalled_once() -> None:
    memory, _ = memoryos({THEMES: themed(("beans", ["beans"]), ("yoga", ["yoga"]), ("a third", []))}, short_term=1)
    feed(memory, page(0, "beans and yoga"), page(1, "later"))
    assert segments(memory) == {"beans": ["p0"], "yoga": ["p0"]}
    assert found(memory) == [("short_term", "p1"), ("page", "p0")]
    assert memory.held == 2


def test_a_page_does_not_enter_the_same_segment_twice() -> None:
    memory, _ = memoryos({THEMES: themed(("beans", ["beans"]), ("beans", ["beans"]))}, short_term=1)
    feed(memory, page(0, "beans"), page(1, "later"))
    assert segments(memory) == {"beans": ["p0"]}
    assert memory.report()["mean_heat"] == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("mode", ["paper", "code", "library"])
@pytest.mark.parametrize("count", [1, 7, 8, 25])
def test_no_complete_page_is_lost_between_the_stores(mode: Any, count: int) -> None:
    memory, _ = memoryos(mode=mode)
    feed(memory, *(page(number, f"subject{number}") for number in range(count)))
    kept = [node.id for node in memory.nodes() if node.kind == "page"]
    assert sorted(kept) == sorted(f"p{number}" for number in range(count))
    assert memory.report()["short_term"] == min(count, {"paper": 7, "code": 0, "library": 10}[mode])


def test_a_page_without_a_reply_waits_in_the_queue_and_never_reaches_the_mid_term() -> None:
    memory, llm = memoryos(short_term=1)
    feed(memory, page(0, "beans", reply=""))
    assert found(memory) == [("short_term", "p0")]
    with meter.metering() as ledger:
        feed(memory, page(1, "", reply="Beans!"), page(2, "yoga"))
    assert ledger.notes == {"memoryos.incomplete_page": 2}
    assert llm.purposes == []
    assert found(memory) == [("short_term", "p2")]
    assert memory.report()["incomplete_page"] == 2


def test_pages_without_a_reply_can_be_kept() -> None:
    memory, llm = memoryos(short_term=1, incomplete="keep")
    feed(memory, page(0, "", reply="Beans are up."), page(1, "beans", reply=""), page(2, "yoga"))
    assert [request.fields["text"] for request in llm.requests if request.purpose == THEMES] == [
        "Bob: Beans are up.",
        "Ann: beans",
    ]
    assert found(memory)[1:] == [("page", "p1"), ("page", "p0")]


def test_a_reply_of_a_later_session_completes_a_page() -> None:
    def session(name: str, *roles: str) -> Session:
        sides: Mapping[str, Any] = {"A": ("Ann", "user"), "B": ("Bob", "assistant")}
        turns = [
            Turn(f"{name}{at}", sides[role][0], f"word{name}{at}", sides[role][1]) for at, role in enumerate(roles)
        ]
        return Session(name, tuple(turns), START, "7 May")

    alone = make_units([session("x", "A", "B", "A")], "page").units
    filled = make_units([session("x", "A", "B", "A"), session("y", "B", "A", "B")], "page").units
    assert [len(units) for units in (alone, filled)] == [1, 3]
    memory, _ = memoryos(mode="code")
    feed(memory, *filled)
    assert [node.sources for node in memory.nodes() if node.kind == "page"] == [
        ("x0", "x1"),
        ("x2", "y0"),
        ("y1", "y2"),
    ]


# --- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "read"), [("paper", [KEYWORDS]), ("library", [])])
def test_a_page_that_leaves_costs_three_calls_the_first_two_and_a_read_one_in_the_paper(
    mode: Any, read: list[str]
) -> None:
    memory, llm = memoryos(mode=mode, short_term=7)
    feed(memory, *(page(number, f"subject{number}") for number in range(7)))
    assert llm.purposes == []
    feed(memory, page(7, "subject7"))
    assert llm.purposes == [THEMES, META]
    feed(memory, page(8, "subject8"), page(9, "subject9"))
    assert llm.purposes == [THEMES, META, *PAGE, *PAGE]
    memory.consolidate()
    found(memory)
    assert llm.purposes[8:] == read


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("paper", "Ann: beans\nBob: Water them."), ("library", "Ann: beans\nBob: Water them."), ("code", "beans")],
)
def test_themes_are_drawn_from_both_sides_of_a_page_except_in_the_evaluation_code(mode: Any, shown: str) -> None:
    """The package's updater puts user and assistant text into the summary; the evaluation's takes the user's input."""
    memory, llm = memoryos(mode=mode, short_term=1)
    feed(memory, page(0, "beans", reply="Water them."), page(1, "later"))
    asked = next(request for request in llm.requests if request.purpose == THEMES)
    assert asked.fields["text"] == shown


def test_the_evaluation_code_asks_for_keywords_of_new_segments_their_pages_and_the_question() -> None:
    memory, llm = memoryos(mode="code")
    feed(memory, page(0, "beans BEANS"))
    assert llm.purposes == [THEMES, META, KEYWORDS, KEYWORDS]
    assert [request.fields["text"] for request in llm.requests[2:]] == [
        "beans BEANS", "Ann: beans BEANS\nBob: I see.",
    ]  # fmt: skip
    feed(memory, page(1, "beans BEANS"))
    assert llm.purposes[4:] == PAGE
    found(memory, "who grows BEANS")
    assert llm.purposes[7:] == [KEYWORDS]


def test_the_stages_use_the_temperatures_and_limits_of_the_release() -> None:
    memory, llm = memoryos(mode="code", heat_threshold=0.1)
    feed(memory, page(0, "beans BEANS"), page(1, "beans BEANS"))
    assert {request.purpose: (request.temperature, request.max_tokens) for request in llm.requests} == {
        CONTINUITY: (0, 10), META: (0.3, 100), THEMES: (0.7, 2000), KEYWORDS: (0.7, 2000),
        PROFILE: (0.7, 2000), ASSISTANT: (0.7, 2000), MERGE: (0.7, 2000),
    }  # fmt: skip


def test_a_page_is_compared_with_the_one_filed_before_it() -> None:
    memory, llm = memoryos(short_term=1)
    feed(memory, page(0, "beans"), page(1, "yoga", reply=""), page(2, "soup"), page(3, "later"))
    (request,) = (request for request in llm.requests if request.purpose == CONTINUITY)
    assert (request.fields["history"], request.fields["new"]) == ("Ann: beans\nBob: I see.", "Ann: soup\nBob: I see.")


def test_continuous_pages_share_the_latest_line_and_others_start_a_new_one() -> None:
    memory, llm = memoryos({CONTINUITY: ["true", "false"]}, short_term=1)
    feed(memory, page(0, "sowing"), page(1, "watering"), page(2, "taxes"), page(3, "later"))
    texts = {item.id: item.text for item in memory.read(Question("q", "sowing")).items}
    assert texts["p0"] == "[18:00] Ann: sowing\nBob: I see.\nContext: about Ann: watering"
    assert texts["p1"].endswith("Context: about Ann: watering")
    assert texts["p2"].endswith("Context: about Ann: taxes")
    shown = [request.fields["texts"] for request in llm.requests if request.purpose == META]
    assert [len(texts) for texts in shown] == [1, 2, 1]
    assert shown[1][0] == "about Ann: sowing"


# --- heat ----------------------------------------------------------------------------------------------------------


def test_in_the_evaluation_code_the_seventh_page_of_a_segment_fires() -> None:
    """Six pages are .8 · 6 + .0001 < 5."""
    memory, llm = memoryos(mode="code")
    feed(memory, *same(6))
    assert PROFILE not in llm.purposes
    feed(memory, *same(1, first=6))
    assert llm.purposes[-2:] == [PROFILE, ASSISTANT]
    assert len(llm.requests[-2].fields["text"]) == 7


@pytest.mark.parametrize("mode", ["paper", "library"])
def test_in_the_paper_and_the_package_the_fourth_page_of_a_segment_fires(mode: Any) -> None:
    memory, llm = memoryos(mode=mode, short_term=1)
    feed(memory, *same(4))
    assert PROFILE not in llm.purposes
    feed(memory, page(4, "later"))
    assert llm.purposes[-2:] == [PROFILE, ASSISTANT]


def test_a_segment_that_has_cooled_down_needs_more() -> None:
    """Three visits, one page and a day without a visit are 4.3679 in the package, 4.9914 in the paper."""
    for mode, warmth in (("library", 4.3679), ("paper", 4.9914)):
        memory, llm = memoryos(mode=mode, short_term=1, mutate_on_read=True)
        feed(memory, page(0, "beans", hours=0), page(1, "", reply="later", hours=0))
        for _ in range(3):
            found(memory)
        feed(memory, page(2, "", reply="later", hours=24))
        assert memory.report()["mean_heat"] == pytest.approx(warmth, abs=5e-5)
        assert PROFILE not in llm.purposes


def test_only_the_hottest_segment_is_analysed_and_only_when_something_in_it_is_new() -> None:
    memory, llm = memoryos(short_term=1)
    feed(memory, *same(5))
    count = len(llm.requests)
    feed(memory, page(5, "", reply="incomplete"))
    assert llm.purposes[count:] == PAGE
    count = len(llm.requests)
    feed(memory, page(6, "", reply="incomplete"))
    assert llm.purposes[count:] == []


@pytest.mark.parametrize(("mode", "pages", "left"), [("paper", 2, 3.0), ("library", 2, 1.0), ("code", 5, 0.0001)])
def test_an_analysis_resets_the_length_and_in_the_releases_the_visits_too(mode: Any, pages: int, left: float) -> None:
    """With two visits, two pages (2 + 2 + 1) are enough; in the evaluation code five (.8 · 2 + .8 · 5 + .0001)."""
    memory, _ = memoryos(mode=mode, short_term=1, mutate_on_read=True)
    units = [page(number, "beans BEANS", hours=0) for number in range(9)]
    first = 1 if mode == "code" else 2
    feed(memory, *units[:first])
    assert found(memory) == found(memory)
    feed(memory, *units[first : first + pages - 2])
    assert "analysis" not in memory.report()
    feed(memory, units[first + pages - 2])
    assert memory.report()["analysis"] == 1
    assert memory.report()["mean_heat"] == pytest.approx(left)


def test_in_the_evaluation_code_the_nearest_segment_grows_even_when_a_new_one_is_made() -> None:
    for mode, grown in (("code", 2), ("paper", 1)):
        memory, _ = memoryos(mode=mode, short_term=1)
        feed(memory, page(0, "beans", hours=0), page(1, "yoga", hours=0))
        if mode == "paper":
            feed(memory, page(2, "later", hours=0))
        weights = RELEASES[mode].weights
        expected = (heat(0, grown, 1, weights) + heat(0, 1, 1, weights)) / 2
        assert memory.report()["mean_heat"] == pytest.approx(expected)


def test_a_second_analysis_merges_the_profiles_and_adds_the_facts() -> None:
    memory, llm = memoryos({PROFILE: [
        facts(profile="Ann gardens.", facts=["Ann grows beans.", " "]), facts(profile="Ann cooks.", facts=["None", "- Ann has a pan."]),
    ]}, mode="code")  # fmt: skip
    feed(memory, *same(14))
    assert llm.purposes.count(PROFILE) == 2
    assert llm.purposes[-3:] == [PROFILE, ASSISTANT, MERGE]
    assert llm.requests[-1].fields["texts"] == ("Ann gardens.", "Ann cooks.")
    nodes = {node.id: node for node in memory.nodes()}
    assert nodes["profile"].text == "Ann is kind and busy."
    assert nodes["profile"].sources == tuple(f"{side}{number}" for number in range(14) for side in "tr")
    assert [node.text for node in nodes.values() if node.kind == "user_fact"] == ["Ann grows beans.", "Ann has a pan."]
    assert nodes["user_fact-1"].sources == tuple(f"{side}{number}" for number in range(7, 14) for side in "tr")
    assert sum(node.kind == "assistant_fact" for node in nodes.values()) == 2


def test_the_analysis_shows_names_times_and_what_each_side_says() -> None:
    memory, llm = memoryos(mode="code", heat_threshold=0.5)
    feed(memory, page(0, "I sow beans.", reply="Water them."))
    profile, assistant = llm.requests[-2:]
    assert "The person: Ann" in profile.messages[1][1]
    assert "<dialogue>\n[18:00] Ann: I sow beans.\nBob: Water them.\n</dialogue>" in profile.messages[1][1]
    assert "The side: Bob" in assistant.messages[1][1]
    assert assistant.fields["text"] == ["[18:00] Bob: Water them."]


def test_of_the_facts_about_a_side_the_hundred_latest_are_kept() -> None:
    many = facts(profile="", facts=[f"Ann owns thing{number}." for number in range(60)])
    memory, _ = memoryos({PROFILE: many}, short_term=1, heat_threshold=1)
    feed(memory, page(0, "beans"), page(1, "yoga"), page(2, "later"))
    kept = [node.id for node in memory.nodes() if node.kind == "user_fact"]
    assert kept == [f"user_fact-{number}" for number in range(20, 120)]
    recalled = [item.id for item in memory.read(Question("q", "thing0 thing5")).items if item.kind == "user_fact"]
    assert len(recalled) == 10
    assert set(recalled) <= set(kept)
    assert memory.report()["user_facts"] == 100


def test_a_full_mid_term_loses_its_coldest_segment_in_the_paper_and_the_least_visited_one_in_the_releases() -> None:
    for mode, gone in (("paper", "yoga"), ("library", "beans BEANS")):
        memory, _ = memoryos(mode=mode, short_term=1, mid_term=2, mutate_on_read=True)
        feed(
            memory,
            *(page(number, "beans BEANS", hours=0) for number in (0, 1)),
            page(2, "yoga", hours=0),
            page(3, "x", ""),
        )
        if mode == "library":
            found(memory, "yoga")
        feed(memory, page(4, "soup SOUP"), page(5, "later"))
        assert set(segments(memory)) == {"beans BEANS", "yoga", "soup SOUP"} - {gone}
        assert memory.report()["evicted_segment"] == 1
        assert memory.held == len({page for pages in segments(memory).values() for page in pages}) + 1


# --- garbage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage", [*GARBAGE, '{"themes": []}', '{"themes": [{"theme": 7}]}', '{"themes": [{"theme": " "}]}']
)
def test_a_page_without_themes_has_its_own_text_as_theme_and_is_lost_in_the_evaluation_code(garbage: str) -> None:
    for mode, note, homes in (
        ("paper", "generic_theme", {"Ann: beans\nBob: I see.": ["p0"]}),
        ("code", "lost_page", {}),
    ):
        memory, _ = memoryos({THEMES: garbage}, mode=mode, short_term=1)
        with meter.metering() as ledger:
            feed(memory, page(0, "beans"), *([page(1, "later")] if mode == "paper" else []))
        assert segments(memory) == homes
        assert ledger.notes == {f"memoryos.{note}": 1}


@pytest.mark.parametrize("garbage", [*GARBAGE, "perhaps", '{"continues": true}'])
def test_an_unclear_continuity_is_none(garbage: str) -> None:
    memory, _ = memoryos({CONTINUITY: garbage}, short_term=1)
    with meter.metering() as ledger:
        feed(memory, page(0, "sowing"), page(1, "watering"), page(2, "later"))
    assert ledger.notes == {"memoryos.unknown_continuity": 1}
    assert memory.report()["chains"] == 2


def test_an_empty_line_becomes_the_pages_text() -> None:
    memory, _ = memoryos({META: ""}, short_term=1)
    with meter.metering() as ledger:
        feed(memory, page(0, "sowing"), page(1, "later"))
    assert ledger.notes == {"memoryos.copied_page": 1}
    assert memory.read(Question("q", "sowing")).items[1].text.endswith("Context: Ann: sowing\nBob: I see.")


@pytest.mark.parametrize("garbage", ["", "  "])
def test_keywords_that_cannot_be_had_are_none(garbage: str) -> None:
    memory, _ = memoryos({KEYWORDS: garbage}, mode="code")
    with meter.metering() as ledger:
        feed(memory, page(0, "beans BEANS"))
        found(memory)
    assert ledger.notes == {"memoryos.no_keywords": 3}


@pytest.mark.parametrize("garbage", [*GARBAGE, '{"profile": 1, "facts": 2}', '{"profile": "x", "facts": "y"}'])
def test_an_unreadable_analysis_leaves_the_profile_and_adds_no_facts(garbage: str) -> None:
    memory, llm = memoryos({PROFILE: garbage, ASSISTANT: garbage}, mode="code")
    with meter.metering() as ledger:
        feed(memory, *same(8))
    assert ledger.notes == {"memoryos.kept_old_profile": 1, "memoryos.no_assistant_facts": 1}
    assert {node.kind for node in memory.nodes()} == {"page", "segment"}
    assert llm.purposes.count(PROFILE) == 1


def test_a_merge_that_comes_back_empty_keeps_the_old_profile() -> None:
    memory, _ = memoryos({MERGE: ""}, mode="code")
    feed(memory, *same(14))
    assert next(node.text for node in memory.nodes() if node.id == "profile") == "Ann is kind."
    assert memory.report()["kept_old_profile"] == 1


def test_a_call_that_fails_for_good_is_not_hidden() -> None:
    memory, _ = memoryos({META: ModelError("the endpoint is gone")}, mode="code")
    with pytest.raises(ModelError):
        feed(memory, page(0, "beans"))


# --- recall --------------------------------------------------------------------------------------------------------


def test_a_recall_is_the_queue_then_the_best_pages_then_profile_and_facts() -> None:
    memory, _ = memoryos(
        {PROFILE: facts(profile="Ann is kind.", facts=["Ann sows.", "Ann grows beans."])}, short_term=2
    )
    feed(memory, *same(4), page(4, "soup"), page(5, "tea"), page(6, "beans again"))
    recalled = found(memory)
    assert recalled[:2] == [("short_term", "p5"), ("short_term", "p6")]
    assert [kind for kind, _ in recalled[2:7]] == ["page"] * 5
    assert recalled[6] == ("page", "p4")
    assert recalled[7:] == [
        ("profile", "profile"), ("user_fact", "user_fact-1"), ("user_fact", "user_fact-0"), ("assistant_fact", "assistant_fact-0"),
    ]  # fmt: skip
    texts = {item.id: item.text for item in memory.read(Question("q", "beans")).items}
    assert texts["user_fact-0"] == "[18:00 – 21:00] Ann sows."


def test_k_counts_the_pages_of_the_mid_term() -> None:
    memory, _ = memoryos(short_term=2, k=2)
    feed(memory, *same(6))
    assert found(memory) == [
        ("short_term", "p4"),
        ("short_term", "p5"),
        ("page", "p0"),
        ("page", "p1"),
        *found(memory)[4:],
    ]
    assert found(memory)[4:] == [
        ("profile", "profile"),
        ("user_fact", "user_fact-0"),
        ("assistant_fact", "assistant_fact-0"),
    ]


def test_pages_are_looked_for_in_the_nearest_segments_only() -> None:
    """The page of the second segment is a better match, but its segment's summary is not."""
    memory, _ = memoryos({THEMES: [themed(("tomatoes", [])), themed(("money", []))]}, short_term=1, segments=1)
    feed(memory, page(0, "The rows look dry."), page(1, "Tomatoes tomatoes cost a fortune."), page(2, "later"))
    dense = Dense(HashingEmbedder(512), k=1)
    for number, text in enumerate(["The rows look dry.", "Tomatoes tomatoes cost a fortune."]):
        dense.write(page(number, text))
    assert found(memory, "tomatoes")[1:] == [("page", "p0")]
    assert [name for _, name in found(dense, "tomatoes")] == ["p1"]
    memory = tuned(memory, {"segments": 2})
    assert found(memory, "tomatoes")[1:] == [("page", "p1"), ("page", "p0")]


def test_the_releases_drop_what_is_not_similar_enough() -> None:
    units = (page(0, "beans"), page(1, "yoga"), page(2, "later"))
    assert len(found(feed(memoryos(short_term=1)[0], *units))) == 3
    assert found(feed(memoryos(mode="library", short_term=1)[0], *units))[1:] == [("page", "p0")]


@pytest.mark.parametrize(("mode", "pages"), [("paper", ["p0", "p1"]), ("library", ["p0"])])
def test_the_releases_drop_pages_of_a_fitting_segment_that_do_not_fit_themselves(mode: Any, pages: list[str]) -> None:
    memory, _ = memoryos({THEMES: themed(("beans", []))}, mode=mode, short_term=1)
    feed(memory, page(0, "beans"), page(1, "yoga"), page(2, "later"))
    assert [name for kind, name in found(memory) if kind == "page"] == pages


def test_a_segment_that_takes_the_place_of_another_is_found_by_its_own_subject() -> None:
    memory, _ = memoryos(mode="library", short_term=1, mid_term=1)
    feed(memory, page(0, "beans"), page(1, "soup"), page(2, "yoga"), page(3, "later"))
    assert set(segments(memory)) == {"yoga"}
    assert found(memory, "yoga")[1:] == [("page", "p2")]
    assert found(memory, "beans")[1:] == []


def test_in_the_evaluation_code_a_shared_keyword_lets_a_segment_pass() -> None:
    """The question has nothing in common with the summary, but a keyword with the segment and a word with the page."""
    themes = themed(("greenery", []))
    for keyword, expected in (("beans", [("page", "p0")]), ("yoga", [])):
        script = {THEMES: themes, KEYWORDS: ["Beans, garden", "beans", keyword]}
        memory, _ = memoryos(script, mode="code")
        feed(memory, page(0, "beans"))
        assert found(memory) == expected


@pytest.mark.parametrize(("mode", "chosen"), [("paper", "p0"), ("library", "p1")])
def test_in_the_paper_the_keywords_of_the_question_choose_the_segment_too(mode: Any, chosen: str) -> None:
    """Eq. 3: .3 + a Jaccard of 1 is above .5 + 0; the package takes cosine alone."""
    table = {"far X": (1, 0, 0), "near": (0, 1, 0), "who has X": (0.3, 0.5, 0.66**0.5)}
    embedder = TableEmbedder(table, HashingEmbedder(3))
    memory, llm = memoryos(embedder=embedder, mode=mode, short_term=1, segments=1)
    memory.release = replace(memory.release, thresholds=(-1, -1, -1))
    feed(memory, page(0, "far X"), page(1, "near"), page(2, "later"))
    assert [name for kind, name in found(memory, "who has X") if kind == "page"] == [chosen]
    assert llm.purposes.count(KEYWORDS) == (mode == "paper")


def test_reading_twice_visits_twice_only_when_reads_are_to_count() -> None:
    for mutate, visits in ((True, 2), (False, 0)):
        memory, _ = memoryos(short_term=1, mutate_on_read=mutate)
        feed(memory, page(0, "beans", hours=0), page(1, "later", hours=0))
        before = memory.report()["mean_heat"]
        assert found(memory) == found(memory)
        assert memory.report()["mean_heat"] - before == pytest.approx(visits)


def test_a_visit_makes_a_segment_recent() -> None:
    memory, _ = memoryos(mode="library", short_term=1, mutate_on_read=True)
    feed(memory, page(0, "beans", hours=0), page(1, "", reply="later", hours=24))
    assert memory.report()["mean_heat"] == pytest.approx(2)  # filed now, whatever its own time
    feed(memory, page(2, "", reply="later", hours=48))
    assert memory.report()["mean_heat"] == pytest.approx(1.3679, abs=1e-4)
    memory.read(Question("q", "beans", time=START + timedelta(hours=48)))
    assert memory.report()["mean_heat"] == pytest.approx(3)


def test_without_times_everything_is_recent() -> None:
    memory, _ = memoryos(short_term=1)
    for number in range(3):
        memory.write(Unit(f"p{number}", page(number, f"subject{number}").turns, "s1"))
    assert memory.report()["mean_heat"] == 2
    assert memory.read(Question("q", "subject0")).items[1].text.startswith("Ann: subject0")


def test_other_numbers_can_be_read_from_one_build() -> None:
    memory, _ = memoryos(short_term=1)
    feed(memory, *same(4), page(4, "later"))
    fewer = tuned(memory, {"k": 1})
    assert sum(kind == "page" for kind, _ in found(fewer)) == 1
    assert sum(kind == "page" for kind, _ in found(memory)) == 4


# --- structure and settings ----------------------------------------------------------------------------------------


def test_pages_lie_below_their_segments() -> None:
    memory, _ = memoryos(short_term=1)
    feed(memory, page(0, "beans BEANS"), page(1, "beans BEANS"), page(2, "yoga"), page(3, "later"))
    nodes = {node.id: node for node in memory.nodes()}
    assert nodes["p1"].parents == ("segment-0",)
    assert nodes["segment-0"].sources == ("t0", "r0", "t1", "r1")
    assert (nodes["segment-0"].start, nodes["segment-0"].end) == (START, START + timedelta(hours=1))
    assert nodes["p3"].parents == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, 0) for name in ("segments", "short_term", "mid_term", "knowledge_k")],
)  # fmt: skip
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        memoryos(**{name: value})

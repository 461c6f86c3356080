from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted import ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.memwalker import MemWalker, action_of
from memsys.tokens import count_tokens, truncate

CONF = Path(__file__).parents[3] / "conf" / "memory"
ASKED = Question("q", "Where is the key?", time_text="9 May 2023")
GARBAGE = [
    "",
    "Sure!",
    '{"reasoning": "x", "action": ',
    '{"action": "two"}',
    "[]",
    '{"action": null}',
    '{"action": true}',
]


def unit(number: int, session: str = "s1", text: str = "") -> Unit:
    turns = (Turn(f"t{number}", "Ann", text or f"fact {number}"),)
    return Unit(f"u{number}", turns, session, datetime(2023, 5, 1 + number % 28), f"{1 + number % 28} May 2023")


def summary(request: Request) -> str:
    return "|".join(str(text).split("\n")[0][-40:] for text in request.fields["texts"])


def walker(script: dict[str, Any] | None = None, **settings: Any) -> tuple[MemWalker, ScriptedLLM]:
    """Segments of one unit, each summarised by a call, unless the settings say otherwise."""
    llm = ScriptedLLM({"memwalker.segment": summary, "memwalker.group": summary, **(script or {})})
    return with_settings(MemWalker, {"segment": "unit", "leaf_summary": "llm"} | settings)(
        llm=llm, prompts=Prompts()
    ), llm


def grown(count: int, script: dict[str, Any] | None = None, **settings: Any) -> tuple[MemWalker, ScriptedLLM]:
    memory, llm = walker(script, **settings)
    for number in range(1, count + 1):
        memory.write(unit(number))
    memory.consolidate()
    return memory, llm


def go(action: int, answer: str = "") -> str:
    return f'{{"reasoning": "because", "action": {action}, "answer": "{answer}"}}'


def always(text: str) -> Callable[[Request], str]:
    return lambda request: text


def walk_prompts(llm: ScriptedLLM) -> list[Request]:
    return [request for request in llm.requests if request.purpose.split(".")[1].startswith(("triage", "leaf"))]


def shape(memory: MemWalker) -> list[tuple[Any, ...]]:
    return [(node.id, node.parents, node.level, node.text, node.sources) for node in memory.nodes()]


def test_reasoning_over_eight_summaries_leaves_room_for_the_action() -> None:
    """MemWalker §3.2 reasons before it acts: two sentences on each of eight parts take several hundred tokens."""
    part = "This part tells of a walk by the sea with an old friend who had once lost a key there, and of the weather. "
    reasons = " ".join(f"Part {number}: {part}{part}" for number in range(8))
    assert 300 < count_tokens(reasons) < 1000

    def reply(action: int) -> Callable[[Request], str]:
        said = json.dumps({"reasoning": reasons, "action": action, "answer": "There."})
        return lambda request: truncate(said, request.max_tokens)  # as a provider cuts it

    memory, _ = grown(8, {"memwalker.triage": reply(0), "memwalker.leaf": reply(-2)})
    walk = memory.walk(ASKED)
    assert (walk.outcome, walk.answer, walk.counts["invalid"]) == ("committed", "There.", 0)


# --- the tree ---


@pytest.mark.parametrize(
    ("count", "branching", "levels", "nodes", "calls"),
    [
        (6, 4, [6, 2, 1], 9, 9),
        (9, 8, [9, 2, 1], 12, 11),
        (64, 8, [64, 8, 1], 73, 73),
        (65, 8, [65, 9, 2, 1], 77, 75),
        (1, 8, [1], 1, 1),
        (26, 8, [26, 4, 1], 31, 31),
        (281, 8, [281, 36, 5, 1], 323, 322),
    ],
)
def test_levels_nodes_and_build_calls(count: int, branching: int, levels: list[int], nodes: int, calls: int) -> None:
    memory, llm = grown(count, branching=branching)
    assert memory.report()["levels"] == levels
    assert memory.held == memory.report()["nodes"] == nodes
    assert len(llm.requests) == calls


def test_short_units_are_copied_and_only_groups_cost_calls() -> None:
    memory, llm = grown(281, leaf_summary="copy_if_short")
    assert llm.purposes == ["memwalker.group"] * 41
    assert next(memory.nodes()).text == "[2 May 2023] Ann: fact 1"


def test_a_text_longer_than_the_limit_is_summarised_although_short_ones_are_copied() -> None:
    memory, llm = walker(leaf_summary="copy_if_short", short_tokens=20)
    memory.write(unit(1, text="word " * 30))
    memory.write(unit(2))
    memory.consolidate()
    assert llm.purposes == ["memwalker.segment", "memwalker.group"]


@pytest.mark.parametrize(("count", "branching"), [(6, 4), (65, 8), (23, 3), (40, 2)])
def test_children_partition_their_parent_and_only_the_last_of_a_level_may_be_short(count: int, branching: int) -> None:
    memory, _ = grown(count, branching=branching)
    views = list(memory.nodes())
    for level in sorted({node.level for node in views} - {1}):
        row = [node for node in views if node.level == level]
        below = [[child for child in views if child.parents == (node.id,)] for node in row]
        assert [child.id for children in below for child in children] == [
            node.id for node in views if node.level == level - 1
        ]
        assert all(len(children) == branching for children in below[:-1])
        for node, children in zip(row, below, strict=True):
            assert node.sources == tuple(turn for child in children for turn in child.sources)


@pytest.mark.parametrize("settings", [{}, {"segment": "pack", "segment_tokens": 40}])
@pytest.mark.parametrize("branching", [2, 3, 5])
def test_appending_gives_the_offline_tree_for_every_prefix(branching: int, settings: dict[str, Any]) -> None:
    memory, llm = walker(branching=branching, **settings)
    lasting: dict[str, str] = {}
    for count in range(1, 31):
        before = len(llm.requests)
        memory.write(unit(count))
        memory.consolidate()
        offline, _ = grown(count, branching=branching, **settings)
        assert shape(memory) == shape(offline)
        full = {node.id: node.summary for level in memory._full for node in level}
        assert lasting.items() <= full.items()
        lasting = full
        # A level renews its open end at most once, beside what became full with this unit.
        assert len(llm.requests) - before <= 2 * len(memory.report()["levels"]) + 1


def test_a_full_node_is_summarised_once() -> None:
    memory, llm = walker(branching=2)
    for count in range(1, 9):
        memory.write(unit(count))
        memory.consolidate()
    asked = [request.fields["texts"] for request in llm.requests if request.purpose == "memwalker.segment"]
    assert len(asked) == len(set(asked)) == 8


def test_consolidating_without_news_asks_nothing() -> None:
    memory, llm = grown(9)
    before = len(llm.requests)
    memory.consolidate()
    assert len(llm.requests) == before


def test_segments_are_packed_with_whole_units_across_sessions_and_show_their_dates() -> None:
    memory, llm = walker(segment="pack", segment_tokens=45)
    memory.write(Unit("u1", unit(1).turns, "s1", None, "1 May 2023"))
    memory.write(Unit("u2", unit(2).turns, "s1", None, "1 May 2023"))
    memory.write(Unit("u3", unit(3).turns, "s2", None, "2 May 2023"))
    memory.write(unit(4, text="long " * 90))
    memory.write(unit(5))
    memory.consolidate()
    assert [node.sources for node in memory.nodes() if node.level == 1] == [("t1", "t2", "t3"), ("t4",), ("t5",)]
    assert llm.requests[0].fields["texts"] == ("[1 May 2023] Ann: fact 1\nAnn: fact 2\n[2 May 2023] Ann: fact 3",)


def test_a_segment_never_exceeds_its_size_but_by_a_single_unit() -> None:
    _, llm = grown(60, segment="pack", segment_tokens=100)
    texts = [request.fields["texts"][0] for request in llm.requests if request.purpose == "memwalker.segment"]
    assert len(texts) > 5
    assert all(60 < count_tokens(text) <= 100 + text.count("\n") for text in texts[:-1])


def test_sessions_can_be_kept_apart() -> None:
    memory, _ = walker(segment="pack", break_at_session=True)
    for number in range(1, 5):
        memory.write(unit(number, session=f"s{number // 3}"))
    memory.consolidate()
    assert [node.sources for node in memory.nodes() if node.level == 1] == [("t1", "t2"), ("t3", "t4")]


def test_a_summary_that_does_not_come_is_the_start_of_the_texts() -> None:
    with meter.metering() as ledger:
        memory, _ = grown(3, {"memwalker.segment": "", "memwalker.group": " \n"}, summary_tokens=12)
    *segments, root = [node.text for node in memory.nodes()]
    assert segments[0] == "[2 May 2023] Ann: fact 1"
    assert root.startswith("[2 May 2023]")
    assert count_tokens(root) <= 12
    assert ledger.notes["memwalker.truncated_texts"] == memory.report()["truncated_summaries"] == 4


def test_summaries_at_their_limit_are_counted() -> None:
    with meter.metering() as ledger:
        grown(2, {"memwalker.segment": "many words " * 10}, summary_tokens=5)
    assert ledger.notes["memwalker.summary_at_limit"] == 3  # two segments and their group
    said = "just as many words as allowed"
    for limit, counted in ((count_tokens(said), 2), (count_tokens(said) + 1, 0)):
        with meter.metering() as ledger:
            grown(2, {"memwalker.segment": said, "memwalker.group": "few"}, summary_tokens=limit)
        assert ledger.notes["memwalker.summary_at_limit"] == counted


def test_no_text_knows_of_units_that_come_later() -> None:
    memory, _ = grown(5, branching=2)
    assert not [node for node in memory.nodes() if "fact 6" in node.text]
    memory.write(unit(6))
    memory.consolidate()
    assert [node for node in memory.nodes() if "fact 6" in node.text]


# --- the walk ---

WORKED = {
    "memwalker.triage": [go(0), go(1), go(1)],
    "memwalker.leaf": ["Reasoning: not here\nAction: -1", "Reasoning: here\nAction: -2\nAnswer: X"],
}


def test_the_worked_walk() -> None:
    memory, llm = grown(6, WORKED, branching=4)
    texts = {node.id: node.text for node in memory.nodes()}
    walk = memory.walk(ASKED)
    assert walk.visits == ["node-3-0", "node-2-0", "segment-1", "node-2-0", "segment-2"]
    assert (walk.outcome, walk.answer, walk.counts["reverts"], walk.counts["calls"]) == ("committed", "X", 1, 5)
    prompts = walk_prompts(llm)
    assert [request.purpose for request in prompts] == [
        f"memwalker.{step}" for step in ("triage", "triage", "leaf", "triage", "leaf")
    ]
    again = [option.text for option in prompts[3].fields["options"]]
    assert again == [texts[f"segment-{number}"] for number in (0, 2, 3)]
    assert prompts[3].fields["numbers"] == "0, 1, 2"
    assert prompts[2].fields["background"] == (texts["node-3-0"], texts["node-2-0"])
    assert prompts[4].fields["background"] == (texts["node-3-0"], texts["node-2-0"], texts["segment-1"])


def test_a_clean_walk_costs_a_call_a_level_and_a_single_segment_one() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-2, "X"))}
    for count, calls in ((26, 3), (281, 4), (1, 1)):
        memory, llm = grown(count, script)
        memory.read(ASKED)
        assert len(walk_prompts(llm)) == calls


@pytest.mark.parametrize(
    ("count", "branching", "skip", "triages", "leaves"),
    [(6, 4, False, 8, 6), (6, 4, True, 5, 6), (26, 8, False, 30, 26), (26, 8, True, 25, 26)],
)
def test_when_every_leaf_is_rejected_each_is_read_once_and_the_walk_is_exhausted(
    count: int, branching: int, skip: bool, triages: int, leaves: int
) -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, llm = grown(count, script, branching=branching, skip_forced=skip, max_steps=99)
    walk = memory.walk(ASKED)
    asked = [request.purpose for request in walk_prompts(llm)]
    assert (asked.count("memwalker.triage"), asked.count("memwalker.leaf")) == (triages, leaves)
    assert walk.outcome == "exhausted"
    assert walk.counts["reverts"] == len(walk.leaves) == len({leaf.id for leaf in walk.leaves}) == leaves


def test_the_budget_of_calls_ends_a_walk_as_an_aborted_recall() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, llm = grown(26, script, skip_forced=False, output="answer")
    with meter.metering() as ledger:
        recall = memory.read(ASKED)
    assert len(walk_prompts(llm)) == 30
    assert (recall.aborted, recall.answer) == ("gave_up_budget", "no answer")
    assert ledger.notes["memwalker.gave_up_budget"] == 1


def test_a_rejected_leaf_that_is_offered_again_is_read_until_the_budget_is_spent() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, _ = grown(6, script, exclude_visited=False)
    walk = memory.walk(ASKED)
    assert (walk.outcome, len(walk.leaves), walk.counts["calls"]) == ("gave_up_budget", 1, 30)


@pytest.mark.parametrize("reply", GARBAGE)
def test_three_malformed_replies_at_the_root_abort_the_walk_after_one_logical_call(reply: str) -> None:
    memory, llm = grown(6, {"memwalker.triage": always(reply)})
    before = shape(memory)
    with meter.metering() as ledger:
        recall = memory.read(ASKED)
    assert recall.aborted == "gave_up_parse"
    assert memory.walk(ASKED).counts["calls"] == 1
    assert ledger.parse_failures["memwalker.triage"] == 3
    assert ledger.notes["memwalker.gave_up_parse"] == 1
    assert [(r.temperature, r.sample) for r in walk_prompts(llm)[:3]] == [(0.0, 0), (0.7, 1), (0.7, 2)]
    assert shape(memory) == before


@pytest.mark.parametrize("reply", [*GARBAGE, go(-2), go(-3), go(0), "Action: -2"])
def test_three_malformed_replies_at_a_leaf_abort_the_walk_too(reply: str) -> None:
    memory, _ = grown(6, {"memwalker.triage": always(go(0)), "memwalker.leaf": always(reply)})
    with meter.metering() as ledger:
        recall = memory.read(ASKED)
    assert recall.aborted == "gave_up_parse"
    assert ledger.parse_failures["memwalker.leaf"] == 3
    assert [item.id for item in recall.items] == ["u1"]


def test_two_malformed_replies_are_forgiven_at_every_node() -> None:
    script = {
        "memwalker.triage": ["?", "Action: 7", go(0), "?", "Action: two", go(0)],
        "memwalker.leaf": [go(-2), go(-3), go(-2, "X")],
    }
    memory, _ = grown(6, script, branching=4)
    with meter.metering() as ledger:
        walk = memory.walk(ASKED)
    assert (walk.outcome, walk.answer, walk.counts["invalid"]) == ("committed", "X", 6)
    assert ledger.parse_failures == {"memwalker.triage": 4, "memwalker.leaf": 2}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Reasoning: maybe Action: 1, no. Action: 0", (0, "")),
        ("Reasoning: part 3.\n**Action:** 2", (2, "")),
        ("Action: -2\nAnswer: 42 years", (-2, "42 years")),
        ("Action: −1", (-1, "")),
        ('{"action": -1, "answer": "no"}', (-1, "no")),
        ('```json\n{"reasoning": "", "action": 2}\n```', (2, "")),
        ('{"action": "1"}', (1, "")),
        ("Action: two", (None, "")),
        ("Action: 1.5", (None, "")),
        ("I take 1", (None, "")),
        ('{"action": -2, "answer": ["x"]}', (-2, "")),
        ('{"action": -2, "answer": 1987}', (-2, "1987")),
    ],
)
def test_the_action_is_the_last_number_after_its_label(text: str, found: tuple[int | None, str]) -> None:
    assert action_of(text) == found


@pytest.mark.parametrize("reply", [go(6), go(-1), go(-2, "X")])
def test_a_triage_accepts_only_the_numbers_that_it_offers(reply: str) -> None:
    memory, _ = grown(6, {"memwalker.triage": always(reply)})
    assert memory.walk(ASKED).outcome == "gave_up_parse"


def test_going_back_from_an_inner_node_is_offered_below_the_root_where_it_is_wanted() -> None:
    script = {"memwalker.triage": [go(0), go(-1), go(0), go(0)], "memwalker.leaf": always(go(-2, "X"))}
    memory, llm = grown(6, script, branching=4, triage_revert=True, skip_forced=False)
    walk = memory.walk(ASKED)
    assert [r.fields["numbers"] for r in walk_prompts(llm)[:4]] == ["0, 1", "-1, 0, 1, 2, 3", "0", "-1, 0, 1"]
    assert walk.visits == ["node-3-0", "node-2-0", "node-3-0", "node-2-1", "segment-4"]
    assert walk.counts["reverts"] == 1


def test_a_single_option_is_asked_about_where_going_back_is_the_other() -> None:
    script = {"memwalker.triage": [go(1), go(-1), go(0), go(0)], "memwalker.leaf": always(go(-2, "X"))}
    memory, llm = grown(5, script, branching=4, triage_revert=True)
    walk = memory.walk(ASKED)
    assert [r.fields["numbers"] for r in walk_prompts(llm)[:3]] == ["0, 1", "-1, 0", "-1, 0, 1, 2, 3"]
    assert walk.visits == ["node-3-0", "node-2-1", "node-3-0", "node-2-0", "segment-0"]
    assert walk.counts["forced"] == 1, "the root has one part left and no way back"


def test_the_working_memory_reaches_the_prompts_that_it_should() -> None:
    def prompts(mode: str) -> list[Request]:
        script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
        memory, llm = grown(6, script, branching=4, working_memory=mode)
        memory.read(ASKED)
        return walk_prompts(llm)

    off, leaf, both = prompts("off"), prompts("leaf"), prompts("both")
    triages = [at for at, request in enumerate(off) if request.purpose == "memwalker.triage"]
    assert [off[at].messages for at in triages] == [leaf[at].messages for at in triages]
    assert leaf[0].messages == both[0].messages
    assert all(leaf[at].messages != both[at].messages for at in triages[1:])
    assert all(not request.fields["background"] for request in off)
    assert all(leaf[at].fields["background"] for at in range(len(leaf)) if at not in triages)


def test_the_oldest_notes_but_the_roots_are_dropped_first() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, llm = grown(6, script, branching=4, background_tokens=80)
    texts = {node.id: node.text for node in memory.nodes()}
    with meter.metering() as ledger:
        memory.read(ASKED)
    last = walk_prompts(llm)[-1].fields["background"]
    assert last[0] == texts["node-3-0"]
    assert last[-1] == texts["segment-4"]
    assert texts["node-2-0"] not in last
    assert sum(map(count_tokens, last)) <= 80
    assert ledger.notes["memwalker.background_cut"] > 0
    memory = tuned(memory, {"background_tokens": 7})
    memory.read(ASKED)
    (root,) = walk_prompts(llm)[-1].fields["background"]
    assert count_tokens(root) <= 7
    assert texts["node-3-0"].startswith(root)


def test_the_leaf_prompt_shows_the_passage_and_not_its_summary() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-2, "X"))}
    memory, llm = grown(6, {**script, "memwalker.segment": "a summary", "memwalker.group": "a summary"})
    memory.read(Question("q", "Which?", options=("red", "blue"), time_text="9 May 2023", instruction="One word."))
    sent = walk_prompts(llm)[-1].messages[1][1]
    assert "<dialogue>\n[2 May 2023] Ann: fact 1\n</dialogue>" in sent
    assert all(part in sent for part in ("[A] red\n[B] blue", "9 May 2023", "One word.", "Which?"))
    assert "data" in walk_prompts(llm)[-1].messages[0][1]


def test_a_triage_shows_the_date_of_the_question_and_the_spans_of_the_parts() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-2, "X"))}
    for dates in (True, False):
        memory, llm = grown(6, script, branching=4, show_dates=dates)
        memory.read(ASKED)
        sent = walk_prompts(llm)[0].messages[1][1]
        assert "9 May 2023" in sent
        assert ("[0] [2 May 2023 – 5 May 2023] " in sent) is dates


def test_reasoning_can_be_switched_off() -> None:
    script = {
        "memwalker.triage_direct": always('{"action": 0}'),
        "memwalker.leaf_direct": always("Action: -2 Answer: X"),
    }
    memory, llm = grown(6, script, branching=4, reasoning=False)
    assert memory.walk(ASKED).answer == "X"
    for request in walk_prompts(llm):
        assert request.schema is not None
        assert "reasoning" not in request.schema["properties"]
        assert "reason" not in request.messages[1][1].lower()


# --- what is recalled ---


def test_evidence_is_the_committed_segment_in_order_of_time() -> None:
    script = {"memwalker.triage": always(go(1)), "memwalker.leaf": always(go(-2, "X"))}
    memory, _ = grown(12, script, segment="pack", segment_tokens=60)
    recall = memory.read(ASKED)
    second = [node for node in memory.nodes() if node.level == 1][1]
    assert tuple(turn for item in recall.items for turn in item.sources) == second.sources
    assert (recall.answer, recall.aborted) == (None, "")
    assert recall.items[0].text == "[7 May 2023] Ann: fact 6"
    memory = tuned(memory, {"output": "answer"})
    assert memory.read(ASKED).answer == "X"


def test_an_exhausted_walk_recalls_what_it_visited_newest_first_or_nothing() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, _ = grown(4, script)
    recall = memory.read(ASKED)
    assert [item.id for item in recall.items] == ["u4", "u3", "u2", "u1"]
    assert (recall.aborted, recall.answer) == ("", None)
    memory = tuned(memory, {"fallback": "empty"})
    assert memory.read(ASKED).items == ()
    memory = tuned(memory, {"output": "answer"})
    assert (memory.read(ASKED).answer, memory.read(ASKED).aborted) == ("no answer", "exhausted")


def test_segments_are_collected_until_they_hold_k_units() -> None:
    script = {"memwalker.triage": always(go(1)), "memwalker.leaf": always(go(-2, "X"))}
    memory, _ = grown(12, script, collect="k", k=4, branching=4)
    walk = memory.walk(ASKED)
    assert len(memory.read(ASKED).items) == 4
    assert [item.id for item in memory.read(ASKED).items] == ["u5", "u6", "u7", "u8"]
    assert (walk.outcome, walk.counts["reverts"]) == ("committed", 0)
    memory = tuned(memory, {"k": 99, "max_steps": 100})
    assert len(memory.read(ASKED).items) == 12
    memory = tuned(memory, {"max_steps": 5})
    found = memory.read(ASKED)
    assert 0 < len(found.items) < 12
    assert found.aborted == ""


def test_a_collecting_walk_notes_what_it_kept_and_answers_with_the_first() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": [go(-2, "first"), go(-2, "second")]}
    memory, llm = grown(4, script, collect="k", k=2, branching=4, output="answer")
    texts = {node.id: node.text for node in memory.nodes()}
    recall = memory.read(ASKED)
    assert walk_prompts(llm)[-1].fields["background"] == (texts["node-2-0"], texts["segment-0"])
    assert (recall.answer, recall.aborted, len(recall.items)) == ("first", "", 2)


def test_a_collecting_walk_that_keeps_nothing_recalls_at_most_k_visited_units() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, _ = grown(12, script, collect="k", k=3)
    assert len(memory.read(ASKED).items) == 3


def test_reading_leaves_no_trace_in_the_next_walk() -> None:
    def reply(request: Request) -> str:
        return go(-2 if "fact 3" in request.fields["memories"] else -1, "X")

    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": reply}
    memory, _ = grown(6, script, branching=4)
    other = Question("p", "And the lock?")
    first = [memory.walk(ASKED), memory.walk(other)]
    again = [memory.walk(other), memory.walk(ASKED)][::-1]
    assert [(walk.visits, walk.counts) for walk in first] == [(walk.visits, walk.counts) for walk in again]


def test_forced_moves_and_outcomes_are_noted() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-1))}
    memory, _ = grown(6, script, branching=4)
    with meter.metering() as ledger:
        memory.read(ASKED)
    assert ledger.notes == {"memwalker.exhausted": 1, "memwalker.forced": 3, "memwalker.reverts": 6}


def test_a_call_that_fails_for_good_is_not_swallowed() -> None:
    memory, _ = grown(6, {"memwalker.triage": [ModelError("gone")]})
    with pytest.raises(ModelError):
        memory.read(ASKED)


def test_the_small_fixture_costs_one_call_to_build_and_two_to_walk() -> None:
    script = {"memwalker.triage": always(go(0)), "memwalker.leaf": always(go(-2, "X"))}
    memory, llm = grown(3, script, leaf_summary="copy_if_short")
    assert (memory.held, llm.purposes) == (4, ["memwalker.group"])
    memory.read(ASKED)
    assert len(walk_prompts(llm)) == 2


def test_the_offline_engine_walks_to_a_passage_that_plain_similarity_would_not_give() -> None:
    memory = with_settings(MemWalker, {"segment_tokens": 60, "branching": 3})(llm=ExtractiveLLM(), prompts=Prompts())
    dense = Dense(embedder=HashingEmbedder(), k=10)
    for number in range(1, 20):
        text = (
            "The brass key hangs in the boathouse."
            if number == 11
            else f"Item {number} of the list is number {number * 7}."
        )
        for each in (memory, dense):
            each.write(unit(number, text=text))
    memory.consolidate()
    dense.consolidate()
    question = Question("q", "Where does the brass key hang?")
    recall, plain = memory.read(question), dense.read(question)
    assert "u11" in [item.id for item in recall.items]
    assert [item.id for item in recall.items] != [item.id for item in plain.items]
    answering = tuned(memory, {"output": "answer"})
    assert "boathouse" in (answering.read(question).answer or "")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("segment", "token"), ("branching", 1), ("k", 0), ("max_steps", 0), ("collect", "all"), ("working_memory", "on")],
)
def test_settings_that_cannot_work_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        walker(**{setting: value})


def test_the_two_rows_differ_in_their_leaves_and_in_how_much_they_collect() -> None:
    rows = [yaml.safe_load((CONF / f"{name}.yaml").read_text())["build"] for name in ("memwalker", "memwalker_unit")]
    assert {key: (rows[0][key], rows[1][key]) for key in rows[0] if rows[0][key] != rows[1][key]} == {
        "segment": ("pack", "unit"), "leaf_summary": ("llm", "copy_if_short"), "collect": ("first", "k"),
    }  # fmt: skip
    assert (rows[0]["segment_tokens"], rows[0]["branching"]) == (1000, 8)


@pytest.mark.slow
def test_ten_thousand_units_make_a_shallow_tree() -> None:
    memory, llm = grown(10_000, leaf_summary="copy_if_short")
    assert memory.report()["levels"] == [10_000, 1250, 157, 20, 3, 1]
    before = len(llm.requests)
    memory.write(unit(10_001))
    memory.consolidate()
    assert len(llm.requests) - before <= 5


def test_a_cut_step_of_a_walk_is_no_step() -> None:
    cut = Completion(go(0), stopped="cut")
    memory, llm = grown(6, {"memwalker.triage": cut, "memwalker.leaf": cut}, branching=4, attempts=2)
    with meter.metering() as ledger:
        recall = memory.read(ASKED)
    assert len(walk_prompts(llm)) == 2
    assert (sum(ledger.parse_failures.values()), recall.answer) == (2, None)

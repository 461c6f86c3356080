from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_loaders.schema import Asker, Question
from eval.running.reader import NOTHING, Reader, Rendered, render, within
from memsys.interface import Item, Recall
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens

CONF = Path(__file__).resolve().parents[2] / "conf" / "reader"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
QUESTION = Question(
    "q1", "Where did Ines learn to weave?", time_text="2023/06/25 (Sun) 09:00", instruction="Use one word."
)


def reader(name: str = "segtree", **changes: Any) -> Reader:
    settings: Mapping[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    return Reader(**{**settings, **changes})


def item(name: str, text: str, kind: str = "leaf") -> Item:
    return Item(name, text, 1.0, (name,), kind)


def shown(rendered: Rendered) -> str:
    return "\n".join(content for _, content in rendered.request.messages)


LATE = item("late", "[6:10 pm on 2 June, 2023] Ines: I learned to weave in Oaxaca.")
EARLY = item("early", "[1:56 pm on 8 May, 2023] Omar: I baked bread.")
UNDATED = item("undated", "Ines likes wool.", "semantic")
RECALL = Recall((LATE, UNDATED, EARLY))


def test_every_reader_shows_question_memories_and_instruction_and_is_answered_offline(
    subtests: pytest.Subtests,
) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            chosen = reader(name)
            rendered = render(chosen, Prompts(), QUESTION, RECALL)
            assert chosen.name == name
            for text in (QUESTION.text, QUESTION.instruction, *(each.text for each in RECALL.items)):
                assert shown(rendered).count(text) == 1
            assert "$" not in shown(rendered)
            assert (rendered.request.max_tokens, rendered.request.temperature) == (
                chosen.answer_tokens,
                chosen.temperature,
            )
            assert "Oaxaca" in ExtractiveLLM().submit(rendered.request).result().text


def test_the_readers_of_the_papers_are_all_there() -> None:
    wanted = """
        mem0 memtree segtree longmemeval realmem xmemory_locomo xmemory_perltqa locomo_official mab quality_choice multihop_rag dmr
        timem_longmemeval
    """
    assert set(wanted.split()) <= set(NAMES)


def test_recalled_text_is_delimited_and_declared_to_be_data(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            text = shown(render(reader(name), Prompts(), QUESTION, RECALL))
            inside = text[text.index("<memories>") : text.index("</memories>")]
            assert all(each.text in inside for each in RECALL.items)
            assert QUESTION.text not in inside
            assert "data" in text[: text.index("<memories>")]


def test_the_xmemory_locomo_reader_asks_for_at_most_eight_words_and_for_no_least_number() -> None:
    """xMemory App. C.2 bounds the length of an answer from above only."""
    last = shown(render(reader("xmemory_locomo"), Prompts(), QUESTION, RECALL)).splitlines()[-1]
    assert "at most eight words" in last
    assert not re.search(r"\b(two|three|four|five|six|seven)\b|at least|between", last)


def test_the_xmemory_perltqa_reader_shows_episodes_before_facts() -> None:
    """The order of the memories in xMemory App. C.2."""
    episode, fact = item("e", "[May] Ines wove.", "episode"), item("f", "Ines likes wool.", "semantic")
    text = shown(render(reader("xmemory_perltqa"), Prompts(), QUESTION, Recall((fact, episode))))
    assert text.index("Episodes:\n[May] Ines wove.") < text.index("Facts:\nInes likes wool.")


def test_the_timem_reader_keeps_the_order_of_the_recall_and_does_not_call_it_one_of_time() -> None:
    """TiMem Eq. 11: by level, then by closeness in time to the question."""
    text = shown(render(reader("timem_longmemeval"), Prompts(), QUESTION, RECALL))
    assert text.index(LATE.text) < text.index(UNDATED.text) < text.index(EARLY.text)
    assert "are in order of time" not in text
    assert f"Current date: {QUESTION.time_text}" in text


@pytest.mark.parametrize("name", ["segtree", "locomo_official"])
def test_where_some_questions_have_no_answer_the_prompt_names_the_words_to_say_so(name: str) -> None:
    assert "No information available" in shown(render(reader(name), Prompts(), QUESTION, RECALL))


def test_the_budget_leaves_out_whole_items_from_the_end_of_the_ranking() -> None:
    budget = count_tokens(LATE.text) + count_tokens(UNDATED.text)
    rendered = render(reader(max_context_tokens=budget), Prompts(), QUESTION, RECALL)
    assert (rendered.context_tokens, rendered.dropped) == (budget, 1)
    assert EARLY.text not in shown(rendered)
    assert render(reader(max_context_tokens=budget - 1), Prompts(), QUESTION, RECALL).dropped == 2


def test_the_budget_drops_by_rank_even_where_the_items_are_shown_by_time() -> None:
    budget = count_tokens(LATE.text)
    rendered = render(reader(order="chronological", max_context_tokens=budget), Prompts(), QUESTION, RECALL)
    assert LATE.text in shown(rendered)
    assert rendered.dropped == 2


def test_a_first_item_larger_than_the_budget_is_cut_and_kept() -> None:
    (kept,) = within([LATE, EARLY], 7)
    assert count_tokens(kept.text) == 7
    assert LATE.text.startswith(kept.text)
    assert (kept.id, kept.sources) == (LATE.id, LATE.sources)


def test_a_reader_that_fills_its_budget_cuts_the_first_text_that_does_not_fit_and_shows_no_later_one() -> None:
    whole = count_tokens(LATE.text)
    for left in range(1, count_tokens(UNDATED.text)):
        first, second = within([LATE, UNDATED, EARLY], whole + left, fill=True)
        assert (first, second.id) == (LATE, UNDATED.id)
        assert UNDATED.text.startswith(second.text)
        assert count_tokens(second.text) == left
    assert within([LATE, UNDATED], whole, fill=True) == [LATE]
    assert within([LATE, UNDATED], whole + 1) == [LATE]
    rendered = render(reader(max_context_tokens=whole + 2, fill=True), Prompts(), QUESTION, RECALL)
    assert (rendered.context_tokens, rendered.dropped) == (whole + 2, 1)


def test_without_a_budget_everything_is_shown_and_counted() -> None:
    rendered = render(reader(max_context_tokens=None), Prompts(), QUESTION, RECALL)
    assert rendered.dropped == 0
    assert rendered.context_tokens == sum(count_tokens(each.text) for each in RECALL.items)


def test_items_stand_by_rank_or_by_the_time_in_front_of_them() -> None:
    by_rank = shown(render(reader(order="rank"), Prompts(), QUESTION, RECALL))
    by_time = shown(render(reader(order="chronological"), Prompts(), QUESTION, RECALL))
    assert by_rank.index(LATE.text) < by_rank.index(UNDATED.text) < by_rank.index(EARLY.text)
    assert by_time.index(EARLY.text) < by_time.index(LATE.text) < by_time.index(UNDATED.text)


def test_kinds_of_items_are_grouped_under_their_headings() -> None:
    text = shown(render(reader(sections={"semantic": "Facts", "episode": "Episodes"}), Prompts(), QUESTION, RECALL))
    assert f"Facts:\n{UNDATED.text}" in text
    assert text.index(EARLY.text) < text.index("Facts:")
    assert "Episodes" not in text


def test_items_are_numbered_when_the_protocol_numbers_them() -> None:
    text = shown(render(reader(numbered=True), Prompts(), QUESTION, RECALL))
    assert f"1. {LATE.text}\n2. {UNDATED.text}\n3. {EARLY.text}" in text


def test_the_date_of_the_question_is_shown_only_where_the_protocol_shows_it() -> None:
    assert f"Current date: {QUESTION.time_text}" in shown(render(reader("longmemeval"), Prompts(), QUESTION, RECALL))
    hidden = render(reader("realmem"), Prompts(), QUESTION, RECALL)
    assert QUESTION.time_text not in shown(hidden)
    assert hidden.request.fields["now"] == ""


def test_options_are_lettered_and_the_offline_engine_answers_with_a_letter() -> None:
    question = Question(
        "q", "Where did Ines learn to weave?", options=("At home ", "In Oaxaca\n", "In Lyon", "Nowhere")
    )
    rendered = render(reader("quality_choice"), Prompts(), question, RECALL)
    assert "(A) At home\n(B) In Oaxaca\n(C) In Lyon\n(D) Nowhere" in shown(rendered)
    assert ExtractiveLLM().submit(rendered.request).result().text == "B"


def test_with_nothing_recalled_the_prompt_says_so() -> None:
    rendered = render(reader(), Prompts(), QUESTION, Recall(()))
    assert NOTHING in shown(rendered)
    assert (rendered.context_tokens, rendered.dropped) == (0, 0)
    assert ExtractiveLLM().submit(rendered.request).result().text == "unknown"


@pytest.mark.parametrize("recall", [Recall((LATE,), answer="Oaxaca"), Recall((), aborted="gave up")])
def test_what_has_an_answer_or_was_aborted_is_not_read_again(recall: Recall) -> None:
    with pytest.raises(ValueError, match="not read again"):
        render(reader(), Prompts(), QUESTION, recall)


def test_a_replicate_is_another_draw_of_the_same_request() -> None:
    first, second = (render(reader(), Prompts(), QUESTION, RECALL, sample=number).request for number in (0, 1))
    assert first.messages == second.messages
    assert (first.sample, second.sample) == (0, 1)


def test_a_reader_shows_who_asks_and_gatemems_keeps_it_out_of_the_question() -> None:
    asker = Asker("family_pelle", "family_member", ("family_member (patient_id: greta)",))
    asked = replace(QUESTION, asker=asker)
    plain = shown(render(reader("mem0"), Prompts(), asked, RECALL))
    assert "Asked by family_pelle (family_member)\n- family_member (patient_id: greta)\nUse one word." in plain
    assert "Asked by" not in shown(render(reader("mem0"), Prompts(), QUESTION, RECALL))
    own = shown(render(reader("gatemem"), Prompts(), asked, RECALL))
    assert "<asker>\nfamily_pelle (family_member)\n- family_member (patient_id: greta)\n</asker>\nUse one word." in own
    assert own.rstrip().endswith("The question: Where did Ines learn to weave?")

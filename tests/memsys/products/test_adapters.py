"""What adapters decide without their products, which are not installed here."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from memsys.products.adapters import cognee, graphiti, graphrag

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)


def test_episodes_of_graphiti_that_share_a_time_follow_one_another() -> None:
    product = object.__new__(graphiti.Product)
    product._last = None
    stamps = [None, NOON.timestamp(), NOON.timestamp(), None, NOON.timestamp() + 3600]
    seconds = [(product._moment(stamp) - NOON) / timedelta(seconds=1) for stamp in stamps]
    assert seconds[1:] == [0, 1, 2, 3600]


def test_a_fact_of_graphiti_shows_from_when_and_until_when_it_holds_and_the_turns_of_its_episodes() -> None:
    product = object.__new__(graphiti.Product)
    product._turns, product._said = {"e1": ["t1", "t2"], "e2": ["t2", "t3"]}, {"e1": "8 May", "e2": "9 May"}
    fact = SimpleNamespace(uuid="f", fact="Mara lives in Porto", episodes=["e1", "e2"], valid_at=NOON, invalid_at=None)
    assert product._item(fact, 0.5)["time_text"] == "08 May 2023"
    assert product._item(fact, 0.5)["sources"] == ["t1", "t2", "t3"]
    fact.valid_at, fact.invalid_at = None, NOON + timedelta(days=30)
    ended = product._item(fact, 0.5)
    assert (ended["time_text"], ended["text"]) == ("8 May", "Mara lives in Porto (no longer since 07 June 2023)")


def test_a_pipeline_of_cognee_that_only_reports_its_failure_raises() -> None:
    cognee._require_success(SimpleNamespace(status="PipelineRunCompleted"))
    with pytest.raises(RuntimeError, match="the model is away"):
        cognee._require_success(SimpleNamespace(status="PipelineRunErrored", error_message="the model is away"))


class Table:
    """What the adapter uses of a data frame."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = list(rows)

    def to_dict(self, _: str) -> list[dict[str, Any]]:
        return self._rows


def test_passages_of_graphrag_name_the_turns_of_all_units_with_their_text_and_other_items_name_none() -> None:
    product = object.__new__(graphrag.Product)
    product._turns = {"u1": ["t1", "t2"], "u2": ["t3"], "u3": ["t4"]}
    texts = [("hash a", 0, "u1"), ("hash b", 1, "u2"), ("hash a", 2, "u3")]
    columns = ("id", "human_readable_id", "document_id")
    product._units_of = graphrag._units_by_text([dict(zip(columns, text, strict=True)) for text in texts])
    shown = {
        "sources": Table({"id": "2", "text": "Ann: Hi"}, {"id": "1", "text": "Ben: Bye"}),
        "entities": Table({"id": "0", "entity": "ANN", "description": "greets"}),
        "relationships": Table({"id": "4", "source": "ANN", "target": "BEN", "description": "friends"}),
        "reports": Table({"id": "3", "content": "# Friends"}),
    }
    items = [item for items in product._items(shown) for item in items]
    assert [(item["id"], item["text"], item["sources"]) for item in items] == [
        ("report 3", "# Friends", []),
        ("entity 0", "ANN: greets", []),
        ("relationship 4", "ANN – BEN: friends", []),
        ("passage 2", "Ann: Hi", ["t1", "t2", "t4"]),
        ("passage 1", "Ben: Bye", ["t3"]),
    ]
    assert product._items({}) == [[], [], [], []], "a context without tables is an empty recall"


def test_a_recall_of_graphrag_that_k_cuts_keeps_the_first_rows_of_every_table() -> None:
    tables = [[{"id": f"{name}{row}"} for row in range(count)] for name, count in (("r", 1), ("e", 3), ("s", 4))]
    assert [item["id"] for item in graphrag._first(tables, 5)] == ["r0", "e0", "e1", "s0", "s1"]
    assert [item["score"] for item in graphrag._first(tables, 3)] == [3.0, 2.0, 1.0]
    assert len(graphrag._first(tables, 20)) == 8


def test_a_document_of_graphrag_has_date_and_speakers_and_a_unit_without_words_is_none() -> None:
    product = object.__new__(graphrag.Product)
    product._documents, product._turns, product._waiting = [], {}, False
    turns = [
        {"id": f"t{n}", "spoken": line, "text": text} for n, line, text in ((1, "Ann: Hi", "Hi"), (2, "Bye", "Bye"))
    ]
    blank = [{"id": "t0", "spoken": "Ann:  ", "text": " "}]
    assert product.write({"id": "u0", "time_text": "7 May", "turns": blank})["stored"] == 0
    assert not product._waiting
    assert product.write({"id": "u1", "time_text": "8 May", "turns": turns})["stored"] == 1
    (document,) = product._documents
    assert (document["id"], document["text"]) == ("u1", "[8 May]\nAnn: Hi\nBye")


def test_what_graphrag_only_logs_or_reports_raises() -> None:
    errors = graphrag._watch_errors()
    handler = logging.getLogger("graphrag.index").handlers[-1]
    fine, failed = SimpleNamespace(error=None), SimpleNamespace(error=ValueError("no entities"), workflow="extract")
    try:
        graphrag._require_success([fine], errors)
        with pytest.raises(RuntimeError, match="extract: no entities; no error was logged"):
            graphrag._require_success([fine, failed], errors)
        logging.getLogger("graphrag.index.operations").warning("one report is short")
        graphrag._require_success([fine], errors)
        try:
            raise ValueError("not the schema")
        except ValueError:
            logging.getLogger("graphrag.index.operations").exception("error generating community report")
        with pytest.raises(RuntimeError, match=r"left something out; .*: error generating community report: not the"):
            graphrag._require_success([fine], errors)
    finally:
        logging.getLogger("graphrag.index").removeHandler(handler)

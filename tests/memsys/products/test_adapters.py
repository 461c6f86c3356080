"""What adapters decide without their products, which are not installed here."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from data_loaders.schema import Turn, Unit
from memsys.products.adapters import cognee, everos, graphiti, graphrag, langmem, lightrag, mempalace, simplemem
from memsys.products.places import PINS
from memsys.systems.released import _given
from scripts.setup.options import load_option

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)


def given(name: str, day: str, *lines: str) -> dict[str, Any]:
    """A unit as the worker passes it on; its turns are called t1, t2 and so on."""
    turns = [Turn(f"t{number}", "", line) for number, line in enumerate(lines, 1)]
    return _given(Unit(name, tuple(turns), "s1", None, day), turns)


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


def test_a_recall_of_graphiti_holds_facts_and_then_entities_with_their_summaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Recipe(SimpleNamespace):
        def model_copy(self, update: dict[str, Any]) -> Recipe:
            return Recipe(**{**vars(self), **update})

    recipes = ModuleType("recipes")
    common = {"limit": 10, "episode_config": "bm25", "community_config": "rrf"}
    recipes.COMBINED_HYBRID_SEARCH_RRF = Recipe(**common, edge_config="fused", node_config="fused")  # type: ignore[attr-defined]
    recipes.COMBINED_HYBRID_SEARCH_CROSS_ENCODER = Recipe(edge_config="reranked", node_config="reranked")  # type: ignore[attr-defined]
    for name in ("graphiti_core", "graphiti_core.search", "graphiti_core.search.search_config_recipes"):
        monkeypatch.setitem(sys.modules, name, recipes)
    asked: list[Recipe] = []

    async def search(_: str, config: Recipe) -> SimpleNamespace:
        asked.append(config)
        edge = SimpleNamespace(uuid="f", fact="Mara has a dog", episodes=["e1"], valid_at=NOON, invalid_at=None)
        ann, dog = (
            SimpleNamespace(uuid=n, name=n, summary=said) for n, said in (("Mara", "Has a dog since May."), ("dog", ""))
        )
        return SimpleNamespace(
            edges=[edge], edge_reranker_scores=[0.1], nodes=[dog, ann], node_reranker_scores=[0.5, 0.5]
        )

    product = object.__new__(graphiti.Product)
    product._by = graphiti._rankings({})
    product._graph = SimpleNamespace(search_=search)
    product._turns, product._said, product._order = {"e1": ["t1"]}, {"e1": "8 May"}, {"f": 0}
    product._naming = {"Mara": ["t1", "t2"], "dog": ["t2"]}
    items = asyncio.run(product.read({"text": "What has Mara?", "k": 4}))
    assert [(item["text"], item["kind"], item["sources"]) for item in items] == [
        ("Mara has a dog", "fact", ["t1"]),
        ("Mara: Has a dog since May.", "entity", ["t1", "t2"]),
        ("dog", "entity", ["t2"]),
    ]
    (recipe,) = asked
    assert (recipe.limit, recipe.episode_config, recipe.community_config) == (2, None, None)
    assert (recipe.edge_config, recipe.node_config) == ("fused", "fused")
    product._by = graphiti._rankings({"facts_by": "cross_encoder", "entities_by": "rrf"})
    asyncio.run(product.read({"text": "What has Mara?", "k": 4}))
    assert (asked[-1].edge_config, asked[-1].node_config) == ("reranked", "fused")
    assert asked[-1].limit == 2


def test_a_rule_that_graphiti_does_not_have_is_refused_before_the_first_episode() -> None:
    with pytest.raises(ValueError, match="rrf or cross_encoder, found mmr"):
        graphiti._rankings({"facts_by": "mmr"})
    title, settings = (load_option("memory", "released_graphiti")[name] for name in ("title", "build"))
    assert graphiti._rankings(settings["settings"]) == {"edge_config": "rrf", "node_config": "rrf"}
    assert title.endswith("RRF)")


def test_a_recall_of_simplemem_is_all_that_its_planned_queries_bring_with_the_fields_that_it_shows() -> None:
    full = {
        "timestamp": "2023-05-08",
        "location": "Porto",
        "persons": ["Mara", "Ben"],
        "entities": ["Ferry"],
        "topic": "trip",
    }
    bare: dict[str, Any] = {"timestamp": None, "location": None, "persons": [], "entities": [], "topic": None}
    hits = [
        SimpleNamespace(entry_id=str(n), lossless_restatement=f"fact {n}", **(full if n == 0 else bare))
        for n in range(60)
    ]
    product = object.__new__(simplemem.Product)
    product._system = SimpleNamespace(hybrid_retriever=SimpleNamespace(retrieve=lambda _: hits))
    product._window = {}
    k = load_option("memory", "released_simplemem")["build"]["k"]
    items = product.read({"text": "Where?", "k": k})
    assert len(items) == 60
    lines = ["fact 0", "Location: Porto", "Persons: Mara, Ben", "Related entities: Ferry", "Topic: trip"]
    assert items[0]["text"].splitlines() == lines
    assert items[1]["text"] == "fact 1"
    assert len(product.read({"text": "Where?", "k": 7})) == 7


def test_a_memory_of_langmem_shows_the_day_on_which_it_was_last_written() -> None:
    product = object.__new__(langmem.Product)
    product._sources, product._undated, product._config = {}, set(), {}
    put: list[list[dict[str, str]]] = [[{"key": "a"}, {"key": "b"}], [{"key": "b"}]]
    product._manager = SimpleNamespace(invoke=lambda *_, **__: put.pop(0))
    product._store = SimpleNamespace(get=lambda *_: "held")
    for day in ("8 May 2023", ""):
        product.write(given("u1", day, "Ann: Hi"))
    hits = [SimpleNamespace(key=key, value={"content": {"content": key}}, updated_at=NOON) for key in "ab"]
    assert [product._item(hit, 0.0)["time_text"] for hit in hits] == ["08 May 2023", ""]


def test_cognee_is_asked_for_ten_of_each_lane_as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cognee", ModuleType("cognee"))
    sys.modules["cognee"].SearchType = SimpleNamespace(HYBRID_COMPLETION="hybrid")  # type: ignore[attr-defined]
    asked: list[dict[str, Any]] = []

    async def search(**given: Any) -> list[dict[str, Any]]:
        asked.append(given["retriever_specific_config"])
        return [{"objects_result": {"chunks": [], "entities": [], "facts": []}}]

    product = object.__new__(cognee.Product)
    product._turns, product._cognee = {"u1": ["t1"]}, SimpleNamespace(search=search)
    asyncio.run(product.read({"text": "Where?", "k": load_option("memory", "released_cognee")["build"]["k"]}))
    assert [asked[0][f"{lane}_top_k"] for lane in ("chunks", "entities", "facts")] == [10, 10, 10]


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
    assert len(graphrag._first(tables, 20)) == 8


def test_a_document_of_graphrag_has_date_and_speakers() -> None:
    product = object.__new__(graphrag.Product)
    product._documents, product._turns, product._waiting = [], {}, False
    assert product.write(given("u1", "8 May", "Ann: Hi", "Bye"))["stored"] == 1
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


def test_a_drawer_of_mempalace_is_its_unit_and_what_its_search_only_reports_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "results": [{"drawer_id": "d2", "text": "Ben: Bye"}, {"drawer_id": "d1", "text": "Ann: Hi"}]
    }
    filed: list[dict[str, Any]] = []

    def search(query: str, palace: str, **given: Any) -> dict[str, Any]:
        asked.append({"query": query, "palace": palace, **given})
        return found

    def file(_: Any, **given: Any) -> str | None:
        filed.append(given)
        return f"d{len(filed)}" if given["text"] else None

    for name, members in (
        ("searcher", {"search_memories": search}),
        ("convo_miner", {"file_conversation_exchange": file}),
    ):
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, f"mempalace.{name}", module)
    monkeypatch.setitem(sys.modules, "mempalace", ModuleType("mempalace"))
    product = object.__new__(mempalace.Product)
    product._palace, product._drawers, product._units = "palace", None, {}
    for number, text in ((1, "Hi"), (2, "Bye"), (3, "")):
        unit = {**given(f"u{number}", "May", text), "turn_ids": [f"t{number}"]}
        counts = product.write({**unit, "time": f"2023-05-0{number}"})
    assert (counts["stored"], counts["held"]) == (0, 2)
    assert [each["authored_at"] for each in filed] == ["2023-05-01", "2023-05-02", "2023-05-03"]
    items = product.read({"text": "Who?", "k": load_option("memory", "released_mempalace")["build"]["k"]})
    assert [(item["id"], item["sources"]) for item in items] == [("u2", ["t2"]), ("u1", ["t1"])]
    assert asked == [{"query": "Who?", "palace": "palace", "n_results": 10}], "as its benchmark, and its own ranking"
    found = {"error": "the index is broken", "results": []}
    with pytest.raises(RuntimeError, match="the index is broken"):
        product.read({"text": "Who?", "k": 3})


def test_rows_of_lightrag_name_the_turns_of_the_documents_that_are_held() -> None:
    product = object.__new__(lightrag.Product)
    product._units = {"0": ["t1", "t2"], "1": ["t3"]}
    asked: list[Any] = []
    context = {
        "entities": [
            {"entity_name": "Ann", "description": "greets", "file_path": "1<SEP>0<SEP>...truncated...(KEEP 2/9)"}
        ],
        "relationships": [{"src_id": "Ben", "tgt_id": "Ann", "description": "friends", "file_path": "0"}],
        "chunks": [{"chunk_id": "1-chunk-000", "content": "Ann: Hi", "file_path": "1"}],
    }
    found: dict[str, Any] = {"status": "success", "data": context}

    async def query(text: str, asked_for: Any) -> dict[str, Any]:
        asked.append((text, asked_for))
        return found

    product._graph, product._asked = SimpleNamespace(aquery_data=query), lambda: "hybrid"
    items = asyncio.run(product.read({"text": "Who?", "k": None}))
    assert [(item["id"], item["text"], item["sources"]) for item in items] == [
        ("entity Ann", "Ann: greets", ["t3", "t1", "t2"]),
        ("relationship Ann – Ben", "Ann – Ben: friends", ["t1", "t2"]),
        ("passage 1-chunk-000", "Ann: Hi", ["t3"]),
    ]
    assert len(asyncio.run(product.read({"text": "Who?", "k": 2}))) == 2
    found = {"status": "failure", "message": "nothing", "data": {}, "metadata": {"failure_reason": "no_results"}}
    assert asyncio.run(product.read({"text": "Who?", "k": None})) == []
    found = {"status": "failure", "message": "no tokenizer", "data": {}}
    with pytest.raises(RuntimeError, match="no tokenizer"):
        asyncio.run(product.read({"text": "Who?", "k": None}))


def test_a_document_that_lightrag_only_marks_as_failed_raises() -> None:
    lightrag._require_success({"status": "processed"})
    lightrag._require_success({"status": SimpleNamespace(value="processed")})
    for status in (None, {"status": "failed", "error_msg": "the model is away"}, {"status": "pending"}):
        with pytest.raises(RuntimeError, match=r"missing|the model is away|pending"):
            lightrag._require_success(status)


# --- EverOS -----------------------------------------------------------------------------------------------------------


class Ledger:
    """A case of EverOS without the product: the requests that the adapter would send, and the ledger that the product would write."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.found: list[dict[str, Any]] = []
        monkeypatch.setattr("os.environ", {})
        monkeypatch.setattr(everos, "_settings", lambda *_: {})
        self.product = everos.Product({"scratch": str(folder), "settings": {}})
        monkeypatch.setattr(self.product, "_post", self._post)
        monkeypatch.setattr(self.product, "_require_success", self._nothing)
        monkeypatch.setattr(self.product, "_fill_index", self._nothing)
        self.product._strategies = SimpleNamespace(wait_idle=self._idle)
        index = folder / "everos" / ".index" / "sqlite"
        index.mkdir(parents=True)
        self._database = sqlite3.connect(index / "system.db")
        self._database.execute("CREATE TABLE memcell (session_id, payload_json)")

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append((path, body))
        if path == "memory/flush":  # one piece a session
            items = [each for at, sent in self.sent if at == "memory/add" for each in sent["messages"]]
            self.cut([each for each in items if each["session"] == body["session_id"]])
        if path == "memory/add":
            for each in body["messages"]:
                each["session"] = body["session_id"]
        return {"episodes": self.found}

    def cut(self, messages: list[dict[str, Any]]) -> None:
        """Store a piece, as the product does."""
        row = (messages[0]["session"], json.dumps({"items": messages}))
        self._database.execute("INSERT INTO memcell VALUES (?, ?)", row)
        self._database.commit()

    async def _nothing(self) -> None: ...

    async def _idle(self, timeout: float) -> bool:
        return timeout > 0

    def write(self, session: str, *turns: tuple[str, str], role: str = "user") -> None:
        said = [{"id": name, "speaker": who, "role": role, "text": f"{name} it is"} for who, name in turns]
        unit = {"id": turns[0][1], "session": session, "time_text": "8 May", "stamp": NOON.timestamp(), "turns": said}
        asyncio.run(self.product.write(unit))

    def read(self) -> list[dict[str, Any]]:
        return asyncio.run(self.product.read({"text": "Who?", "k": 10}))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    return Ledger(tmp_path, monkeypatch)


def test_everos_gets_messages_in_batches_half_a_minute_apart_and_a_flush_after_each_session(ledger: Ledger) -> None:
    for number in range(15):
        ledger.write("s1", ("Mara", f"a{number}"), ("Ben", f"b{number}"))
    ledger.write("s2", ("Ben", "c0"))
    assert [(path, len(body.get("messages", []))) for path, body in ledger.sent] == [
        ("memory/add", 25),
        ("memory/add", 5),
        ("memory/flush", 0),
    ], "the next session closes the one before"
    asyncio.run(ledger.product.consolidate({}))
    assert [path for path, _ in ledger.sent[3:]] == ["memory/add", "memory/flush"]
    times = [each["timestamp"] for _, body in ledger.sent for each in body.get("messages", [])]
    assert [(time - 1000 * NOON.timestamp()) / 30_000 for time in times] == [*range(30), 0]
    asyncio.run(ledger.product.consolidate({}))
    assert len(ledger.sent) == 5, "nothing is flushed twice"


def test_an_episode_of_everos_names_the_turns_of_its_own_piece_and_the_day_they_were_said(ledger: Ledger) -> None:
    ledger.write("s1", ("Mara", "a"), ("Ben", "b"))
    asyncio.run(ledger.product.end_session({}))
    ledger.write("s2", ("Mara", "c"))
    asyncio.run(ledger.product.end_session({}))
    last = max(moment for session, moment in ledger.product._cells if session == "s1")
    stamp = datetime.fromtimestamp(last / 1000, UTC).isoformat()
    ledger.found = [{"id": "e", "subject": "Day", "episode": "They met.", "session_id": "s1", "timestamp": stamp}]
    (item,) = ledger.read()
    assert (item["text"], item["time_text"], item["sources"]) == ("Day: They met.", "8 May", ["a", "b"])
    assert ledger.sent[-1][1]["user_id"] == "mara_0"


def test_pieces_in_which_the_searched_person_of_everos_does_not_speak_are_counted(ledger: Ledger) -> None:
    ledger.write("s1", ("Mara", "a"), ("Ben", "b"))
    ledger.write("s2", ("Ben", "c"), ("Zoe", "d"))
    assert asyncio.run(ledger.product.consolidate({})) == {"episodes": 1, "episodes_not_searched": 1}


def test_people_of_everos_keep_ids_of_their_own_and_only_an_assistant_is_none(ledger: Ledger) -> None:
    assert len({ledger.product._sender(name) for name in ("王芳", "李雷", "Ann-Lee", "Ann Lee", "")}) == 5
    roles = [everos._role({"speaker": who, "role": "assistant"}) for who in ("Ben", "Assistant", "")]
    assert roles == ["user", "assistant", "assistant"]
    assert everos._role({"speaker": "", "role": "user"}) == "user"


def test_a_search_of_everos_that_no_reply_steered_is_an_error(ledger: Ledger) -> None:
    ledger.write("s1", ("Mara", "a"))
    asyncio.run(ledger.product.end_session({}))
    assert ledger.read() == []
    post = ledger.product._post

    async def failing(path: str, body: dict[str, Any]) -> dict[str, Any]:
        ledger.product._rounds.write_text('{"decider_failed": true}\n', encoding="utf-8")
        return await post(path, body)

    ledger.product._post = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no reply about the episodes found could be read"):
        ledger.read()


def test_a_search_that_everos_cannot_make_through_the_gateway_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one of llm_multiround, hybrid, vector, keyword; found agentic"):
        everos.Product({"scratch": str(tmp_path), "settings": {"method": "agentic"}})


def test_a_file_that_the_index_of_everos_lacks_is_an_error(tmp_path: Path) -> None:
    product = object.__new__(everos.Product)

    async def nothing() -> None: ...

    async def summary() -> SimpleNamespace:
        return SimpleNamespace(pending=0, failed_permanent=1, failed_retryable=0)

    product._index = SimpleNamespace(_scanner=SimpleNamespace(scan_once=nothing), queue_summary=summary)
    with pytest.raises(RuntimeError, match="the index lacks files"):
        asyncio.run(product._fill_index())


def test_the_title_of_mem0_2_says_what_a_plain_installation_cannot_search_by() -> None:
    """Without spaCy and fastembed there are neither keyword scores nor entities; conf/product/mem0ai.txt has neither."""
    pins = (PINS / "mem0ai.txt").read_text(encoding="utf-8")
    assert not {"spacy", "fastembed"} & {line.partition("==")[0] for line in pins.splitlines()}
    for name in ("released_mem0", "released_mem0_protocol"):
        assert "semantic search only" in load_option("memory", name)["title"]

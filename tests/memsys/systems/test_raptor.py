from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scripted import Script, ScriptedLLM, TableEmbedder
from sklearn.mixture import GaussianMixture

import memsys.systems.raptor
from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.raptor import Clustering, Raptor, RaptorSentence, _least_bic, _mixture, chunks, clusters
from memsys.tokens import count_tokens
from memsys.vectors import normalised

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf" / "memory"
SUMMARISE = "raptor.summarise"
PCA = Clustering(reducer="pca", dimension=3, max_components=6)
TOPICS = (
    "garden beans soil rake seed".split(),
    "harbour boat sail rope tide".split(),
    "oven bread flour yeast crust".split(),
)


def unit(text: str, number: int, day: int | None = None, session: str = "s1") -> Unit:
    time = None if day is None else datetime(2023, 5, day)
    return Unit(f"u{number}", (Turn(f"t{number}", "", text),), session, time, f"{day} May 2023" if day else "")


def history(count: int = 24) -> list[Unit]:
    """Units of three topics in turn, each on its own day."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(TOPICS[number % 3], 4)) for number in range(count)]
    return [unit(f"{text} {number}", number, 1 + number) for number, text in enumerate(texts)]


def heads(request: Request) -> str:
    return " ".join(" ".join(text.split()[:2]) for text in request.fields["texts"])


def memory(script: Script = heads, embedder: Any = None, **settings: Any) -> tuple[Raptor, ScriptedLLM]:
    llm = ScriptedLLM({SUMMARISE: script})
    small = {"reducer": "pca", "dimension": 3, "max_components": 6, "chunk_tokens": None}
    return with_settings(Raptor, {**small, **settings})(
        llm=llm, embedder=embedder or HashingEmbedder(64), prompts=Prompts()
    ), llm


def built(units: Sequence[Unit] | None = None, **settings: Any) -> tuple[Raptor, ScriptedLLM]:
    made, llm = memory(**settings)
    for one in history() if units is None else units:
        made.write(one)
    made.consolidate()
    return made, llm


def shape(made: Raptor) -> list[tuple[Any, ...]]:
    return [(node.id, node.parents, node.level, node.text, node.sources) for node in made.nodes()]


def blobs(count: int, size: int, spread: float = 0.01) -> np.ndarray:
    """`count` tight groups of `size` unit vectors, far apart; float32 [count * size, 16]."""
    draw = np.random.default_rng(0)
    centres = np.eye(16)[:count].repeat(size, axis=0)
    return normalised((centres + draw.normal(0, spread, centres.shape)).astype(np.float32))


@pytest.fixture(scope="module")
def tree() -> tuple[Raptor, ScriptedLLM]:
    return built(k=None, max_tokens=None)


# --- chunks ---------------------------------------------------------------------------------------------------------


def words(text: str) -> int:
    return len(text.split())


def texts(packed: list[list[RaptorSentence]]) -> list[str]:
    return [" ".join(sentence.text for sentence in chunk) for chunk in packed]


ODD = [RaptorSentence("A b c. D e f! G h? I j k l m n o, p q.", "t")]


def test_the_released_chunker_with_its_oddities() -> None:
    assert texts(chunks(ODD, 5, "code", words)) == ["A b c", "", " I j k l m n o", " p q", " D e f  G h"]
    assert texts(chunks([RaptorSentence("3.14 is pi", "t")], 5, "code", words)) == ["3 14 is pi"]


def test_the_chunker_of_the_paper_keeps_order_punctuation_and_the_limit() -> None:
    packed = texts(chunks(ODD, 5, "paper", words))
    assert packed == ["A b c.", "D e f! G h?", "I j k", "l m n o,", "p q."]
    assert texts(chunks([RaptorSentence("3.14 is pi. So!", "t")], 5, "paper", words)) == ["3.14 is pi. So!"]
    assert texts(chunks([RaptorSentence(" \n ", "t"), RaptorSentence("", "t")], 5, "paper", words)) == []


def test_no_chunk_is_longer_than_the_limit_even_without_spaces() -> None:
    long = "word " * 700 + "x" * 5000 + "。" * 400
    packed = texts(
        chunks([RaptorSentence("A start.", "t1"), RaptorSentence(long, "t2"), RaptorSentence("An end.", "t3")], 100)
    )
    assert max(count_tokens(" " + text, "cl100k_base") for text in packed) <= 100
    assert packed[0] == "A start."
    assert "".join(" ".join(packed).split()) == "".join(f"A start. {long} An end.".split())


def test_chunks_know_their_turns_and_stay_within_a_session() -> None:
    units = [
        Unit("u1", (Turn("t1", "Ann", "I sail."), Turn("t2", "Bob", "I bake. You know.")), "s1", None, "Monday"),
        Unit("u2", (Turn("t3", "Ann", "I see."),), "s1", None, "Monday"),
        Unit("u3", (Turn("t4", "Ann", "Hello again."),), "s2", None, "Friday"),
    ]
    made, _ = built(units, chunk_tokens=12)
    assert [(node.id, node.text, node.sources) for node in made.nodes()] == [
        ("chunk-0", "Ann: I sail. Bob: I bake.", ("t1", "t2")),
        ("chunk-1", "You know. Ann: I see.", ("t2", "t3")),
        ("chunk-2", "Ann: Hello again.", ("t4",)),
    ]
    (item, *_) = made.read(Question("q", "hello again")).items
    assert item.text == "[Friday] Ann: Hello again."


# --- clusters -------------------------------------------------------------------------------------------------------


def test_two_tight_groups_far_apart_are_never_mixed() -> None:
    groups = clusters(blobs(2, 20), np.ones(40), PCA, PCA)
    assert len(groups) >= 2
    assert all(len({row // 20 for row in group}) == 1 for group in groups)
    assert sorted({row for group in groups for row in group}) == list(range(40))


def test_equal_vectors_share_all_their_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = blobs(3, 2)[[0, 1, 2, 3, 4, 0]]
    # UMAP puts equal vectors at different places, so that the mixture may part them; here it does.
    parted = np.array([[1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], dtype=bool).T
    monkeypatch.setattr(memsys.systems.raptor, "_mixture", lambda points, how: parted)
    assert clusters(vectors, np.ones(6), PCA, PCA) == [[0, 5], [1, 2], [0, 3, 4, 5]]


def test_a_group_longer_than_the_limit_is_clustered_again() -> None:
    vectors, tokens = blobs(4, 8, 0.05), np.full(32, 10)
    coarse = replace(PCA, max_components=2)  # a mixture of one: everything is one global and one local group
    assert [len(group) for group in clusters(vectors, tokens, coarse, PCA)] == [32]
    finer = clusters(vectors, tokens, replace(coarse, max_tokens=100), replace(PCA, max_tokens=100))
    assert len(finer) > 1
    assert all(tokens[group].sum() <= 100 or len(group) < 5 for group in finer)


def test_reclustering_that_changes_nothing_ends_and_is_reported() -> None:
    same = np.repeat(blobs(1, 1), 20, axis=0)
    assert clusters(same, np.full(20, 1000), PCA, PCA) == [list(range(20))]
    twins = [unit("the tide is out", number) for number in range(8)]
    made, _ = built(twins, max_cluster_tokens=5)
    assert made.report()["oversized"] > 0


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_nodes_are_one_group_however_long(count: int) -> None:
    assert clusters(blobs(4, 1)[:count], np.full(count, 9999), PCA, PCA) == [list(range(count))]


def test_a_node_between_two_groups_is_in_both_unless_the_threshold_is_a_half() -> None:
    angles = np.concatenate([np.linspace(0, 0.5, 30), np.linspace(0.42, 0.92, 30)])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    most = {}
    for threshold in (0.1, 0.5):
        groups = clusters(vectors, np.ones(60), replace(PCA, threshold=threshold), PCA)
        most[threshold] = max(sum(row in group for group in groups) for row in range(60))
    assert most[0.1] > 1
    assert most[0.5] == 1


@pytest.mark.parametrize(("count", "spread", "left_out"), [(30, 0.05, True), (30, 0.6, True), (90, 0.2, False)])
def test_sizes_of_a_mixture_are_left_out_only_where_they_cannot_have_the_lowest_bic(
    monkeypatch: pytest.MonkeyPatch, count: int, spread: float, left_out: bool
) -> None:
    points = blobs(3, count // 3, spread)[:, :5].astype(np.float64)
    bics = {size: GaussianMixture(size, random_state=7).fit(points).bic(points) for size in range(1, 30)}
    assert all(_least_bic(points.shape, size) <= bic for size, bic in bics.items())
    sizes: list[int] = []
    fit = GaussianMixture.fit
    monkeypatch.setattr(
        GaussianMixture, "fit", lambda self, *data: (sizes.append(self.n_components), fit(self, *data))[1]
    )
    memberships = _mixture(points, Clustering(seed=7, max_components=30))
    assert memberships.shape[1] == min(bics, key=bics.__getitem__) == sizes[-1]
    assert (len(sizes) - 1 < len(bics)) == left_out


def test_the_released_code_forgets_dimension_and_threshold_when_it_clusters_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Clustering, Clustering]] = []

    def recorded(vectors: np.ndarray, tokens: np.ndarray, how: Clustering, again: Clustering) -> list[list[int]]:
        seen.append((how, again))
        return [list(range(len(vectors)))]

    monkeypatch.setattr(memsys.systems.raptor, "clusters", recorded)
    for mode in ("paper", "code"):
        built(mode=mode, threshold=0.5, max_cluster_tokens=99)
    (paper, paper_again), (code, code_again) = seen
    assert paper == paper_again == code
    assert (code.dimension, code.threshold, code.max_tokens) == (3, 0.5, 99)
    assert (code_again.dimension, code_again.threshold, code_again.max_tokens) == (10, 0.1, 99)


# --- the tree -------------------------------------------------------------------------------------------------------


def test_a_short_history_has_no_summaries_and_is_searched_like_a_flat_one() -> None:
    units = history(11)
    made, llm = built(units, dimension=10, k=4)
    dense = Dense(HashingEmbedder(64), k=4)
    for one in units:
        dense.write(one)
    assert not llm.requests
    assert made.report()["layers"] == [11]
    question = Question("q", "boat on the tide")
    assert [item.id for item in made.read(question).items] == [item.id for item in dense.read(question).items]


def test_every_summary_has_children_and_they_lie_one_layer_below(tree: tuple[Raptor, ScriptedLLM]) -> None:
    made, _ = tree
    nodes = {node.id: node for node in made.nodes()}
    layers = [node.level for node in made.nodes()]
    assert len(nodes) == made.held == sum(made.report()["layers"])
    assert layers == sorted(layers)
    assert max(layers) >= 2
    children: dict[str, list[str]] = {}
    for node in nodes.values():
        for parent in node.parents:
            children.setdefault(parent, []).append(node.id)
            assert nodes[parent].level == node.level + 1
    assert set(children) == {node.id for node in nodes.values() if node.kind == "summary"}
    for parent, below in children.items():
        assert set(nodes[parent].sources) == {turn for child in below for turn in nodes[child].sources}
    assert {turn for node in nodes.values() for turn in node.sources} == {f"t{number}" for number in range(24)}


def test_every_summary_is_one_call_layer_by_layer(tree: tuple[Raptor, ScriptedLLM]) -> None:
    made, llm = tree
    summaries = [node for node in made.nodes() if node.kind == "summary"]
    assert llm.purposes == [SUMMARISE] * len(summaries)
    assert [heads(request) for request in llm.requests] == [node.text for node in summaries]
    assert all(request.max_tokens == 100 for request in llm.requests)


def test_the_prompt_holds_the_members_on_one_line_each_with_a_blank_line_between() -> None:
    units = [unit(f"bread\nand salt {number}", number) for number in range(4)]
    made, llm = built(units, dimension=1, summary_tokens=60)
    assert (
        llm.requests[0]
        .messages[1][1]
        .startswith(
            "<passages>\nbread and salt 0\n\nbread and salt 1\n\nbread and salt 2\n\nbread and salt 3\n</passages>"
        )
    )
    assert llm.requests[0].max_tokens == 60
    assert made.report()["layers"] == [4, 1]


def test_there_are_no_more_layers_than_asked_for() -> None:
    made, _ = built(layers=1)
    assert len(made.report()["layers"]) == 2


def test_the_same_history_makes_the_same_tree(tree: tuple[Raptor, ScriptedLLM]) -> None:
    again, _ = built(k=None, max_tokens=None)
    assert shape(again) == shape(tree[0])


def test_consolidating_in_between_changes_nothing() -> None:
    units = history()
    made, llm = memory()
    for number, one in enumerate(units):
        made.write(one)
        if number == 14:
            made.consolidate()
            assert made.report()["layers"][0] == 15
            llm.requests.clear()
    assert made.report()["layers"][0] == 15  # what came since waits
    made.consolidate()
    calls = len(llm.requests)
    made.consolidate()
    assert len(llm.requests) == calls  # nothing new, nothing built
    assert shape(made) == shape(built()[0])


@pytest.mark.parametrize("reply", ["", "  \n"])
def test_an_empty_summary_becomes_the_start_of_its_members_after_four_attempts(reply: str) -> None:
    units = [unit(f"bread and salt and water {number}", number) for number in range(4)]
    with meter.metering() as ledger:
        made, llm = built(units, script=reply, dimension=1, summary_tokens=7)
    assert [request.retry for request in llm.requests] == [0, 1, 2, 3]
    assert ledger.notes == {"raptor.truncated_members": 1}
    assert list(made.nodes())[-1].text == "bread and salt and water 0"
    assert made.report()["failed_summaries"] == 1


@pytest.mark.parametrize("reply", ["Sure!", '```json {"a": [', "[]", "{}"])
def test_any_other_reply_is_the_summary_because_the_step_asks_for_plain_text(reply: str) -> None:
    made, _ = built(history(4), script=reply, dimension=1)
    assert list(made.nodes())[-1].text == reply
    assert made.report()["failed_summaries"] == 0


def test_a_call_that_fails_for_good_fails_the_build() -> None:
    made, _ = memory(script=ModelError("the endpoint is gone"))
    for one in history():
        made.write(one)
    with pytest.raises(ModelError):
        made.consolidate()
    assert made.held == 0


def test_leaves_are_embedded_as_they_are_and_summaries_without_line_breaks() -> None:
    embedded: list[str] = []

    class Recording(HashingEmbedder):
        def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
            embedded.extend(texts)
            return super().embed(texts, query=query)

    units = [unit(f"bread\nsalt {number}", number) for number in range(4)]
    built(units, script="two\nlines", embedder=Recording(64), dimension=1)
    assert embedded == [*(one.text for one in units), "two lines"]
    embedded.clear()
    built(units, script="two\nlines", embedder=Recording(64), dimension=1, mode="code")
    assert embedded[0] == "bread salt 0"


# --- recall ---------------------------------------------------------------------------------------------------------


def two_layers(**settings: Any) -> Raptor:
    """Four leaves at cosine .2 .9 .8 .1 of the question `q`, and their summary at .85."""
    angles = {"a": 0.2, "b": 0.9, "c": 0.8, "d": 0.1, "all": 0.85, "q": 1.0}
    table = {text: (cosine, (1 - cosine**2) ** 0.5) for text, cosine in angles.items()}
    units = [unit(text, number, 1 + number) for number, text in enumerate("abcd")]
    return built(units, script="all", embedder=TableEmbedder(table), dimension=1, **settings)[0]


def ids(made: Raptor, text: str = "q") -> list[str]:
    return [item.id for item in made.read(Question("q", text)).items]


def test_a_collapsed_recall_ranks_all_layers_together() -> None:
    made = two_layers(k=3)
    items = made.read(Question("q", "q")).items
    assert [item.id for item in items] == ["u1", "node-4", "u2"]
    assert [item.score for item in items] == pytest.approx([0.9, 0.85, 0.8], abs=1e-6)
    assert [item.level for item in items] == [0, 1, 0]
    assert items[1].text == "[1 May 2023 – 4 May 2023] all"
    assert items[1].sources == ("t0", "t1", "t2", "t3")
    assert ids(two_layers(k=2)) == ["u1", "node-4"]


def test_the_first_node_that_exceeds_the_budget_ends_the_recall() -> None:
    sizes = {"one": 100, "two": 3450, "three": 50}
    filler = {name: " ".join(["word"] * size) for name, size in sizes.items()}
    table = {filler["one"]: (1, 0), filler["two"]: (0.9, 0.4), filler["three"]: (0.8, 0.6), "q": (1, 0)}
    assert [count_tokens(text, "cl100k_base") for text in filler.values()] == [100, 3450, 50]
    units = [unit(text, number) for number, text in enumerate(filler.values())]
    made, _ = built(units, embedder=TableEmbedder(table), k=3, max_tokens=3500)
    assert ids(made) == ["u0"]
    made = tuned(made, {"max_tokens": 3600})
    assert ids(made) == ["u0", "u1", "u2"]


def test_a_traversal_goes_from_parents_to_their_best_children() -> None:
    made = two_layers(retrieval="traversal", traversal_k=2, k=None, max_tokens=1)
    assert ids(made) == ["node-4", "u1", "u2"]  # the budget does not bind it
    changed = tuned(made, {"traversal_layers": 1})
    assert ids(changed) == ["node-4"]
    changed = tuned(made, {"start_layer": 0})
    assert ids(changed) == ["u1", "u2"]
    changed = tuned(changed, {"start_layer": None, "k": 2})
    assert ids(changed) == ["node-4", "u1"]


def test_a_traversal_takes_at_most_so_many_of_each_layer_parents_first(tree: tuple[Raptor, ScriptedLLM]) -> None:
    made = tuned(tree[0], {"retrieval": "traversal", "traversal_k": 2})
    items = made.read(Question("q", "garden soil")).items
    levels = [item.level for item in items]
    assert levels == sorted(levels, reverse=True)
    assert all(levels.count(level) <= 2 for level in set(levels))
    parents = {node.id: set(node.parents) for node in made.nodes()}
    top = max(levels)
    assert all(parents[item.id] & {other.id for other in items} for item in items if item.level < top)


def test_the_recall_differs_from_that_of_dense_retrieval(tree: tuple[Raptor, ScriptedLLM]) -> None:
    dense = Dense(HashingEmbedder(64), k=6)
    for one in history():
        dense.write(one)
    made = tuned(tree[0], {"k": 6})
    question = "garden soil"
    assert ids(made, question) != [item.id for item in dense.read(Question("q", question)).items]
    assert any(name.startswith("node-") for name in ids(made, question))


def test_reading_leaves_the_memory_as_it_was_and_calls_no_model(tree: tuple[Raptor, ScriptedLLM]) -> None:
    made, llm = tree
    before, calls = shape(made), len(llm.requests)
    assert made.read(Question("q", "boat")) == made.read(Question("q", "boat"))
    assert (shape(made), len(llm.requests)) == (before, calls)


def test_an_empty_memory_recalls_nothing() -> None:
    made, _ = memory(chunk_tokens=100)
    made.consolidate()
    assert made.read(Question("q", "anything")).items == ()
    made.write(unit("", 0))
    made.consolidate()
    assert made.read(Question("q", "anything")).items == ()


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reducer", "package"), [("umap", "umap"), ("pca", "sklearn")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, reducer: str, package: str
) -> None:
    monkeypatch.setattr(memsys.systems.raptor, "find_spec", lambda name: None if name == package else name)
    with pytest.raises(ImportError, match=rf"{package}: pip install memsys-bench\[cluster\]"):
        memory(reducer=reducer)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="reducer must be one of umap, pca"):
        memory(reducer="tsne")
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, found 0"):
        memory(chunk_tokens=0)


def test_a_recall_holds_2000_tokens_as_in_the_paper_and_ten_nodes_of_3500_as_in_the_released_code() -> None:
    """RAPTOR's question answering took collapsed trees of 2,000 tokens, about 20 nodes; the code's defaults are 10 and 3,500."""
    paper, code = (yaml.safe_load((CONF / f"{name}.yaml").read_text())["build"] for name in ("raptor", "raptor_code"))
    assert (paper["mode"], paper["k"], paper["max_tokens"]) == ("paper", None, 2000)
    assert (code["mode"], code["k"], code["max_tokens"]) == ("code", 10, 3500)
    assert {name for name in paper if paper[name] != code[name]} == {"mode", "k", "max_tokens"}
    made, _ = built(history(28), k=paper["k"], max_tokens=paper["max_tokens"])
    assert len(made.read(Question("q", "fact")).items) > 10


def test_the_variant_of_the_segment_tree_paper_has_its_settings() -> None:
    build = yaml.safe_load((CONF / "raptor_segt.yaml").read_text())["build"]
    assert (build["dimension"], build["threshold"], build["max_cluster_tokens"], build["k"]) == (3, 0.5, 3500, 10)
    assert build["chunk_tokens"] is None

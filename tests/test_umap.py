"""What the project asks of UMAP, in one test: the first process that uses it compiles for half a minute."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedLLM

from data_loaders.schema import Turn, Unit
from eval.report.points import projected
from memsys.embed import HashingEmbedder
from memsys.interface import with_settings
from memsys.lean import umap
from memsys.prompts import Prompts
from memsys.systems.raptor import Clustering, Raptor, clusters
from memsys.systems.raptor import _reduced as reduced_to
from memsys.vectors import normalised

WORDS = "garden beans soil rake seed harbour boat sail rope tide oven bread flour yeast crust".split()


def summary_tree() -> Raptor:
    """A tree of one layer over fifteen units."""
    llm = ScriptedLLM({"raptor.summarise": "A summary."})
    made = with_settings(
        Raptor, {"reducer": "umap", "dimension": 3, "layers": 1, "max_components": 4, "chunk_tokens": None}
    )(llm=llm, embedder=HashingEmbedder(64), prompts=Prompts())
    for number, word in enumerate(WORDS):
        text = f"{word} {WORDS[number - 3]} {number}"
        made.write(Unit(f"u{number}", (Turn(f"t{number}", "", text),), "s1", datetime(2023, 5, 1 + number), ""))
    made.consolidate()
    return made


@pytest.mark.integration
def test_umap_does_not_mix_far_groups_and_gives_the_same_tree_and_the_same_map_twice() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(16)[:2].repeat(12, axis=0)
    vectors = normalised((centres + rng.normal(0, 0.01, centres.shape)).astype(np.float32))
    how = Clustering(max_components=4)
    assert all(len({row // 12 for row in group}) == 1 for group in clusters(vectors, np.ones(24), how, how))

    first, second = summary_tree(), summary_tree()
    nodes = [
        [(node.id, node.parents, node.level, node.text, node.sources) for node in tree.nodes()]
        for tree in (first, second)
    ]
    assert nodes[0] == nodes[1]
    assert first.report()["layers"][1] >= 1

    few = np.random.default_rng(1)
    few.integers(9)  # SciPy's eigenvectors restart on these points
    points = normalised((few.normal(size=(15, 8)) @ few.normal(size=(8, 64))).astype(np.float32))
    reduced = [reduced_to(points, Clustering(), 10, 3) for _ in range(20)]
    assert all(np.array_equal(each, reduced[0]) for each in reduced)

    points = rng.normal(size=(20, 5))
    assert np.array_equal(projected(points, "umap", 3), projected(points, "umap", 3))

    kept = umap().umap_.smooth_knn_dist
    assert list(Path(kept.stats.cache_path).glob(f"*{kept.py_func.__name__}*.nbc"))  # the next process loads it

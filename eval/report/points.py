"""The points of a figure, before they are drawn: the CSV file next to every figure holds exactly these points.

Points come from cells of a table, levels of recalled items, depths and shapes of trees, maps of node vectors, and costs by size.

Deviations and decisions. Papers print their figures without numbers, so a published point is drawn only where a table or a sentence
gives its value. Several settings under one mark (SegTreeMem Fig. 6 averages over horizons) are averaged question by question, over the
questions that all of them scored. TiMem's Fig. 3 is a UMAP. Ours is a projection on the first two principal components, with UMAP on
request, and one map per data set, so that its levels share their axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from data_loaders.schema import Case
from eval.files.run_folder import RunFolder, read_items, read_predictions
from eval.files.store import RunError
from eval.report.cell import Cell
from eval.report.published import Published
from eval.report.tables import AnyCell, estimate_of
from eval.statistics.stats import Estimate, preferred_interval
from eval.structure.tree import Tree, depths, tokens_by_depth, top_down
from memsys.inert import csv_text
from memsys.lean import umap

PROJECTIONS = ("pca", "umap")


@dataclass(frozen=True, slots=True)
class Point:
    """One mark of a figure."""

    panel: str
    series: str
    x: str | float
    """A category or a number; empty for a horizontal line across the whole panel."""
    y: float
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the ends of the 95 % interval, unless the figure names another range."""
    n: int = 0
    """Number of questions, nodes or steps that the point summarises; 0 for a published one."""
    origin: str = "ours"
    """ours or published."""
    label: str = ""
    """Lines: why the point is drawn open. Pareto fronts: the row's number. Trees: the node's id."""
    link: str = ""
    """Trees: indices of the parents among the points of the panel, separated by spaces."""
    shade: float | None = None
    """Trees: number of the dialogue that a node comes from; the mean for several dialogues."""


FIELDS = tuple(Point.__slots__)


def grouped(points: Iterable[Point], field: Literal["panel", "series"]) -> dict[str, list[Point]]:
    """The points by panel or by series, in the order of their first points."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(getattr(point, field), []).append(point)
    return groups


def as_csv(points: Iterable[Point], engine: str) -> str:
    """One CSV line per point; the last column `engine` names the models behind the numbers."""
    rows = [[*(six_digits(getattr(point, name)) for name in FIELDS), engine] for point in points]
    return csv_text([[*FIELDS, "engine"], *rows])


def six_digits(value: object) -> str:
    """A value in a CSV: a number with six significant digits, empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- scores -------------------------------------------------------------------------------------------------------------


def averaged(cells: Sequence[AnyCell]) -> Estimate | None:
    """Combine the cells under one mark into one estimate; several cells are averaged over the questions that all of them scored.

    None when no cell has a number.

    Raises:
        ValueError: there are several cells and some are measures, which have no scores of questions.
    """
    known = [cell for cell in cells if not isinstance(cell, str)]
    if len(known) == 1:
        return estimate_of(known[0])
    scored = [cell for cell in known if isinstance(cell, Cell)]
    if len(scored) < len(known):
        raise ValueError("several costs or properties under one mark cannot be averaged question by question")
    if not scored:
        return None
    column = scored[0].column
    shared = [question for question in column.questions if all(question.key in cell.scores for cell in scored)]
    if not shared:
        return None
    return column.estimate(shared, [fmean(cell.scores[question.key] for cell in scored) for question in shared])


def scored(at: Point, cells: Sequence[AnyCell]) -> list[Point]:
    """Our point in place of `at`, followed by the published point if there is a single cell and it has one."""
    known = [cell for cell in cells if not isinstance(cell, str)]
    ours = averaged(cells)
    points = []
    if ours is not None:
        interval = preferred_interval(ours)
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        points.append(replace(at, y=ours.mean, low=low, high=high, n=ours.n))
    if len(known) == 1 and known[0].published is not None:
        points.append(published(at, known[0].published))
    return points


def published(at: Point, number: Published) -> Point:
    """A published number, in our unit, in place of `at`."""
    return replace(at, y=number.value, low=number.low, high=number.high, n=0, origin="published")


# --- recalled items and their levels ------------------------------------------------------------------------------------


def recalled_levels(folder: Path) -> Counter[int]:
    """Number of recalled items of a run by level, over all questions."""
    counts: Counter[int] = Counter()
    for case in RunFolder(folder).cases():
        levels = {key: int(item["level"]) for key, item in read_items(case).items()}
        for prediction in read_predictions(case).values():
            counts.update(levels[key] for key in prediction.items)
    return counts


# --- trees --------------------------------------------------------------------------------------------------------------


def by_depth(trees: Sequence[Tree], at: Point, measure: str) -> list[Point]:
    """A point per depth in place of `at`: the mean number of `nodes` per tree, or the median `tokens` of a node with its quartiles."""
    points = []
    for depth, counts in tokens_by_depth(trees).items():
        place = replace(at, x=float(depth), n=len(counts), y=len(counts) / len(trees))
        if measure == "tokens":
            low, middle, high = (float(value) for value in np.percentile(counts, (25, 50, 75)))
            place = replace(place, y=middle, low=low, high=high)
        points.append(place)
    return points


def drawn_tree(tree: Tree, case: Case, panel: str) -> list[Point]:
    """A tree as points: leaves side by side in the order of the history, parents above the middle of their children.

    A node with several parents is placed below the first and linked to all. `y` is the negative depth; a hidden root is drawn, too.
    `shade` is the mean number of the dialogues that a node's sources belong to.
    """
    dialogue = {turn.id: number for number, session in enumerate(case.sessions, 1) for turn in session.turns}
    order = {name: place for place, name in enumerate(dialogue)}
    deep, below = depths(tree), tree.children
    own = [[child for child in under if tree.parents[child][0] == node] for node, under in enumerate(below)]
    first = [min((order[name] for name in names if name in order), default=len(order)) for names in tree.sources]
    across: dict[int, float] = {}
    for node in _left_to_right(tree, own, first):
        across[node] = float(len(across))
    for node in reversed(top_down(tree)):
        if own[node]:
            across[node] = fmean(across[child] for child in own[node])
    points = []
    for node, name in enumerate(tree.ids):
        kind, link = "inner" if below[node] else "leaf", " ".join(map(str, tree.parents[node]))
        shade = _mean([dialogue[source] for source in tree.sources[node] if source in dialogue])
        points.append(Point(panel, kind, across[node], float(-deep[node]), label=name, link=link, shade=shade))
    return _rooted(points, tree, panel) if tree.hidden_root else points


def _left_to_right(tree: Tree, own: Sequence[Sequence[int]], first: Sequence[int]) -> list[int]:
    """Nodes without a child that is placed below them, from left to right."""
    waiting = sorted((node for node, above in enumerate(tree.parents) if not above), key=lambda node: -first[node])
    ordered = []
    while waiting:
        node = waiting.pop()
        waiting += sorted(own[node], key=lambda child: (-first[child], -child))
        if not own[node]:
            ordered.append(node)
    return ordered


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _rooted(points: Sequence[Point], tree: Tree, panel: str) -> list[Point]:
    """The points, linked to a point for the hidden root, which comes last."""
    tops = [node for node, above in enumerate(tree.parents) if not above]
    shades = [shade for node in tops if (shade := points[node].shade) is not None]
    middle = fmean(float(points[node].x) for node in tops)
    root = Point(panel, "inner", middle, 0.0, label="(root)", shade=_mean(shades))
    linked = [replace(one, link=str(len(points))) if not one.link else one for one in points]
    return [*linked, root]


# --- maps ---------------------------------------------------------------------------------------------------------------


def mapped(trees: Sequence[Tree], panel: str, how: str = "pca", seed: int = 0) -> list[Point]:
    """The vectors of all nodes in two dimensions: a panel per level, a series per history; nodes without a vector are left out.

    Raises:
        RunError: fewer than three vectors, an unknown projection, or UMAP is not installed.
    """
    kept = [(tree, node) for tree in trees for node in range(len(tree.ids)) if tree.vectors[node].any()]
    if len(kept) < 3:
        raise RunError(f"a map needs three nodes with a vector, found {len(kept)}")
    flat = projected(np.stack([tree.vectors[node] for tree, node in kept]).astype(np.float64), how, seed)
    level = {name: f"{panel}, level {name}" for name in {tree.levels[node] for tree, node in kept}}
    points = [
        Point(level[tree.levels[node]], tree.case_id, float(x), float(y), n=1, label=tree.ids[node])
        for (tree, node), (x, y) in zip(kept, flat, strict=True)
    ]
    return sorted(points, key=lambda point: int(point.panel.rpartition(" ")[2]))


def projected(vectors: np.ndarray, how: str, seed: int) -> np.ndarray:
    """Rows [n, d] in two dimensions [n, 2]: the first principal components (signs fixed), or UMAP by cosine.

    Raises:
        RunError: an unknown projection, or UMAP is not installed.
    """
    if how == "umap":
        try:
            library = umap()
        except ImportError as error:
            raise RunError("projection=umap needs umap-learn: pip install 'memsys-bench[cluster]'") from error
        near = min(15, len(vectors) - 1)
        fitted = library.UMAP(n_neighbors=near, metric="cosine", init="random", random_state=seed, n_jobs=1)
        return np.asarray(fitted.fit_transform(vectors), dtype=np.float64)
    if how != "pca":
        raise RunError(f"projection must be one of {', '.join(PROJECTIONS)}, found {how!r}")
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    largest = np.abs(axes).argmax(axis=1)
    signs = np.sign(axes[np.arange(len(axes)), largest])
    return np.asarray(centred @ (axes * signs[:, None]).T)


# --- quality against cost -----------------------------------------------------------------------------------------------


def front(points: Sequence[Point]) -> list[Point]:
    """The non-dominated points: no other point is at least as good (higher y) and as cheap (lower x), and better in one of the two."""
    places = [(float(one.x), -one.y) for one in points]
    beaten = [any(cost <= x and loss <= y and (cost, loss) != (x, y) for cost, loss in places) for x, y in places]
    return [one for one, worse in zip(points, beaten, strict=True) if not worse]

"""xMemory: the objective and the themes, Stage I, Stage II, and what the switches of its tables turn off."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from scripted import Script, ScriptedLLM

from data_loaders.schema import Question, Turn, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import tuned, with_settings
from memsys.llm import meter
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.prompts import Prompts
from memsys.systems.dense import Dense
from memsys.systems.nemori import Mode, NemoriStore, Statement
from memsys.systems.xmemory import Backbone, XMemory, admitted, minmax, rank_episodes, representatives
from memsys.systems.xmemory.themes import (
    Partition,
    ThemeRules,
    Whole,
    _Growing,
    bell,
    chunks,
    components,
    guidance,
    nearest,
    partition,
    principal_order,
    sparsity,
)
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, normalised


def theme_rules(**changes: Any) -> ThemeRules:
    """The rules of mode `paper`, but for the changes."""
    return ThemeRules(**changes).of("paper")


GROWTH = theme_rules(merge=False)
"""Attach and split only."""
END = theme_rules(merge_at="end", objective_over=10)
"""Merges as released: once, in the end, by the ten themes around."""


def rows(*vectors: Sequence[float]) -> np.ndarray:
    return normalised(np.array(vectors, dtype=np.float32))


def at(cosine: float, axis: int = 1, dimension: int = 3) -> list[float]:
    """A unit vector with this cosine to the first axis, the rest along another."""
    vector = [0.0] * dimension
    vector[0], vector[axis] = cosine, math.sqrt(1 - cosine**2)
    return vector


def clustered(count: int, seed: int = 0, spread: float = 0.9) -> np.ndarray:
    """Unit vectors in groups of about ten."""
    random = np.random.default_rng(seed)
    centres = normalised(random.normal(size=(max(2, count // 10), 16)))
    noise = normalised(random.normal(size=(count, 16)))
    return normalised(centres[random.integers(len(centres), size=count)] + spread * noise).astype(np.float32)


def sizes(made: Partition) -> list[int]:
    return [len(members) for members in made.themes]


# --- the objective -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "score"),
    [
        ([4, 4, 4], 1.0),
        ([10, 1, 1], 0.4706),
        ([1, 1, 4, 4], 0.7353),
        ([2, 4, 4], 0.9259),
        ([12, 1], 0.5828),
        ([6, 7], 0.9941),
        ([13], 1.0),
    ],
)
def test_sparsity_rewards_balanced_sizes(counts: list[int], score: float) -> None:
    assert sparsity(counts) == pytest.approx(score, abs=5e-5)


def test_the_bell_is_as_wide_as_the_median_deviation() -> None:
    np.testing.assert_allclose(bell([0.6, 0.7, 0.8]), [0.6065, 1, 0.6065], atol=5e-5)
    np.testing.assert_allclose(bell([0.5, 0.5, 0.9]), [1, 1, 0], atol=1e-12)
    np.testing.assert_allclose(bell([0.0]), [1])


def test_the_objective_is_sparsity_plus_cohesion_under_the_bell() -> None:
    vectors = clustered(30).astype(np.float64)
    parts = [list(range(0, 4)), list(range(4, 9)), list(range(9, 16)), list(range(16, 30))]
    centroids = [vectors[part].mean(axis=0) for part in parts]

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    cohesion = [
        np.mean([cosine(vectors[row], centroid) for row in part])
        for part, centroid in zip(parts, centroids, strict=True)
    ]
    closest = [max(cosine(centroids[k], centroids[j]) for j in range(4) if j != k) for k in range(4)]
    expected = sparsity([4, 5, 7, 14]) + np.mean(np.array(cohesion) * bell(closest))
    totals = np.stack([vectors[part].sum(axis=0) for part in parts])
    assert guidance([4, 5, 7, 14], totals) == pytest.approx(expected, abs=1e-4)


def test_a_single_theme_is_neither_near_nor_far() -> None:
    assert guidance([2], np.array([[1.0, 1.0]])) == pytest.approx(1 + math.sqrt(2) / 2)


# --- themes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "cosine", "expected"),
    [
        (11, 0.55, [12]),
        (12, 0.55, [12, 1]),
        (11, 0.51, [11, 1]),
        (11, 0.52, [12]),
        (12, 0.61, [12, 1]),
        (11, 0.70, [12]),
    ],
)
def test_a_statement_joins_the_nearest_theme_or_opens_one(members: int, cosine: float, expected: list[int]) -> None:
    made = partition(rows(*[at(1.0)] * members, at(cosine)), GROWTH)
    assert sizes(made) == expected
    assert made.reassigned == 0


def test_a_statement_that_overcrowds_its_theme_has_it_split() -> None:
    vectors = rows(*[at(1.0)] * 12, at(0.70))
    split = partition(vectors, GROWTH)
    assert split.themes == (tuple(range(12)), (12,))
    assert split.reassigned == 1
    assert partition(vectors, theme_rules(merge=False, split=False)).themes == (tuple(range(13)),)


def test_of_equally_near_themes_the_older_takes_the_statement() -> None:
    made = partition(rows((1, 0), (0, 1), (1, 1)), GROWTH)
    assert made.themes == ((0, 2), (1,))


def test_the_centroid_is_the_running_mean() -> None:
    # After two statements the centroid lies between them: the third is .61 from the first, but .75 from their mean.
    vectors = rows((1, 0, 0), at(0.62), (0.5, 0.84, 0.21))
    assert float(vectors[0] @ vectors[2]) < 0.52
    assert sizes(partition(vectors, GROWTH)) == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules", [theme_rules(theme_cap=cap, guided=guided) for cap in (1, 3, 8, 12) for guided in (True, False)]
)
@pytest.mark.parametrize("seed", range(3))
def test_every_statement_is_in_exactly_one_theme_of_at_most_the_cap(rules: ThemeRules, seed: int) -> None:
    for spread in (0.0, 0.5, 1.0):
        made = partition(clustered(90, seed, spread), rules)
        assert sorted(itertools.chain(*made.themes)) == list(range(90))
        assert max(sizes(made)) <= rules.theme_cap
        assert all(list(members) == sorted(members) for members in made.themes)
        assert 0 <= made.reassigned <= 90


def test_without_split_and_merge_no_statement_ever_changes_its_theme() -> None:
    switches = itertools.product((True, False), repeat=2)
    made = {on: partition(clustered(150, 1, 0.8), theme_rules(split=on[0], merge=on[1])) for on in switches}
    assert made[False, False].reassigned == 0
    assert min(made[True, False].reassigned, made[False, True].reassigned) > 0
    assert made[True, True].reassigned > made[True, False].reassigned
    assert len(made[True, True].themes) < len(made[True, False].themes)
    assert max(sizes(made[False, False])) > 12


def test_components_are_those_of_the_graph_of_similar_rows() -> None:
    vectors = rows((1, 0, 0), (0, 0, 1), at(0.67), at(0.65, 2), at(0.0))
    assert vectors[2] @ vectors[4] > 0.66
    assert components(vectors, 0.66) == [[0, 2, 4], [1, 3]]


def test_the_principal_order_does_not_depend_on_a_sign() -> None:
    vectors = clustered(12).astype(np.float64)
    order = principal_order(vectors)
    assert [len(vectors) - 1 - row for row in principal_order(vectors[::-1])] == order
    line = np.array([[0.3, 1], [0.1, 1], [0.2, 1]])
    assert principal_order(line) == [1, 2, 0]


def test_chunks_are_consecutive_and_ascending() -> None:
    assert list(chunks([4, 0, 3, 1, 2], 2)) == [[0, 4], [1, 3], [2]]


def two_groups(first: int, second: int, cosine: float) -> np.ndarray:
    """Statements around two directions with this cosine, alternating as long as there are both."""
    groups = [[at(1.0, dimension=4)] * first, [at(cosine, dimension=4)] * second]
    mixed = [vector for pair in itertools.zip_longest(*groups) for vector in pair if vector is not None]
    return rows(*mixed)


def test_an_overcrowded_theme_is_taken_apart_along_its_graph() -> None:
    made = partition(two_groups(7, 6, 0.6), theme_rules(merge=False, guided=False))
    assert made.themes == (tuple(range(0, 13, 2)), tuple(range(1, 13, 2)))
    assert made.reassigned == 6


def test_a_theme_that_its_graph_holds_together_is_cut_after_the_cap() -> None:
    made = partition(two_groups(7, 6, 0.7), theme_rules(merge=False, guided=False))
    assert made.themes == (tuple(range(12)), (12,))


def test_a_theme_of_eight_or_less_is_not_taken_apart_by_its_graph() -> None:
    made = partition(two_groups(4, 3, 0.6), theme_rules(theme_cap=6, merge=False, guided=False))
    assert sizes(made) == [6, 1]
    made = partition(two_groups(4, 3, 0.6), theme_rules(theme_cap=6, merge=False, guided=False, small=6))
    assert sizes(made) == [4, 3]


def test_the_objective_chooses_between_the_graph_and_the_principal_axis() -> None:
    # Both cut 12 and 1, which sparsity cannot tell apart: in order by the graph, at the odd one out along the axis.
    vectors = rows(at(0.7), *[at(1.0)] * 12)
    assert partition(vectors, theme_rules(merge=False, guided=False)).themes == (tuple(range(12)), (12,))
    assert partition(vectors, GROWTH).themes == (tuple(range(1, 13)), (0,))
    # Along the axis 12 and 1 again, but the graph parts the two groups.
    assert sizes(partition(two_groups(7, 6, 0.6), GROWTH)) == [7, 6]


def test_a_full_theme_that_does_not_hold_together_is_split_in_the_end() -> None:
    loose = partition(two_groups(6, 6, 0.4), theme_rules(merge=False, lenient=0.3))
    assert [len(members) for members in loose.themes] == [6, 6]
    assert loose.reassigned == 6
    held = partition(two_groups(6, 6, 0.65), GROWTH)
    assert sizes(held) == [12]
    assert sizes(partition(two_groups(6, 6, 0.4), theme_rules(merge=False, lenient=0.3, split=False))) == [12]
    assert sizes(partition(two_groups(6, 5, 0.4), theme_rules(merge=False, lenient=0.3))) == [11]


STRICT = replace(END, attach=0.95, lenient=0.95, coalesce=2.0)
"""Only equal statements attach, and nothing coalesces."""
DIMENSION = 16


def axis(number: int) -> list[float]:
    return [float(place == number) for place in range(DIMENSION)]


def near(number: int, cosine: float) -> list[float]:
    """A direction with this cosine to an axis; the rest along an axis of its own, counted from the end."""
    vector = axis(DIMENSION - 1 - number)
    return [cosine * here + math.sqrt(1 - cosine**2) * there for here, there in zip(axis(number), vector, strict=True)]


def test_at_most_two_pairs_of_near_themes_are_merged() -> None:
    # Three pairs of themes of three, .9 apart, beside five unrelated themes of four.
    others = [axis(number) for number in range(3, 8) for _ in range(4)]
    pairs = [vector for number in range(3) for vector in (*[axis(number)] * 3, *[near(number, 0.9)] * 3)]
    vectors = rows(*others, *pairs)
    assert sizes(partition(vectors, replace(STRICT, merge=False))) == [4] * 5 + [3] * 6
    merged = partition(vectors, STRICT)
    assert sizes(merged) == [4] * 5 + [6, 6, 3, 3]
    assert merged.reassigned == 6
    assert sizes(partition(vectors, replace(STRICT, max_merges=1))) == [4] * 5 + [6, 3, 3, 3, 3]
    assert sizes(partition(vectors, replace(STRICT, near=0.91))) == [4] * 5 + [3] * 6
    assert sizes(partition(vectors, replace(STRICT, theme_cap=5))) == [4] * 5 + [3] * 6


def test_a_merge_that_the_objective_does_not_gain_from_is_not_made() -> None:
    # As every theme has one at .8, all are under the top of the bell, and the merged would be twice as large as the others.
    vectors = rows(*[vector for number in range(3) for vector in (*[axis(number)] * 4, *[near(number, 0.8)] * 4)])
    made = partition(vectors, STRICT)
    assert sizes(made) == [4] * 6
    totals = np.stack([vectors[list(members)].sum(axis=0) for members in made.themes]).astype(np.float64)
    joined = np.vstack([totals[:2].sum(axis=0), totals[2:]])
    assert guidance([8, 4, 4, 4, 4], joined) < guidance([4] * 6, totals)


PAIRS = [axis(number) for number in range(3, 8) for _ in range(2)]
"""Five unrelated themes of two."""


def test_single_statements_join_a_theme_of_cosine_one_half_and_no_less() -> None:
    vectors = rows(*PAIRS, axis(0), near(0, 0.51), axis(1), near(1, 0.49))
    assert sizes(partition(vectors, GROWTH)) == [2] * 5 + [1] * 4
    made = partition(vectors, END)
    assert made.themes[5:] == ((10, 11), (12,), (13,))
    assert made.reassigned == 1
    assert sizes(partition(vectors, replace(END, coalesce=0.48))) == [2] * 7
    assert sizes(partition(vectors, replace(END, theme_cap=2))) == [2] * 6 + [1] * 2
    assert sizes(partition(vectors, replace(END, coalesce=0.52))) == [2] * 5 + [1] * 4


def test_a_single_statement_joins_where_the_objective_gains_most_not_where_it_is_nearest() -> None:
    single = [0.515 * here + 0.505 * there for here, there in zip(axis(0), axis(1), strict=True)]
    single[2] = math.sqrt(1 - 0.515**2 - 0.505**2)
    vectors = rows(*PAIRS, *[axis(0)] * 6, single, axis(1))
    assert partition(vectors, END).themes[5:] == (tuple(range(10, 16)), (16, 17))


def test_a_single_statement_stays_alone_when_the_objective_would_lose() -> None:
    # Every theme has one at .51: merged with it, a theme would be less coherent and an island.
    vectors = rows(*[vector for number in range(3) for vector in (*[axis(number)] * 3, near(number, 0.51))])
    made = partition(vectors, END)
    assert sizes(made) == [3, 1, 3, 1, 3, 1]
    assert made.reassigned == 0


def test_a_merged_theme_keeps_the_number_of_the_larger_part() -> None:
    threes = [axis(number) for number in range(3, 8) for _ in range(3)]
    vectors = rows(near(0, 0.51), *threes, axis(0), axis(0))
    assert sizes(partition(vectors, GROWTH)) == [1, 3, 3, 3, 3, 3, 2]
    made = partition(vectors, END)
    assert made.themes[-1] == (0, 16, 17)
    assert made.reassigned == 1


def test_a_later_statement_triggers_the_merge_of_a_tiny_theme_and_in_the_release_the_end_does() -> None:
    """xMemory §3.2 and §5.3: insertions trigger split or merge. Two statements .51 apart are one theme before the next one comes."""
    vectors = rows(*PAIRS, axis(0), near(0, 0.51), axis(1))
    merged, later = (10, 11), (12,)
    made, released = partition(vectors, theme_rules()), partition(vectors, END)
    assert made.themes[5:] == released.themes[5:] == (merged, later)
    assert made.asked.index(merged) < made.asked.index(later)
    assert released.asked.index(merged) > released.asked.index(later)


def test_after_an_insertion_the_tiny_themes_near_it_are_looked_at_too() -> None:
    """A statement that moves a theme's centroid brings it near enough to one that stood alone."""
    vectors = rows(
        *PAIRS, axis(0), near(0, 0.49), [0.8 * a + 0.6 * b for a, b in zip(axis(0), near(0, 0.49), strict=True)]
    )
    assert sizes(partition(vectors[:12], theme_rules())) == [2] * 5 + [1, 1]
    assert partition(vectors, theme_rules()).themes[5:] == ((10, 11, 12),)


def test_how_many_statements_make_a_theme_tiny_is_a_setting() -> None:
    vectors = rows(*PAIRS, axis(0), axis(0), near(0, 0.51), near(0, 0.51))
    rules = theme_rules(attach=0.95, lenient=0.95)
    order = [*range(10), 12, 13, 10, 11]
    assert sizes(partition(vectors[order], replace(rules, coalesce=0.505, near=2.0, tiny=1, merge=False))) == [2] * 7
    growing = {
        tiny: sizes(
            partition(vectors[order], replace(END, attach=0.95, lenient=0.95, tiny=tiny, max_merges=1, near=2.0))
        )
        for tiny in (1, 2)
    }
    assert growing[1] == [2] * 7
    assert growing[2] == [2] * 5 + [4]


def test_the_objective_is_that_of_the_whole_partition() -> None:
    """xMemory Eq. 1-3 are sums over all themes; the release looks at the ten around a change."""
    vectors = clustered(200, 3, 1.0)
    growing = {
        over: _Growing(vectors, vectors.astype(np.float64), theme_rules(merge=False, objective_over=over))
        for over in (None, 10)
    }
    for statement in range(200):
        for each in growing.values():
            each.assimilate(statement)
    differing = 0
    for one, other in itertools.pairwise(sorted(growing[None].themes)):
        themes = [theme for number, theme in growing[None].themes.items() if number not in (one, other)]
        pair = [growing[None].themes[one], growing[None].themes[other]]

        def value(*groups: list[int], themes: Any = themes) -> float:
            parts = [*(theme.members for theme in themes), *groups]
            return guidance(
                [len(part) for part in parts],
                np.stack([vectors[part].astype(np.float64).sum(axis=0) for part in parts]),
            )

        gain = value(pair[0].members + pair[1].members) - value(pair[0].members, pair[1].members)
        assert growing[None]._gain(one, other) == pytest.approx(gain, abs=1e-6)
        differing += (
            one in growing[10].themes
            and other in growing[10].themes
            and abs(growing[10]._gain(one, other) - gain) > 1e-3
        )
    assert len(growing[None].themes) > 12
    assert differing > 5


@pytest.mark.parametrize("seed", range(4))
def test_the_objective_kept_up_to_date_is_the_objective(seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors, whole, totals = clustered(60, seed).astype(np.float64), Whole(), dict[int, tuple[int, np.ndarray]]()
    for number in range(40):
        if number > 5 and random.random() < 0.3:
            changed = int(random.choice(list(totals)))
            gone = random.random() < 0.5
            size = 0 if gone else int(random.integers(1, 6))
        else:
            changed, size = len(whole._sizes), int(random.integers(1, 6))
        total = vectors[random.choice(60, max(size, 1), replace=False)].sum(axis=0)
        totals[changed] = (size, total)
        whole.set(changed, size, total)
        totals = {key: held for key, held in totals.items() if held[0]} or totals
        parts = [(2, vectors[number : number + 2].sum(axis=0)), (1, vectors[number])]
        without = [int(key) for key in random.choice(list(totals), min(2, len(totals)), replace=False)]
        for left, new in (([], []), (without, parts), (without, parts[:1]), (list(totals), parts[:1])):
            held = [*(totals[key] for key in totals if key not in left), *new]
            expected = guidance([count for count, _ in held], np.stack([vector for _, vector in held]))
            assert whole.value(left, new) == pytest.approx(expected, abs=1e-9)


def test_sets_are_summarised_when_they_are_opened_reviewed_split_and_merged() -> None:
    vectors = rows(*[at(1.0)] * 12, at(0.7))
    made = partition(vectors, GROWTH)
    whole = tuple(range(12))
    assert made.asked == ((0,), whole, (12,), whole, (12,))
    assert made.summarised == made.themes


def test_the_release_leaves_a_full_theme_with_the_summary_it_was_opened_with() -> None:
    vectors = rows(*[at(1.0)] * 12)
    assert partition(vectors, GROWTH).summarised == (tuple(range(12)),)
    assert partition(vectors, theme_rules(renew_full=False)).summarised == ((0,),)
    assert partition(vectors[:11], theme_rules(renew_full=False)).summarised == (tuple(range(11)),)


def test_neighbours_are_the_most_similar_others_with_a_positive_cosine() -> None:
    vectors = rows((1, 0), at(0.9, dimension=2), at(0.5, dimension=2), (-1, 0.1))
    assert [list(edges) for edges in nearest(vectors, 2).edges] == [[1, 2], [0, 2], [1, 0], []]
    assert [list(edges) for edges in nearest(vectors, 10).edges][3] == []
    assert [list(edges) for edges in nearest(vectors, 2, earlier=True).edges] == [[], [0], [1, 0], []]
    assert nearest(vectors, 2).edges[0][1] == pytest.approx(0.9)


def test_neighbours_are_found_beyond_one_block() -> None:
    vectors = clustered(600)
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -1)
    assert [next(iter(edges)) for edges in nearest(vectors, 1).edges] == np.round(similarities, 6).argmax(
        axis=1
    ).tolist()


# --- Stage I -----------------------------------------------------------------------------------------------------------

SCORES = np.array([0.9, 0.8, 0.5, 0.3])
CHAIN = np.array([[1, 0.9, 0, 0], [0.9, 1, 0.8, 0], [0, 0.8, 1, 0], [0, 0, 0, 1]])


def test_the_worked_example_selects_b_a_c_d() -> None:
    assert CHAIN.sum() == pytest.approx(7.4)
    assert representatives(SCORES, CHAIN, 0.7, 5) == [1, 0, 2, 3]
    # .3 · 1/3 = .1000 for C, .7 · 1/7.4 = .0946 for D: with a little more weight on coverage D comes first, which ends it.
    assert representatives(SCORES, CHAIN, 0.72, 5) == [1, 0, 3]


def test_selection_ends_when_all_are_covered_or_enough_are_chosen() -> None:
    assert representatives(SCORES, CHAIN, 0.7, 2) == [1, 0]
    assert representatives(SCORES[:3], CHAIN[:3, :3], 0.7, 5) == [1]
    assert representatives(np.array([]), np.zeros((0, 0)), 0.7, 5) == []


def test_selection_ends_when_nothing_is_gained() -> None:
    assert representatives(np.array([0.9, 0.1]), np.eye(2), 0.0, 5) == [0]
    assert representatives(np.array([0.1, 0.1]), np.eye(2), 1.0, 5) == [0, 1]


def test_equal_scores_count_half() -> None:
    np.testing.assert_array_equal(minmax([0.3, 0.3]), [0.5, 0.5])
    np.testing.assert_array_equal(minmax([0.3, 0.3 + 1e-8]), [0.5, 0.5])
    np.testing.assert_allclose(minmax([0.2, 0.6, 0.4]), [0, 1, 0.5])
    assert len(minmax([])) == 0


# --- Stage II ----------------------------------------------------------------------------------------------------------


def looked_at(gains: Sequence[float], include: float = -0.4, most: int = 10) -> tuple[list[tuple[int, bool]], int]:
    """What is admitted, and how many gains were looked at."""
    seen: list[float] = []

    def one_by_one() -> Iterator[float]:
        for gain in gains:
            seen.append(gain)
            yield gain

    return admitted(one_by_one(), include, 0.25, most), len(seen)


@pytest.mark.parametrize("include", [0.0, -0.4])
def test_one_of_the_first_three_that_does_not_help_ends_the_search(include: float) -> None:
    assert looked_at([0.3, -0.5, 0.3], include) == ([(0, True)], 2)
    assert looked_at([0.1, 0.1, -0.5, 0.1], include) == ([(0, False), (1, False)], 3)


@pytest.mark.parametrize("include", [0.0, -0.4])
def test_later_it_takes_two(include: float) -> None:
    gains = [0.1, 0.1, 0.1, -0.5, 0.1, -0.5, 0.1]
    assert looked_at(gains, include) == ([(0, False), (1, False), (2, False), (4, False)], 6)


def test_the_search_ends_with_enough_admitted() -> None:
    assert looked_at([0.1] * 12) == ([(place, False) for place in range(10)], 10)
    assert looked_at([0.1] * 12, most=2)[1] == 2


def test_both_thresholds_must_be_exceeded() -> None:
    assert looked_at([0.25, 0.2501, -0.4]) == ([(0, False), (1, True)], 3)
    assert looked_at([0.0], include=0.0) == ([], 1)


# --- the whole ---------------------------------------------------------------------------------------------------------

TOPICS = ["The dog Luna", "The guitar of Jonas", "The bakery in Porto", "The research vessel"]


def unit(number: int) -> Unit:
    text = f"{TOPICS[number % 4]} came up, part {number}."
    return Unit(f"u{number}", (Turn(f"t{number}", "Ann", text),), "s1", datetime(2023, 5, 7), "7 May 2023")


def facts(request: Request) -> str:
    text = request.fields["text"]
    said = text if isinstance(text, str) else text[0]
    topic = next(topic for topic in TOPICS if topic in said)
    number = said.rsplit("part ", 1)[1].rstrip(".")
    return json.dumps({"statements": [f"{topic} is known well, item {number}.", f"{topic} is liked, entry {number}."]})


SCRIPT: dict[str, Script] = {
    "nemori.boundary": json.dumps({"should_end": True}),
    "nemori.episode": lambda request: json.dumps(
        {"title": "T", "content": request.fields["texts"][0], "timestamp": ""}
    ),
    "nemori.learn": facts,
    "nemori.predict": "something",
    "nemori.compare": facts,
    "nemori.direct": facts,
    "xmemory.theme": lambda request: f"About {request.fields['texts'][0]}",
}


LESSONS = ("nemori.direct", "nemori.learn", "nemori.compare")
RELEASED: dict[str, Any] = {"episode_pool": 10, "expansion": "same"}
"""Stage II as released but for its threshold: the most similar episodes too, and one fall of uncertainty for both decisions."""


def certain(*levels: float) -> list[Completion]:
    """Replies to the probe with these uncertainties."""
    return [Completion("word", logprobs=(-level / 2, -3 * level / 2)) for level in levels]


def xmemory(
    count: int,
    probe: Script = "word",
    script: dict[str, Script] | None = None,
    embedder: Embedder | None = None,
    **settings: Any,
) -> tuple[XMemory, ScriptedLLM, ScriptedLLM]:
    """A memory of this many messages, the model that built it, and the one that is probed."""
    llm, probed = ScriptedLLM({**SCRIPT, **(script or {})}), ScriptedLLM({"xmemory.probe": probe})
    memory = with_settings(XMemory, settings)(
        llm=llm, probe=probed, embedder=embedder or HashingEmbedder(256), prompts=Prompts()
    )
    for number in range(count):
        memory.write(unit(number))
    memory.consolidate()
    return memory, llm, probed


QUESTION = Question("q", "What came up about the guitar of Jonas?")


def recalled(memory: XMemory, kind: str) -> list[str]:
    return [item.id for item in memory.read(QUESTION).items if item.kind == kind]


def test_a_build_asks_as_nemori_does_and_then_once_for_each_set_of_statements() -> None:
    memory, llm, probed = xmemory(12)
    themes = [request for request in llm.requests if request.purpose == "xmemory.theme"]
    assert not any(purpose.startswith("xmemory") for purpose in llm.purposes[: -len(themes)])
    assert llm.purposes.count("nemori.boundary") == 11
    assert llm.purposes.count("nemori.episode") == llm.purposes.count("nemori.direct") == 12
    made = partition(memory._hierarchy.store.statement_vectors.matrix, memory.themes)
    texts = [statement.text for statement in memory._hierarchy.store.statements]
    assert len(texts) == 24
    wanted = list(dict.fromkeys(tuple(texts[index] for index in members) for members in made.asked))
    assert [request.fields["texts"] for request in themes] == wanted
    assert len(made.themes) <= len(wanted)
    assert probed.requests == []


def test_statements_are_taken_from_every_episode_by_itself_and_in_the_release_from_what_it_holds_beyond_its_prediction() -> (
    None
):
    """xMemory App. C.1 prints one prompt for statements, which is shown episodes."""
    lessons = {}
    for settings in ({}, {"mode": "code"}, {"extraction": "predict"}, {"mode": "code", "extraction": "direct"}):
        _, llm, _ = xmemory(3, **settings)  # type: ignore[arg-type]
        lessons[tuple(settings.values())] = {purpose for purpose in llm.purposes if purpose in LESSONS}
    direct, predict = {"nemori.direct"}, {"nemori.learn", "nemori.compare"}
    assert lessons == {(): direct, ("code",): predict, ("predict",): predict, ("code", "direct"): direct}


def test_a_consolidation_costs_nothing_when_nothing_came_and_little_when_something_did() -> None:
    memory, llm, _ = xmemory(12)
    before, calls = memory._hierarchy, len(llm.requests)
    memory.consolidate()
    assert memory._hierarchy is before
    assert len(llm.requests) == calls
    memory.write(unit(12))
    memory.consolidate()
    asked = [request.fields["texts"] for request in llm.requests if request.purpose == "xmemory.theme"]
    assert len(asked) == len(set(asked))
    fresh, _, _ = xmemory(13)
    assert [(node.id, node.parents, node.text) for node in memory.nodes()] == [
        (node.id, node.parents, node.text) for node in fresh.nodes()
    ]


def test_a_message_that_teaches_nothing_leaves_the_themes_and_is_recalled() -> None:
    memory, llm, _ = xmemory(
        4,
        script={"nemori.compare": json.dumps({"statements": []})},
        uncertainty=False,
        extraction="predict",
        **RELEASED,
    )
    before, calls = memory._hierarchy.partition, llm.purposes.count("xmemory.theme")
    memory.write(unit(5))
    memory.consolidate()
    assert memory._hierarchy.partition is before
    assert llm.purposes.count("xmemory.theme") == calls
    assert "episode-4" in recalled(memory, "episode")


def test_as_many_statements_as_before_are_not_the_same_statements() -> None:
    script: dict[str, Script] = {
        "nemori.boundary": json.dumps({"should_end": False}),
        "nemori.episode": lambda request: json.dumps({"title": "T", "content": request.fields["texts"][-1]}),
    }
    memory, _, _ = xmemory(1, script=script)
    before = [node.text for node in memory.nodes() if node.kind in ("theme", "semantic")]
    memory.write(unit(1))
    memory.consolidate()
    after = [node.text for node in memory.nodes() if node.kind in ("theme", "semantic")]
    fresh, _, _ = xmemory(2, script=script)
    assert after == [node.text for node in fresh.nodes() if node.kind in ("theme", "semantic")]
    assert len(after) == len(before)
    assert not set(after) & set(before)


@pytest.mark.parametrize("garbage", ["", "  \n"])
def test_a_theme_that_cannot_be_named_is_its_first_statement(garbage: str) -> None:
    with meter.metering() as ledger:
        memory, llm, _ = xmemory(6, script={"xmemory.theme": garbage})
    assert ledger.notes["xmemory.first_statement"] == llm.purposes.count("xmemory.theme")
    themes = {node.id: node.text for node in memory.nodes() if node.kind == "theme"}
    for node in memory.nodes():
        if node.kind == "theme":
            below = [other.text for other in memory.nodes() if other.parents == (node.id,)]
            assert themes[node.id] == below[0]
    assert memory.report()["themes_not_summarised"] == len(themes)


def test_the_levels_are_message_episode_statement_theme() -> None:
    memory, _, _ = xmemory(8)
    nodes = {node.id: node for node in memory.nodes()}
    assert {node.level: node.kind for node in nodes.values()} == {0: "message", 1: "episode", 2: "semantic", 3: "theme"}
    assert nodes["u0"].parents == ("episode-0",)
    assert nodes["episode-0"].parents == ("statement-0", "statement-1")
    assert all(
        len(node.parents) == 1 and nodes[node.parents[0]].kind == "theme" for node in nodes.values() if node.level == 2
    )


def test_a_paper_build_merges_as_statements_come_over_the_whole_partition_and_the_release_in_the_end_over_ten() -> None:
    """xMemory Eq. 1-3, §3.2 and §5.3. `neighbours` is that of the graph, and no measure of the objective."""
    rules = {}
    for settings in ({}, {"mode": "code"}, {"objective_over": 3, "merge_at": "end"}, {"neighbours": 4}):
        memory, _, _ = xmemory(0, **settings)  # type: ignore[arg-type]
        rules[tuple(settings.values())] = (
            memory.themes.merge_at,
            memory.themes.objective_over,
            memory.themes.neighbours,
        )
    assert rules == {
        (): ("insertion", None, 10), ("code",): ("end", 10, 10), (3, "end"): ("end", 3, 10), (4,): ("insertion", None, 4),
    }  # fmt: skip


def test_the_release_writes_neighbours_once_and_is_not_guided() -> None:
    for mode in ("paper", "code"):
        memory, _, _ = xmemory(12, mode=mode)
        later = [
            other > index for index, edges in enumerate(memory._hierarchy.statement_graph.edges) for other in edges
        ]
        assert any(later) == (mode == "paper")
        assert (memory.themes.guided, memory.themes.renew_full) == ((mode == "paper"),) * 2


@pytest.mark.slow
def test_the_report_counts_the_structure() -> None:
    memory, _, _ = xmemory(40, theme_cap=4)
    report = memory.report()
    assert (report["messages"], report["episodes"], report["semantics"]) == (40, 40, 80)
    assert report["largest_theme"] <= 4
    assert report["semantics_per_theme"] == 80 / report["themes"]
    assert report["reassigned"] == memory._hierarchy.partition.reassigned > 0
    assert memory.held == 40 + 80 + report["themes"]
    static, _, _ = xmemory(40, theme_cap=4, split=False, merge=False)
    assert static.report()["reassigned"] == 0


def test_probing_shows_the_backbone_alone_and_then_each_episode_alone() -> None:
    memory, _, probed = xmemory(12, certain(1.0, 0.9, 0.5, 1.5), **RELEASED)
    items = memory.read(QUESTION).items
    assert probed.purposes == ["xmemory.probe"] * 4
    bare, first, second, third = (request.fields["episodes"] for request in probed.requests)
    assert bare == ()
    assert [len(one) for one in (first, second, third)] == [1, 1, 1]
    assert len({first[0], second[0], third[0]}) == 3
    assert len({(*request.fields["themes"], *request.fields["facts"]) for request in probed.requests}) == 1
    assert all(
        (request.max_tokens, request.temperature, request.logprobs) == (20, 0.0, True) for request in probed.requests
    )
    shown = [item for item in items if item.kind == "episode"]
    assert [item.text.split("\nMessages:")[0] for item in shown] == [first[0], second[0]]
    assert ["Messages:" in item.text for item in shown] == [False, True]
    facts_shown = [item for item in items if item.kind == "semantic"]
    assert [item.text for item in facts_shown] == probed.requests[0].fields["facts"]
    assert {item.kind for item in items} == {"episode", "semantic"}, "themes are not recalled"
    text = dict(probed.requests[1].messages)["user"]
    assert text.index(probed.requests[0].fields["themes"][0]) < text.index(facts_shown[0].text) < text.index(first[0])
    assert text.endswith(f"Question: {QUESTION.text}\nAnswer:")


def test_a_question_costs_at_most_eleven_probes_in_the_release_and_one_more_for_each_episode_admitted() -> None:
    falling = [1.0 - 0.05 * place for place in range(11)]
    for expansion, probes in {"same": 11, "further": 21}.items():
        settings = {**RELEASED, "expansion": expansion}
        memory, _, probed = xmemory(14, certain(*falling, *[0.2] * 10), **settings)
        assert len(recalled(memory, "episode")) == 10
        assert len(probed.requests) == probes


def test_messages_are_shown_when_they_lower_the_uncertainty_further() -> None:
    """xMemory §3.3: an admitted episode is expanded "when further uncertainty reduction justifies the added tokens"."""
    # Bare 1.0; the first two episodes .9 and .4, the third does not help; with messages the two come to .6 and .3.
    memory, _, probed = xmemory(12, certain(1.0, 0.9, 0.4, 1.5, 0.6, 0.3), episode_pool=10)
    shown = [item.text for item in memory.read(QUESTION).items if item.kind == "episode"]
    assert ["Messages:" in text for text in shown] == [True, False], (
        "a fall of .3 from the episode alone, and one of .1"
    )
    alone, expanded = probed.requests[1:3], probed.requests[4:6]
    assert [len(request.fields["episodes"]) for request in expanded] == [1, 1], "each is tried by itself"
    for before, after in zip(alone, expanded, strict=True):
        (story,), (with_messages,) = before.fields["episodes"], after.fields["episodes"]
        assert with_messages.startswith(f"{story}\nMessages:\n")
    memory, _, probed = xmemory(12, certain(1.0, 0.9, 0.4, 1.5), mode="code", tau_include=0.0)
    shown = [item.text for item in memory.read(QUESTION).items if item.kind == "episode"]
    assert ["Messages:" in text for text in shown] == [False, True], "the release looks at the fall by the episode"
    assert len(probed.requests) == 4


@pytest.mark.parametrize(("over", "expected"), [("all", [1.0, 0.9, 0.8, 0.7]), ("selected", [1.0, 2 / 3, 1 / 3, 0.0])])
def test_the_release_scales_the_support_of_an_episode_over_all_statements(over: str, expected: list[float]) -> None:
    """Release 375ae14, xMemory_search_framework.py:1039: selected statements are the nearest ones, so their support differs little."""
    cosines = [0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6]
    store = NemoriStore()
    for number, cosine in enumerate(cosines):
        store.statements.append(Statement(f"s{number}", number))
        store.statement_vectors.add(np.array(at(cosine), dtype=np.float32))
        store.episode_vectors.add(np.array(at(0.5), dtype=np.float32))
    memory, _, _ = xmemory(0, mode="code", episode_pool=0, support_over=over)
    hierarchy = replace(memory._hierarchy, store=store)
    backbone = Backbone(tuple((number, cosines[number]) for number in (4, 5, 6, 7)), ())
    ranked = rank_episodes(hierarchy, np.array([1, 0, 0], dtype=np.float32), backbone, memory.reading.of("code"))
    assert [episode for episode, _ in ranked] == [7, 6, 5, 4]
    # Equally similar episodes count 0.5 each; beta is 0.5.
    assert [priority for _, priority in ranked] == pytest.approx(
        [0.5 + 0.5 * support for support in expected], abs=1e-5
    )


def test_the_mode_decides_what_support_is_scaled_over() -> None:
    """The paper speaks of semantic support and gives no scale: the selected statements stay the paper's mode."""
    modes: tuple[Mode, ...] = ("paper", "code")
    assert [xmemory(0, mode=mode)[0].reading.of(mode).support_over for mode in modes] == ["selected", "all"]


@pytest.mark.slow
def test_only_episodes_of_the_statements_selected_are_tried() -> None:
    """xMemory §3.3, Stage II gathers the episodes linked to the selected semantics; the release adds the ten most similar."""
    found = {}
    for settings in ({}, {"mode": "code"}, {"episode_pool": 10}, {"mode": "code", "episode_pool": 0}):
        memory, _, _ = xmemory(24, uncertainty=False, max_episodes=100, max_statements=2, **settings)  # type: ignore[arg-type]
        statements = [int(name.removeprefix("statement-")) for name in recalled(memory, "semantic")]
        linked = {f"episode-{memory._hierarchy.store.statements[index].episode}" for index in statements}
        episodes = set(recalled(memory, "episode"))
        assert linked <= episodes
        found[tuple(settings.values())] = episodes == linked
    assert found == {(): True, ("code",): False, (10,): False, ("code", 0): True}


def test_what_probes_of_one_question_begin_with_alike_is_counted() -> None:
    memory, _, probed = xmemory(24, certain(5, 4, 3, 2, 3.5), probes=4, **RELEASED)
    with meter.metering() as ledger:
        memory.read(QUESTION)
    prompts = ["".join(text for _, text in request.messages) for request in probed.requests]
    (alike,) = {"".join(prompt.partition("<episodes>\n")[:2]) for prompt in prompts}
    assert len(prompts) == 5
    assert ledger.notes["xmemory.prefix_again"] == 4 * count_tokens(alike)


def test_no_more_episodes_are_probed_than_set() -> None:
    memory, _, probed = xmemory(14, certain(*[1.0 - 0.05 * place for place in range(11)]), probes=3, **RELEASED)
    assert len(recalled(memory, "episode")) == 3
    assert len(probed.requests) == 4


def test_without_help_from_any_episode_the_first_is_recalled_without_its_messages() -> None:
    memory, _, probed = xmemory(12, certain(1.0, 1.0))
    (episode,) = [item for item in memory.read(QUESTION).items if item.kind == "episode"]
    assert episode.text == probed.requests[1].fields["episodes"][0]
    assert len(probed.requests) == 2


def test_the_release_tolerates_a_rise_of_uncertainty_below_four_tenths() -> None:
    counts = {}
    for mode in ("paper", "code"):
        memory, _, probed = xmemory(12, certain(1.0, 1.39, 1.39, 1.41, 1.41), mode=mode)
        counts[mode] = (len(recalled(memory, "episode")), len(probed.requests))
    assert counts == {"paper": (1, 2), "code": (2, 4)}
    memory, _, probed = xmemory(12, certain(1.0, 1.39, 1.41), tau_include=-0.4)
    assert len(recalled(memory, "episode")) == 1
    assert len(probed.requests) == 3


@pytest.mark.parametrize("reply", [Completion("word"), Completion("", logprobs=())])
def test_without_log_probabilities_uncertainty_is_five_and_counted(reply: Completion) -> None:
    found = {}
    for mode in ("paper", "code"):
        memory, _, probed = xmemory(12, lambda request: reply, mode=mode)
        with meter.metering() as ledger:
            found[mode] = len(recalled(memory, "episode"))
        assert ledger.notes["xmemory.no_logprobs"] == ledger.parse_failures["xmemory.probe"] == len(probed.requests)
    assert found == {"paper": 1, "code": 10}


def test_the_missing_half_of_the_probes_counts_as_five() -> None:
    memory, _, _ = xmemory(12, [Completion("word"), *certain(4.7, 4.8, 5.1)], **RELEASED)
    shown = [item.text for item in memory.read(QUESTION).items if item.kind == "episode"]
    assert ["Messages:" in text for text in shown] == [True, False]


def test_a_probe_that_fails_for_good_fails_the_read() -> None:
    memory, _, _ = xmemory(4, lambda request: ModelError("down"))
    with pytest.raises(ModelError):
        memory.read(QUESTION)


@pytest.mark.slow
def test_each_stage_can_be_turned_off() -> None:
    recalls, probes = {}, {}
    for stages in itertools.product((False, True), repeat=2):
        stage_one, stage_two = stages
        memory, _, probed = xmemory(
            24, certain(1, 0.9, 0.8, 2), representatives=stage_one, uncertainty=stage_two, **RELEASED
        )
        items = memory.read(QUESTION).items
        recalls[stages] = tuple(sum(item.kind == kind for item in items) for kind in ("episode", "semantic"))
        probes[stages] = len(probed.requests)
    assert recalls[False, False] == (10, 20)
    assert recalls[True, False][0] == 10
    assert recalls[True, False][1] < 20
    assert recalls[False, True] == (2, 20)
    assert recalls[True, True] == (2, recalls[True, False][1])
    assert probes == {(False, False): 0, (True, False): 0, (False, True): 4, (True, True): 4}


def test_memory_alone_is_similarity_and_shows_the_messages_of_two_episodes() -> None:
    memory, _, _ = xmemory(24, representatives=False, uncertainty=False)
    store = memory._hierarchy.store
    query = HashingEmbedder(256).embed([QUESTION.text])[0]
    items = memory.read(QUESTION).items
    similar = [f"episode-{index}" for index, _ in store.episode_vectors.top(query, 10)]
    similar += [f"statement-{index}" for index, _ in store.statement_vectors.top(query, 20)]
    assert [item.id for item in items] == similar
    assert ["Messages:" in item.text for item in items if item.kind == "episode"] == [True] * 2 + [False] * 8


def test_an_episode_ranks_by_its_similarity_and_half_the_support_of_its_best_statement() -> None:
    memory, _, _ = xmemory(24, uncertainty=False, max_episodes=100, **RELEASED)
    themed, query = memory._hierarchy, HashingEmbedder(256).embed([QUESTION.text])[0]
    items = memory.read(QUESTION).items
    chosen = [int(item.id.removeprefix("statement-")) for item in items if item.kind == "semantic"]
    supported = dict(zip(chosen, minmax(themed.store.statement_vectors.matrix[chosen] @ query), strict=True))
    pool = sorted(
        {themed.store.statements[index].episode for index in chosen}
        | {i for i, _ in themed.store.episode_vectors.top(query, 10)}
    )
    cosines = dict(zip(pool, minmax(themed.store.episode_vectors.matrix[pool] @ query), strict=True))
    for item in items:
        if item.kind == "episode":
            number = int(item.id.removeprefix("episode-"))
            own = [score for index, score in supported.items() if themed.store.statements[index].episode == number]
            assert item.score == pytest.approx(cosines.pop(number) + 0.5 * max(own, default=0.0), abs=1e-6)
    assert cosines == {}


class TopicEmbedder:
    """One axis a topic, so that themes of different topics have nothing in common; the rest of a text turns it a little."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        topics = np.array([[float(topic.split()[1] in text) for topic in TOPICS] for text in texts], dtype=np.float32)
        return normalised(np.hstack([topics, 0.2 * HashingEmbedder(64).embed(texts)])) if texts else topics


def test_stage_one_selects_at_most_five_themes_and_statements_of_these() -> None:
    memory, _, probed = xmemory(40, certain(*[1.0] * 4), embedder=TopicEmbedder(), merge=False)
    swept = tuned(memory, {"max_themes": 1})
    memory.read(QUESTION)
    chosen = recalled(swept, "semantic")
    many, few = probed.requests[0].fields["themes"], probed.requests[2].fields["themes"]
    assert 1 < len(many) <= 5
    assert few == many[:1]
    parents = {node.id: node.parents for node in memory.nodes()}
    assert len({parents[statement] for statement in chosen}) == 1
    swept = tuned(swept, {"pool": 1, "probe": ScriptedLLM({"xmemory.probe": certain(1.0, 1.0)})})
    assert len(recalled(swept, "semantic")) == 1


def test_without_statements_episodes_are_still_found() -> None:
    memory, llm, _ = xmemory(5, certain(1.0, 0.5, 0.9, 1.2), {"nemori.direct": "no"}, expansion="same")
    assert "xmemory.theme" not in llm.purposes
    items = memory.read(QUESTION).items
    assert [item.kind for item in items] == ["episode"] * 2


def test_a_recall_is_not_that_of_dense_retrieval() -> None:
    memory, _, _ = xmemory(12, certain(1.0, 0.9, 1.2))
    dense = Dense(HashingEmbedder(256))
    for number in range(12):
        dense.write(unit(number))
    found = [item.sources for item in dense.read(QUESTION).items]
    assert [item.sources for item in memory.read(QUESTION).items][: len(found)] != found


@pytest.mark.parametrize(
    "setting",
    [
        "theme_cap",
        "neighbours",
        "pool",
        "max_themes",
        "max_statements",
        "max_episodes",
        "probes",
        "objective_over",
        "tiny",
    ],
)
def test_sizes_of_zero_are_refused_by_name(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 1"):
        xmemory(0, **{setting: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"episode_pool": -1}, "episode_pool must be at least 0"), ({"merge_at": "noon"}, "merge_at must be one of insertion, end"),
     ({"expansion": "all"}, "expansion must be one of further, same"), ({"extraction": "x"}, "extraction must be one of predict")],
)  # fmt: skip
def test_unknown_choices_are_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        xmemory(0, **setting)


@pytest.mark.parametrize(
    ("name", "value"), [("pool", 0), ("probes", 0), ("episode_pool", -1), ("expansion", "all"), ("support_over", "x")]
)
def test_a_wrong_read_setting_is_refused_before_a_read(name: str, value: Any) -> None:
    memory, _, _ = xmemory(2)
    with pytest.raises(ValueError, match=name):
        tuned(memory, {name: value})

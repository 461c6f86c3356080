"""What an experiment is said to cost: a sample of it, scaled, against the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import Case
from eval.analysis.costs import BUILD, phases
from eval.report.published import left_open
from eval.running.loop import run_all
from eval.running.reader import Reader
from eval.running.run import Run
from memsys.embed import HashingEmbedder
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from scripts.assembly.datasets import data
from scripts.assembly.models import Models, build_models
from scripts.assembly.plan import BUILT, SAMPLED, ChosenQuestions, Duration, Plan, Share, Usage, _samples, plan
from scripts.assembly.readiness import plan_text
from scripts.assembly.runs import memory_run, recipe_of
from scripts.setup.options import load_option
from tests.scripts.commands import composed

pytestmark = pytest.mark.slow

CONF = Path(__file__).resolve().parents[2] / "conf"
MODELS = {
    "memory": "gpt-4o-mini",
    "reader": "gpt-4o-mini",
    "judge": "gpt-4o-mini",
    "embedder": "text-embedding-3-small",
}


def runs_of(folder: Path, dataset: str, names: Sequence[str], *more: str) -> tuple[Any, Models, list[Run]]:
    overrides = [f"models.{role}={model}" for role, model in MODELS.items()]
    asked = ["table=segtreemem_t4", "profile=smoke", "network=true", f"results={folder}", *overrides, *more]
    cfg = composed("reproduce", asked)
    built, option = build_models(cfg), load_option("dataset", dataset)
    held, reader = data(cfg.data, option), Reader(**load_option("reader", option["reader"]))
    return (
        cfg,
        built,
        [memory_run(cfg, built, held, recipe_of(load_option("memory", name)), reader) for name in names],
    )


def shares(folder: Path, dataset: str, names: Sequence[str], *more: str) -> dict[str, Share]:
    cfg, built, runs = runs_of(folder, dataset, names, *more)
    judges = {dataset: load_option("dataset", dataset)["judges"][:1]}
    return {share.role: share for share in plan(cfg, built, runs, judges).shares}


def spent(folder: Path, dataset: str, names: Sequence[str], *more: str) -> tuple[int, int]:
    """Calls and prompt tokens of the memories when everything is run."""
    engine = Metered(ExtractiveLLM())
    calls = tokens = 0
    for run in runs_of(folder, dataset, names, *more)[2]:
        services = replace(run.services, llm=engine, reader=engine, probe=engine, embedder=HashingEmbedder())
        whole = replace(run, services=services, folder=folder / "whole" / run.folder.name)
        run_all([whole])
        for cost in phases(whole.folder):
            if cost.phase in (*BUILD, "read"):
                calls, tokens = calls + cost.calls, tokens + cost.tokens_in
    return calls, tokens


@pytest.mark.parametrize(
    ("dataset", "names", "more"),
    [
        ("locomo", ("segtree_td", "memtree_segt", "hipporag"), ()),
        ("realmem", ("graphrag",), ("build.rebuild_every=2",)),  # offline: rebuilt at every second question point
    ],
)
def test_a_plan_from_a_sample_is_near_what_everything_takes(
    tmp_path: Path, dataset: str, names: Sequence[str], more: Sequence[str]
) -> None:
    planned = shares(tmp_path, dataset, names, *more)["memory"]
    calls, tokens = spent(tmp_path, dataset, names, *more)
    assert planned.calls == pytest.approx(calls, rel=0.25)
    assert planned.tokens_in == pytest.approx(tokens, rel=0.25)


def test_of_a_long_history_two_beginnings_are_built_and_tell_how_costs_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("segtree_td", "full_history")
    whole = shares(tmp_path / "whole", "locomo", names)
    monkeypatch.setattr("scripts.assembly.plan.TURNS", 40)
    (sample,) = _samples(runs_of(tmp_path, "locomo", names[:1])[2], lambda run: run)
    assert sample.half is not None
    cut, half = sample.run.cases[0], sample.half.cases[0]
    assert (len(cut.turns), len(half.turns)) == (40, 20)
    original = next(case for case in sample.planned.cases if case.id == cut.id)
    assert half.turns == cut.turns[:20] == original.turns[:20]
    beginnings = shares(tmp_path / "beginnings", "locomo", names)
    for role, counts in (("memory", ("calls", "tokens_in")), ("reader", ("calls", "tokens_in"))):
        for count in counts:
            assert getattr(beginnings[role], count) == pytest.approx(getattr(whole[role], count), rel=0.25), (
                role,
                count,
            )


def test_questions_of_a_beginning_are_asked_after_the_same_share_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.assembly.plan.TURNS", 20)
    (sample,) = _samples(runs_of(tmp_path, "realmem", ("bm25",))[2], lambda run: run)
    (case,), size = sample.run.cases, len(sample.run.cases[0].turns)
    original = next(each for each in sample.planned.cases if each.id == case.id)

    def shares_of(one: Case) -> list[float]:
        place = {turn.id: number + 1 for number, turn in enumerate(one.turns)}
        return [place[question.after] / len(place) for question, _ in one.questions if question.after]

    assert size < len(original.turns)
    assert shares_of(case) == pytest.approx(shares_of(original), abs=1 / size)


def test_what_a_sample_used_counts_by_its_factor() -> None:
    usage = Usage()
    usage.add(10, calls=1, tokens_in=50, tokens_out=3)
    usage.add(2, calls=1, tokens_in=5, tokens_out=4)
    share = usage.share("memory", "m", None)
    assert (share.calls, share.tokens_in, share.tokens_out) == (12, 510, 38)


def test_the_probe_of_xmemory_is_planned_at_its_own_price(tmp_path: Path) -> None:
    planned = shares(tmp_path, "locomo", ("xmemory",), "models.probe=gpt-4.1-mini", "models.memory=gpt-5-nano")
    probe, memory = planned["probe"], planned["memory"]
    price = load_option("llm", "gpt-4.1-mini")["settings"]
    assert probe.model == price["model"] != memory.model
    assert probe.calls > 0
    assert memory.calls > 0
    in_usd, out_usd = price["usd_per_million_in"], price["usd_per_million_out"]
    assert probe.usd == pytest.approx((probe.tokens_in * in_usd + probe.tokens_out * out_usd) / 1e6)


def test_a_plan_without_a_probing_memory_names_no_probe(tmp_path: Path) -> None:
    assert "probe" not in shares(tmp_path, "locomo", ("bm25",))


def test_every_question_is_planned_to_be_answered_and_judged_though_few_are_asked(tmp_path: Path) -> None:
    planned = shares(tmp_path, "locomo", ("bm25", "dense"))
    cases = runs_of(tmp_path, "locomo", ("bm25",))[2][0].cases
    questions = sum(len(case.questions) for case in cases)
    assert questions > 2 * SAMPLED
    assert planned["reader"].calls == planned["judge"].calls == 2 * questions
    assert planned["reader"].usd is not None
    assert planned["memory"].calls == 0


def test_a_prompt_longer_than_the_window_costs_nothing_and_the_plan_names_its_run(tmp_path: Path) -> None:
    cfg, built, runs = runs_of(tmp_path, "locomo", ("bm25", "full_history"))
    judges = {"locomo": load_option("dataset", "locomo")["judges"][:1]}
    everything = plan(cfg, built, runs, judges)
    cut_off = plan(cfg, built, runs, judges, window=2000)
    only_bm25 = plan(cfg, built, runs[:1], judges)
    assert (everything.failures, only_bm25.failures) == ((), ())
    (line,) = cut_off.failures
    assert f"locomo · full_history: {SAMPLED} of {SAMPLED} sampled questions have no answer" in line
    assert "in a window of 2000" in line
    assert line in plan_text(cut_off)
    reader, judge = ({share.role: share for share in cut_off.shares}[role] for role in ("reader", "judge"))
    alone = {share.role: share for share in only_bm25.shares}
    assert (reader.tokens_in, judge.calls) == (alone["reader"].tokens_in, alone["judge"].calls)


def places(folder: Path, dataset: str, name: str) -> tuple[list[int], int]:
    """Which of the sampled history's questions are asked, and how many it has."""
    (sample,) = _samples(runs_of(folder, dataset, (name,))[2], lambda run: run)
    (case,), chosen = sample.run.cases, sample.run.questions
    assert isinstance(chosen, ChosenQuestions)
    found = [place for place, (one, _) in enumerate(case.questions) if (case.id, one.id) in chosen.ids]
    assert len(found) == sample.questions
    return found, len(case.questions)


def test_the_questions_of_a_sample_are_spread_over_its_history(tmp_path: Path) -> None:
    found, count = places(tmp_path, "locomo", "bm25")
    assert len(found) == SAMPLED < count
    assert sum(found) / len(found) == pytest.approx((count - 1) / 2, abs=0.6)
    assert found[-1] - found[0] > 0.8 * count


def test_a_memory_that_is_built_for_each_question_is_asked_fewer(tmp_path: Path) -> None:
    online, count = places(tmp_path, "realmem", "bm25")
    offline, _ = places(tmp_path, "realmem", "graphrag")
    assert len(offline) == BUILT < len(online) == min(SAMPLED, count)
    assert offline[len(offline) // 2] == pytest.approx((count - 1) / 2, abs=0.6)
    asked_at_the_end, _ = places(tmp_path, "locomo", "graphrag")
    assert len(asked_at_the_end) == SAMPLED


def test_a_plan_prints_the_price_in_batches_which_discount_answers_and_judgements_only() -> None:
    shares = (Share("memory", "m", 9, 9, 9, 4.0), Share("reader", "m", 9, 9, 9, 2.0), Share("judge", "j", 9, 9, 9, 1.0))
    text = plan_text(Plan(shares, Duration(1.0, 27, 64, 1.5, measured=False)))
    assert "total 7.00 USD" in text
    assert "or 5.50 USD with endpoint.mode=batch" in text
    text = plan_text(Plan(shares, Duration(1.0, 27, 64, 1.5, measured=False), discount=0.2))
    assert "or 4.60 USD with endpoint.mode=batch" in text


def test_a_plan_prices_further_builds_and_says_what_fewer_leave_open() -> None:
    shares = (Share("memory", "m", 9, 9, 9, 6.0), Share("reader", "m", 9, 9, 9, 3.0))
    later = tuple(replace(share, usd=(share.usd or 0) * 2 / 3) for share in shares)
    left = (f"  locomo: {left_open((154,) * 10, 2)}",)
    text = plan_text(Plan(shares, Duration(1.0, 27, 64, 1.5, measured=False), later=later, open=left))
    assert "of it 6.00 USD for second and further builds; build.published=1" in text
    assert "0.8 to 1.4 points with 1 build, 0.9 to 1.4 points with 2 builds" in text


def test_the_second_build_of_a_row_is_planned_at_its_own_price(tmp_path: Path) -> None:
    cfg, built, (first, *_) = runs_of(tmp_path, "locomo", ["recency"])
    second = replace(first, replicate=1, folder=first.folder.with_name(f"{first.folder.name}-again"))
    judges = {"locomo": load_option("dataset", "locomo")["judges"][:1]}
    twice = plan(cfg, built, [first, second], judges)
    used = {share.role: share for share in twice.shares}
    assert {share.role: 2 * share.calls for share in twice.later} == {role: one.calls for role, one in used.items()}
    assert used["judge"].calls > 0
    assert len(twice.open) == 1
    assert plan(cfg, built, [first], judges).later == ()

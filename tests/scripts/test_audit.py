"""The audit of the published tables finds what was found by hand, and a table of one's own is read and judged the same way."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from eval.report.audit import Finding, average_verdict, lines_of, reordered, weighted_mean
from eval.report.published import FOLDER, read_published
from scripts.command import verb
from scripts.commands.audit import ACCURACIES, FACTS, audit_published, setting

main = partial(verb, "audit")

pytestmark = pytest.mark.slow


@cache
def findings() -> tuple[Finding, ...]:
    return tuple(audit_published())


def found(where: str, kind: str, row: str = "") -> list[str]:
    return [one.text for one in findings() if (one.where, one.kind) == (where, kind) and row in one.row]


def recorded() -> list[dict[str, str]]:
    with (FOLDER / "consistency_checks.csv").open(encoding="utf-8", newline="") as handle:
        return [row for row in csv.DictReader(handle) if row["weighting"] != "equal bins (true bin sizes unknown)"]


@pytest.mark.parametrize(
    ("backbone", "models"),
    [
        ("answer gpt-4o; memory gpt-4o-mini; an embedder", "gpt-4o"),
        ("internal gpt-4o-mini; answer gpt-4o", "internal gpt-4o-mini; answer gpt-4o"),
    ],
)
def test_tables_differ_in_their_setting_where_the_model_that_answers_does(backbone: str, models: str) -> None:
    one = replace(read_published("timem_t2")[0], backbone=backbone)
    assert setting(one)[2] == models


def test_every_recorded_check_is_reproduced() -> None:
    numbers = [one for path in sorted(FOLDER.glob("*_t*.csv")) for one in read_published(path.stem)]
    numbers += read_published("memtree_a4")
    as_headed = lines_of(numbers, FACTS["counts"], ACCURACIES, FACTS["runs"])
    ours = {}
    for weighting, lines in (("as printed headers", as_headed), ("", reordered(as_headed)[0])):
        for line in lines:
            name = (line.where, line.column, line.name, weighting)
            ours[name] = (float(weighted_mean(line)), average_verdict(line))
    checks = recorded()
    assert len(checks) == 153
    for row in checks:
        name = " / ".join(filter(None, (row["method"], row["variant"])))
        column = f"{row['dataset']}, {row['backbone']}, {row['metric']}"
        weighting = row["weighting"] if row["weighting"] == "as printed headers" else ""
        key = (f"{row['paper']} {row['table']}", column, name, weighting)
        mean, verdict = ours[key]
        assert mean == pytest.approx(float(row["recomputed"]), abs=5.1e-5), key
        assert verdict == row["verdict"], key


def test_the_headings_of_a_table_are_found_in_the_order_of_the_category_ids() -> None:
    (text,) = found("SegTreeMem T7", "heading")
    assert "0 of 18 totals" in text
    assert "Single-hop 282, Multi-hop 321, Temporal 96, Open-domain 841, Adversarial 446 16:" in text
    assert "18 before, 3 after" in text
    assert [one.where for one in findings() if one.kind == "heading"] == ["SegTreeMem T7"]


def test_a_total_that_fits_neither_its_cells_nor_a_count_nor_its_interval_is_found_three_times() -> None:
    row = "LongMemEval-MAB, qwen3.5-flash"
    (mean,) = found("SegTreeMem T8", "average", f"{row}, LLM-judge accuracy · SegTreeMem / No-Propagation")
    assert mean.startswith("total 0.669, its cells give 0.6169")
    assert "total 0.669 is no k/300" in found(
        "SegTreeMem T8", "fraction", "qwen3.5-flash, LLM-judge accuracy · SegTreeMem"
    )
    (interval,) = found("SegTreeMem T6", "interval")
    assert interval.startswith("0.669 [0.618, 0.72] is neither")
    assert interval.endswith("SegTreeMem / Best")
    assert any("10.3; without propagation 0.617" in text for text in found("SegTreeMem D.1 text", "claim", row))


def test_the_relations_of_a_row_break_in_six_tables_alone() -> None:
    """TiMem Table 5 keeps them: 846 calls beyond the 2,871 of the first level are 29.5 %."""
    broken = {one.where for one in findings() if one.kind == "relation" and "caption" not in one.where}
    assert broken == {
        "GateMem T3",
        "MemTree (poster) MemTree properties",
        "MemTree A.3",
        "MemTree T5",
        "SegTreeMem T5",
        "xMemory T8",
    }


def test_the_three_misprints_of_gatemem_are_found_and_rounding_is_none() -> None:
    relations = found("GateMem T3", "relation")
    assert relations == [
        "MGS 8.6, but U (1 - A) (1 - F) gives 7.3629",
        "MGS 9.1, but U (1 - A) (1 - F) gives 9.2128",
    ]
    swapped = found("GateMem T3", "repetition", "GPT-5.4, household")
    assert [text.partition(" (")[0] for text in swapped] == [
        "16.8, but 20.1 in GateMem leaderboard",
        "20.1, but 16.8 in GateMem leaderboard",
    ]
    assert {one.where for one in findings() if "plur" in one.where} == set()


def test_wrong_totals_change_who_is_ahead() -> None:
    (plain,) = found("SegTreeMem T7", "average", "qwen3.5-flash, LLM-judge accuracy · SegTreeMem / No-Propagation")
    assert "0.525, its cells give 0.5076" in plain
    assert "below RAPTOR" in plain
    (raptor,) = found("SegTreeMem T7", "average", "RAPTOR")
    assert "0.593, its cells give 0.6112" in raptor
    assert "Single-hop 0.354" in raptor
    assert "above A-MEM" in raptor
    assert any(
        "give 4.1; without propagation 0.508, strongest baseline RAPTOR 0.518" in text
        for text in found("SegTreeMem D.1 text", "claim")
    )


def test_rows_of_the_own_system_are_no_fractions_of_the_questions() -> None:
    rows = [
        one.row
        for one in findings()
        if one.where in ("SegTreeMem T7", "SegTreeMem T8") and "no k/n" in one.text and one.kind == "fraction"
    ]
    assert len(rows) == 6
    assert all("· SegTreeMem / " in row for row in rows)


def test_differences_that_are_wrong_are_found_and_right_ones_are_not() -> None:
    assert [(one.where, one.text) for one in findings() if one.kind == "difference"] == [
        ("SegTreeMem T3", "-0.111 printed, 0.538 - 0.639 = -0.101")
    ]


def test_claims_are_compared_with_the_tables() -> None:
    (gains,) = found("SegTreeMem Sec.5.4 text", "claim")
    for gain in ("+5.1 %", "+15.5 %", "+7.3 %", "+6.0 %", "+17.6 %", "+10.4 %"):
        assert gain in gains
    policies = found("SegTreeMem T4", "claim")
    assert "said to be above SegTreeMem / BU batch alpha=.10 H=2; printed 0.636 and 0.639" in policies
    assert "said to be above SegTreeMem / BU batch alpha=.10 H=2; printed 0.633 and 0.647" in policies
    assert "said to be above SegTreeMem / Original; printed 0.639 and 0.639" in policies
    assert len(policies) == 4
    assert found("xMemory T4", "claim") == ["said to be above xMemory / Memory-only; printed 40.64 and 40.77"]
    assert found("xMemory T6", "claim") == ["said to be above xMemory / w/o merge; printed 29.58 and 29.68"]


def test_trees_of_equal_depth_have_no_spread_of_depth() -> None:
    assert len(found("SegTreeMem T5", "relation", "SegTreeMem / ")) == 18
    assert any(
        text.startswith("281 leaves") and "exchanges" in text for text in found("SegTreeMem T5 caption", "relation")
    )


def test_averages_of_the_other_papers_are_recomputed() -> None:
    (gold,) = found("MemTree T4", "average")
    assert "total 79.2, its cells give 80.39" in gold
    (f1,) = found("xMemory T1", "average", "Qwen3-8B; text-embedding-3-small, F1")
    assert "total 40.45, its cells give 39.744" in f1
    assert len(found("xMemory T1", "average")) == 6


def test_a_row_scored_on_one_question_less_is_found() -> None:
    texts = found("TiMem T2", "questions", "MemoryOS")
    assert [text.split(";")[0] for text in texts] == [
        "SSA 78.18 is of 55 questions, not 56",
        "SSA 80.00 is of 55 questions, not 56",
    ]
    assert all("over 499 questions" in text for text in texts)
    assert len([one for one in findings() if one.kind == "questions"]) == 2


def test_swapped_digits_are_found_by_repetition_and_by_their_ratio() -> None:
    assert found("xMemory T7", "repetition") == [
        "2879, but 2897 in xMemory T8 (xMemory / cap=12); 2897 is also xMemory / w/o split of xMemory T7"
    ]
    assert "avg_semantics_per_theme 4.48, but semantics / themes gives 4.5125" in found("xMemory T8", "relation")
    assert all("but 3164" in text for text in found("MemTree Sec.5.3 text", "repetition"))


# --- the command -------------------------------------------------------------------------------------------------------


def table(folder: Path, *rows: str) -> str:
    path = folder / "mine.csv"
    path.write_text("\n".join(["memory,multi,temporal,open,single,all", *rows]) + "\n", encoding="utf-8")
    return str(path)


COUNTED = ("--counts", "282,321,96,841")


def test_a_table_that_adds_up_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = table(tmp_path, "right,0.500,0.333,0.250,0.750,0.586")
    assert main([mine, *COUNTED, "--strict"]) == 0
    assert capsys.readouterr().out == "everything adds up\n"


def test_strict_tells_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = table(tmp_path, "right,0.500,0.333,0.250,0.750,0.586", "wrong,50.0,33.3,25.0,75.0,60.0")
    assert main([mine, *COUNTED]) == 0
    assert main([mine, *COUNTED, "--strict"]) == 1
    assert "all · wrong: total 60.0, its cells give 58.6" in capsys.readouterr().out


def test_percentages_are_fractions_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = table(
        tmp_path, "right,50.0,33.3,25.0,75.0,58.6", "wrong,50.2,33.3,25.0,75.0,58.6"
    )  # 141 and 142 of 282: 50.0, 50.4
    assert main([mine, *COUNTED]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    assert said == ["- [fraction] all · wrong: no k/n: multi; 2 runs would fit"]


def test_means_and_repetitions_are_told_by_options(tmp_path: Path) -> None:
    mine = table(tmp_path, "mine,0.5012,0.3330,0.2500,0.7500,0.5864")  # 0.5012 of 282 is no count of one run
    assert main([mine, *COUNTED, "--strict"]) == 1
    assert main([mine, *COUNTED, "--strict", "--means"]) == 0
    assert main([mine, *COUNTED, "--strict", "--runs", "20"]) == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("mine,0.5,0.3,0.2,0.58", "row 2: 5 fields; a name, 4 cells and a total are 6"),
        ("mine,0.5,0.3,n/a,0.7,0.58", "'n/a' is no number"),
        ("mine,0.5,0.3,nan,0.7,0.58", "'nan' is no number"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(
    row: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([table(tmp_path, row), *COUNTED]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_or_empty_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.csv"), *COUNTED]) == 2
    assert main([table(tmp_path), *COUNTED]) == 2
    said = capsys.readouterr().err
    assert "No such file" in said
    assert "at least one row" in said


def test_a_table_needs_counts(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([table(tmp_path, "right,0.5,0.3,0.2,0.7,0.5")])


def test_the_published_tables_are_reported_and_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("## GateMem T3")
    assert "## MemTree" in said
    assert main(["--strict"]) == 1


def test_the_audit_says_which_figures_and_tables_of_the_papers_are_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    said = capsys.readouterr().out
    assert "Not made here" in said
    assert "`inspect RUN --design OTHER`" in said  # SegTreeMem Table 9
    assert "`inspect RUN --worked segtreemem_q1`" in said
    assert "xMemory (1, 2)" in said

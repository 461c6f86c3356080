"""Rows of one column group see the same turns, or the caption says which do not; and no prompt has words of the real golds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from data_loaders.raw import as_lazy
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn
from scripts.command import verb
from scripts.settings.schema import Reproduce
from scripts.setup.options import load_option, options
from scripts.tables.captions import Lost, evidence_line, evidence_lines, lost_by_row, row_units
from scripts.tables.layout import ColumnGroup, TableRow, column_group, group_name, read_lines_of
from tests.scripts.commands import composed
from tests.scripts.test_prompt_words import check_readers, fixed_phrases

main = partial(verb, "audit")

RULES_OF_RELEASES = {
    "TiMem",  # its parser makes no pair of an odd last turn
    "MemoryOS",  # its evaluation keeps the last reply only, and no message without one
}
"""Classes of memories that leave turns out as their releases do."""
Place = tuple[str, list[TableRow], dict[str, Lost]]
"""A column group: its table and caption line, its rows, and what each row loses by its title."""


def places(cfg: Reproduce, loaded: dict[tuple[str, str], ColumnGroup]) -> Iterator[Place]:
    """Every column group of the tables whose data set is there; `loaded` has those by data set and transform, and gets the others."""
    for name in options("table"):
        table = load_option("table", name)
        lines = read_lines_of(table, None)
        for option in table["columns"]:
            key = (option["dataset"], option.get("transform", "none"))
            if key not in loaded:
                loaded[key] = column_group(cfg, option, ())
            group = loaded[key]
            if group.dataset is not None:
                units = row_units(option, lines, group.dataset.config)
                line = evidence_line(group_name(option), group.dataset.cases, units)
                yield f"{name}, {line or group_name(option)}", lines, lost_by_row(group.dataset.cases, units)


def check_captions(tables: Sequence[Place]) -> None:
    """Every row that loses evidence is named in the caption with its counts, or all rows are."""
    for said, _, losses in tables:
        differ = len({(each.some, each.wholly) for each in losses.values()}) > 1
        for row, each in losses.items():
            if not each.some:
                continue
            number = f"{len(each.some):,} question{'s' if len(each.some) > 1 else ''}"
            assert number in said
            assert f"{len(each.wholly):,} of them all of it" in said
            assert row in said if differ else "every row" in said
        assert ("ROWS DO NOT SEE THE SAME TURNS" in said) == differ


def check_reasons(tables: Sequence[Place]) -> None:
    """Only rules that SegTreeMem's tables state, and rules of released systems, withhold evidence."""
    for said, lines, losses in tables:
        for line in lines:
            if line.title in losses and losses[line.title].some and not said.startswith("segtreemem_"):
                assert line.memory is not None
                target = line.memory["build"]["_target_"]
                assert target.rpartition(".")[2] in RULES_OF_RELEASES, f"{said}: {line.title} loses evidence"


@pytest.fixture(scope="module")
def samples() -> Reproduce:
    return composed("reproduce", ["table=regression", "data.source=sample"])


@pytest.fixture(scope="module")
def tables(samples: Reproduce) -> list[Place]:
    return list(places(samples, {}))


@pytest.fixture(scope="module")
def real(data_root: Path) -> Reproduce:
    assert data_root / "locomo" / "locomo10.json"
    where = ["data.source=real", f"data.root={data_root}", "data.unpinned=true"]
    return composed("reproduce", ["table=regression", *where])


@pytest.fixture(scope="module")
def real_groups() -> dict[tuple[str, str], ColumnGroup]:
    """Real data sets by name and transform: two tests look at nearly all of them, and parsing them takes seconds."""
    return {}


@pytest.mark.slow
def test_rows_of_a_column_lose_the_same_evidence_or_the_caption_names_them(tables: list[Place]) -> None:
    assert len(tables) > 50
    check_captions(tables)


@pytest.mark.slow
def test_only_the_tables_of_segtreemem_and_two_released_systems_leave_evidence_out(tables: list[Place]) -> None:
    check_reasons(tables)


@pytest.mark.data
@pytest.mark.integration
def test_the_same_holds_of_the_real_files(real: Reproduce, real_groups: dict[tuple[str, str], ColumnGroup]) -> None:
    tables = list(places(real, real_groups))
    assert len(tables) > 50
    check_captions(tables)
    check_reasons(tables)


@pytest.mark.data
@pytest.mark.integration
def test_no_reader_prompt_has_the_fixed_words_of_a_real_gold(
    real: Reproduce, real_groups: dict[tuple[str, str], ColumnGroup]
) -> None:
    try:
        phrases = fixed_phrases(real, real_groups)
    except DataError as error:  # a sample cannot be loaded
        pytest.fail(str(error))
    check_readers(phrases)


def test_the_default_units_of_locomo_leave_no_turn_out(samples: Reproduce) -> None:
    for name in ("locomo", "locomo_audited", "locomo_corrected", "locomo_sound"):
        config = load_option("dataset", name)
        group = column_group(samples, {"dataset": "locomo"}, ())
        assert group.dataset is not None
        assert lost_by_row(group.dataset.cases, {"": config["unit"]})[""].dropped == 0


@pytest.mark.data
def test_segtreemem_loses_the_evidence_of_a_hundred_questions_and_says_so(real: Reproduce) -> None:
    table = load_option("table", "segtreemem_t4")
    group = column_group(real, table["columns"][0], ())
    assert group.dataset is not None
    gone = lost_by_row(group.dataset.cases, {"": table["columns"][0]["unit"]})[""]
    answerable = {question.key for question in group.questions if question.answerable}
    assert (gone.dropped, gone.turns, len(gone.some), len(gone.wholly)) == (268, 5882, 183, 100)
    assert len(gone.wholly & answerable) == 83
    (said,) = evidence_lines([group], read_lines_of(table, None))
    assert "every row: the unit rule ab_pair" in said
    assert "183 questions lose evidence, 100 of them all of it" in said


def test_a_unit_of_a_row_comes_before_that_of_its_column(samples: Reproduce) -> None:
    table = load_option("table", "xmemory_t2")
    column = {**table["columns"][0], "unit": {"rule": "utterance"}}
    units = row_units(column, read_lines_of(table, None), load_option("dataset", column["dataset"]))
    assert units["MemoryOS"] == {"rule": "page", "on_unpaired": "keep_single"}
    assert units["xMemory"] == {"rule": "utterance"}


@pytest.mark.slow
def test_memoryos_sees_profiles_and_events_of_perltqa(samples: Reproduce) -> None:
    """They are no exchanges: as pages alone, most of them and the evidence of most questions would be left out."""
    table = load_option("table", "xmemory_t2")
    group = column_group(samples, table["columns"][0], ())
    assert group.dataset is not None
    units = row_units(group.option, read_lines_of(table, None), group.dataset.config)
    assert not any(each.some for each in lost_by_row(group.dataset.cases, units).values())
    assert len(lost_by_row(group.dataset.cases, {"": {"rule": "page"}})[""].wholly) == 14


def test_losing_all_evidence_is_told_apart_from_losing_a_part() -> None:
    """The last turn has no partner."""
    turns = (Turn("t0", "A", "Hello.", "user"), Turn("t1", "B", "Hello.", "assistant"), Turn("t2", "A", "Bye.", "user"))
    asked = [("part", ("t0", "t2")), ("all", ("t2",)), ("none", ("t1",)), ("without", ())]
    questions = tuple((Question(name, "What?"), Gold(("x",), at, "c", True)) for name, at in asked)
    cases = as_lazy([Case("c", ("A", "B"), (Session("s", turns),), questions, cluster="c")])
    gone = lost_by_row(cases, {"": {"rule": "ab_pair"}})[""]
    assert (gone.dropped, gone.turns) == (1, 3)
    assert gone.some == {("c", "part"), ("c", "all")}
    assert gone.wholly == {("c", "all")}
    assert lost_by_row(cases, {"": {"rule": "ab_pair", "on_unpaired": "keep_single"}})[""].some == set()


@pytest.mark.slow
def test_the_audit_prints_evidence_lost_by_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--evidence", "--strict"]) == 1
    printed = capsys.readouterr().out
    assert "## timem_t1" in printed
    assert "MemoryOS: the unit rule page" in printed
    assert "equal_budgets" not in printed

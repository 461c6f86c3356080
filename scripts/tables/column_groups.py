"""The column groups of a table: each names a data set, the reader that answers its questions, and the metrics that score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from data_loaders.schema import DataError
from eval.files.store import RunError
from eval.report.cell import ALL, ANSWERABLE, Asked, Column, asked
from eval.running.reader import Reader
from scripts.assembly.datasets import Data, data
from scripts.assembly.runs import reader
from scripts.settings.arguments import as_called
from scripts.setup.options import load_option
from scripts.tables.layout import SCORES, group_name, kind_of, title_of

if TYPE_CHECKING:
    from scripts.settings.schema import DataCut, Settings


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """A column group of a table with its data set."""

    option: Mapping[str, Any]
    """The group as the table's YAML describes it."""
    title: str
    dataset: Data | None
    """None when the data set could not be loaded."""
    missing: str
    """Why the data set could not be loaded; empty when it was."""
    reader: Reader
    questions: tuple[Asked, ...]
    aggregate: str
    answerable: str
    """Title of the mean over the answerable questions."""

    @property
    def name(self) -> str:
        """The group's name, else the name of its data set."""
        return group_name(self.option)

    @property
    def unit(self) -> Mapping[str, Any]:
        """Unit rule of the group, else of its data set, which must be there."""
        assert self.dataset is not None
        unit: Mapping[str, Any] = self.option.get("unit") or self.dataset.config["unit"]
        return unit

    def keys(self, category: str) -> frozenset[tuple[str, str]]:
        """Case and question ids of the questions of a category."""
        return frozenset(question.key for question in _in_category(self.questions, category))

    def column(self, metric: Mapping[str, Any]) -> Column:
        """The column of one metric; a metric that is no score has no questions."""
        questions = _in_category(self.questions, metric.get("category", ALL)) if kind_of(metric) in SCORES else ()
        questions = _in_category(questions, metric.get("of", ALL))
        scale = metric.get("scale", 1.0)
        return Column(self.name, self.title, title_of(metric), questions, self.aggregate, self.answerable, scale)


def column_group(cfg: Settings, option: Mapping[str, Any]) -> ColumnGroup:
    """Load the data set of a column group, cut as the configuration asks; a missing real data set is noted in `missing`.

    Raises:
        DataError: a sample, which is shipped, cannot be loaded.
        RunError: the group and the configuration both set a transform.
    """
    config = load_option("dataset", option["dataset"])
    config["title"] = option.get("title") or config["title"]
    dataset, missing = None, ""
    try:
        dataset = data(_with_transform(cfg.data, option), config)
    except DataError as error:
        if cfg.data.source != "real":
            raise
        missing = as_called(f"no data: {error}")
    return ColumnGroup(
        option,
        config["title"],
        dataset,
        missing,
        _within_budget(reader(option.get("reader") or config["reader"]), option.get("budget")),
        asked(dataset.cases) if dataset is not None else (),
        option.get("aggregate") or config["aggregate"][0],
        config.get("answerable", "answerable") if dataset is not None else "answerable",
    )


def _within_budget(reader: Reader, budget: int | None) -> Reader:
    """The reader that shows as much of every recall as the budget allows; without a budget the reader itself."""
    return reader if budget is None else replace(reader, max_context_tokens=budget, fill=True)


def _with_transform(wanted: DataCut, option: Mapping[str, Any]) -> DataCut:
    """The settings with the group's `transform`, if it has one.

    Raises:
        RunError: the settings name a transform, too.
    """
    if "transform" not in option:
        return wanted
    if wanted.transform != "none":
        raise RunError(
            f"{group_name(option)} sets the transform {option['transform']} itself; data.transform must be none"
        )
    return wanted.changed(transform=option["transform"])


def _in_category(questions: Sequence[Asked], category: str) -> tuple[Asked, ...]:
    """Questions of a category; `all` and `answerable` are categories, too."""
    if category in (ALL, ANSWERABLE):
        return tuple(question for question in questions if question.answerable or category == ALL)
    return tuple(question for question in questions if question.belongs_to(category))

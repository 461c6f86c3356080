"""A cell whose metric names an outcome for each question: right, not applicable, or a kind of wrong outcome (the suite `change`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from eval.judging.score_files import read_scores
from eval.metrics.change import RIGHT, WRONG
from eval.report.cell import ALL, Cell, Counts

KINDS = tuple(name for names in WRONG.values() for name in names)
"""Wrong outcomes, the most important of each family first."""
NOT_APPLICABLE = "n/a"
"""Beginning of the outcome of a question that says nothing about the memory."""


@dataclass(frozen=True)
class OutcomeCell(Cell):
    """A cell with named outcomes. Of several builds, the outcomes are those of the first build; the mean is over all builds."""

    @cached_property
    def named(self) -> dict[tuple[str, str], str]:
        """The outcome of each question that was reached."""
        if not self.score_files:
            return {}
        return {
            key: str(lines[0]["detail"].get("outcome", "")) for key, lines in read_scores(self.score_files[0]).items()
        }

    @cached_property
    def inapplicable(self) -> frozenset[tuple[str, str]]:
        """Questions that say nothing about the memory: they count neither as scored nor as missing."""
        return (
            frozenset(key for key, name in self.named.items() if name.startswith(NOT_APPLICABLE)) - self.scores.keys()
        )

    def counts(self, category: str = ALL) -> Counts:
        """Outcomes of the applicable questions of a category."""
        keys = [question.key for question in self.applicable(category)]
        scored = [key for key in keys if key in self.scores]
        # No line in the score file: the question's read failed, or a read that belongs to it was not reached (empty).
        failed = frozenset({"error"})
        rest = [
            self.named.get(key) or "errored" * (self.outcomes.get(key) == failed)
            for key in keys
            if key not in self.scores
        ]
        errored, left = rest.count("errored"), rest.count("")
        cut = sum("cut" in self.outcomes.get(key, ()) for key in scored)
        return Counts(len(keys), len(scored), len(rest) - errored - left, errored, left, cut=cut)

    def failures(self, category: str = ALL) -> str:
        """Counts of wrong outcomes, such as `both 12, lost 3`, the most important first; empty if there are none."""
        scored = [question.key for question in self.applicable(category) if question.key in self.scores]
        found = Counter(self.named.get(key, "") for key in scored)
        return ", ".join(
            f"{name} {found[name]}"
            for name in dict.fromkeys([*KINDS, *sorted(found)])
            if found[name] and name not in RIGHT
        )

    def skipped(self, category: str = ALL) -> int:
        """Number of questions of a category that say nothing about the memory."""
        return len(self._questions(category)) - len(self.applicable(category))

    def split(self, category: str = ALL) -> str:
        """Counts such as `610/20/10`: right, wrong, not applicable; followed by the counts of other outcomes if there are any."""
        counts = self.counts(category)
        right = sum(self.scores[each.key] for each in self.applicable(category) if each.key in self.scores)
        named = (("unscored", counts.unscored), ("errored", counts.errored), ("not reached", counts.not_reached))
        missing = [f"{count} {name}" for name, count in named if count]
        return ", ".join([f"{right:g}/{counts.scored - right:g}/{self.skipped(category)}", *missing])

"""Measure what one more unit costs as a history grows: `python -m scripts growth segtree locomo sizes=[100,200,400] questions=100`.

Builds one memory over the data set's cases in a row and measures the cost at each size (SegTreeMem Fig. 5, MemTree Fig. 5;
`eval.analysis.growth` describes the method). With `questions`, at most this number of questions with written evidence are read at each
size and answered by the reader (`score`); the questions of the first size are read at every size. Evidence recall, score, bytes, intervals
and exponents are added. The CSV is printed and written to `results/growth/`.

Exit codes: 0 measured, 1 too many questions of a size failed or have no score (`max_unscored`), 2 wrong input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scripts.settings.schema import Growth

GROUP = "run"
CONFIG = "growth"
WORDS = "memory dataset"
SHOWN = (
    ("covered", "read", "covered"),
    ("covered, questions of the first size", "read", "covered_first"),
    ("score", "read", "score"),
    ("recalled bytes a read", "read", "recalled_bytes"),
    ("CPU seconds a read", "read", "own_cpu_seconds"),
    ("CPU seconds a unit", "one_more", "own_cpu_seconds"),
    ("calls a unit", "one_more", "calls"),
    ("tokens in a unit", "one_more", "tokens_in"),
    ("bytes of objects", "cumulative", "object_bytes"),
    ("bytes of nodes", "cumulative", "node_bytes"),
)
"""Columns of the summary: its name, and line and column of the CSV."""
INTERVALS = """\
[]: 95 %. covered, score, recalled bytes: by history; below five histories Wilson's on the effective number of questions (bytes: by
question), by question for one. Costs: by write or read, about these histories alone. exponent: how well a power fits these sizes; none
for totals and reads, because sizes share writes and questions."""


def main(cfg: Growth) -> int:
    from eval.analysis.growth import Schedule, growth_file, measure
    from eval.files.store import replace_file
    from scripts.assembly.readiness import check_endpoint
    from scripts.assembly.steps import answer_metric, check_no_replay
    from scripts.lab.lab import Lab
    from scripts.setup.progress import progress_line

    lab = Lab(cfg=cfg)
    dataset = lab.load()
    run = lab.run(lab.memory(), dataset)
    check_no_replay(cfg, run, "growth")
    check_endpoint(cfg, lab.models)
    metric = answer_metric(dataset.config) if cfg.score and cfg.questions else None
    schedule = Schedule(
        tuple(cfg.sizes), cfg.window, cfg.reads, cfg.questions, cfg.k_evidence, metric.name if metric else ""
    )
    path = growth_file(run, dataset.name, schedule)
    with progress_line("growth", max(schedule.sizes), traffic=lab.models.traffic) as progress:
        text = measure(run, dataset.name, schedule, metric.scored if metric else None, progress.step)
    replace_file(path, text)
    if filled := lab.models.stand_ins:
        print(f"STAND-IN: {', '.join(filled)} filled by offline engines; these are not the costs of models.")
    print(text, end="")
    for line in summary(text) if schedule.questions else ():
        print(line)
    if metric:
        print(f"score: {metric.name} of the reader's answers")
    print(f"written: {path}")
    lacking = [*missing(text, cfg.missing_limit)] if schedule.questions else []
    for line in lacking:
        print(f"error: {line}", file=sys.stderr)
    return int(bool(lacking))


def missing(text: str, limit: float) -> Iterator[str]:
    """The sizes of the CSV at which more than the share `limit` of the questions failed or have no score."""
    for row in _rows(text):
        if row["what"] == "cumulative":  # one line of each size
            failed, unscored = int(row["failed"]), int(row["unscored"])
            if failed + unscored > limit * max(int(row["questions"]), int(row["first_questions"])):
                yield f"{row['n']} units: questions failed: {failed}, without a score: {unscored} (limit {limit:.1%})"


def summary(text: str) -> Iterator[str]:
    """A summary of the CSV in lines: each quantity at every size with its 95 % interval, and its exponent."""
    from eval.report.counted import counted

    rows = _rows(text)
    asked = {row["n"]: row for row in rows if row["what"] == "cumulative"}
    for n, row in asked.items():
        asked_at = f"{counted(int(row['questions']), 'question')} of {counted(int(row['histories']), 'history')}"
        counts = f"{asked_at} with their evidence written, and the {row['first_questions']} of the first size"
        failed = "".join(f", {row[name]} {name}" for name in ("failed", "unscored") if int(row[name]))
        yield f"{counted(int(n), 'unit')} ({counted(int(row['turns']), 'turn')}): {counts}{failed}"
    for title, kind, column in SHOWN:
        parts = [f"{row['n']}: {_with_interval(row, column)}" for row in rows if row["what"] == kind and row[column]]
        fits = [_with_interval(row, column) for row in rows if row["what"] == f"{kind}_exponent" and row[column]]
        if parts:
            yield f"{title}: {'; '.join(parts)}" + "".join(f"; exponent {fit}" for fit in fits)
    yield INTERVALS


def _rows(text: str) -> list[dict[str, str]]:
    import csv
    import io

    return list(csv.DictReader(io.StringIO(text, newline="")))


def _with_interval(row: Mapping[str, str], column: str) -> str:
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return f"{float(row[column]):.4g}" + (f" [{float(low):.4g}, {float(high):.4g}]" if low else "")

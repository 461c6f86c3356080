"""Loss waterfalls of a set of runs, computed while the report is built, from the scores that its tables show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.analysis.losses import EVIDENCE, as_json, losses_of, waterfall
from eval.files.run_folder import RunFolder
from eval.report.html.scoring import Scorer
from eval.report.html.sources import ReportedRun, RunSet, TableFile


def waterfalls(own: RunSet, every: Sequence[Scorer]) -> Iterator[TableFile]:
    """Where each run of a set loses its points, by the first metric that has scored it and the run of `gold_evidence`."""
    evidence = next((run for run in own.runs if run.record.name == EVIDENCE), None)
    if evidence is None or not own.cases:
        return
    for run in own.runs:
        scorer = next((each for each in every if _file(run, each).is_file() and _file(evidence, each).is_file()), None)
        if scorer is None or run.record.imported:
            continue
        losses = list(losses_of(run.folder, _file(run, scorer), _file(evidence, scorer), own.cases, run.record.reader))
        if losses:
            title = f"{run.title} on {own.name}, {scorer.title}"
            files = " and ".join(f"runs/{each.key}/scores/{scorer.stem}.jsonl" for each in (run, evidence))
            yield TableFile(f"{run.folder.name}-{scorer.stem}", {**as_json(title, waterfall(losses)), "from": files})


def _file(run: ReportedRun, scorer: Scorer) -> Path:
    return RunFolder(run.folder).scores(scorer.stem)

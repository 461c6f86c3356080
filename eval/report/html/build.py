"""Build the report: write pages, styles and data files into a new folder, which replaces the old one when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from eval.analysis.losses import EVIDENCE, Waterfall, as_json, losses_of, waterfall
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from eval.judging.agreement import RIGHT
from eval.judging.score_files import means_of
from eval.report.counted import counted
from eval.report.html.cleaning import Cleaner, Shards, cleaner
from eval.report.html.memories import COMPARED, lives, memory_page, nodes_page
from eval.report.html.run_files import ReadRun, ReadSet, read_set
from eval.report.html.scoring import Scorer, scorers, stale
from eval.report.html.sets import loaded_prompts, write_set
from eval.report.html.sources import RunSet, Sources, TableFile, nothing

MARK = "memsys-report.txt"
"""A file in every report: a folder without it is not replaced."""
SCRIPTS = ("dom.js", "charts.js", "overview.js", "compare.js", "question.js", "memory.js", "costs.js", "app.js")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parts of a report."""

    title: str = "Memory benchmark report"
    trees: int = 10
    """Number of histories of each run whose nodes are in the report."""
    private: tuple[Path | str | None, ...] = ()
    """Further folders of this machine whose names must not be in the report."""


def build(
    sources: Sources, target: Path, wanted: Wanted, on_progress: Callable[[str], None] = lambda step: None
) -> Path:
    """Build the report; returns its first page. The old report stays until the new one is complete.

    Raises:
        RunError: the target is a folder that is no report; there is nothing to report; or the report is written, without the damaged
            runs that the message names.
    """
    damaged = list(sources.damaged)
    page = write_whole(target, partial(_fill, sources=sources, wanted=wanted, on_progress=on_progress, damaged=damaged))
    if damaged:
        raise RunError(f"{page} is written without {counted(len(damaged), 'damaged run')}: {'; '.join(damaged)}")
    return page


def write_whole(target: Path, fill: Callable[[Path], None], mark: str = MARK) -> Path:
    """Fill a new folder, which then replaces `target`; returns its first page.

    Args:
        mark: a file that `fill` writes; it identifies an earlier folder of the same kind.

    Raises:
        RunError: the target is a folder without the mark.
    """
    target = target.absolute()
    if target.exists() and not (target / mark).is_file():
        raise RunError(f"{target} is there and is no report; name another folder with --out")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    old = draft.with_name(f"{draft.name}.old")
    try:
        fill(draft)
        draft.chmod(0o755)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(draft, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return target / "index.html"


@dataclass(frozen=True, slots=True)
class _Fall:
    """A loss waterfall of a run by one scorer."""

    stem: str
    run: str
    scorer: str
    fall: Waterfall
    source: str
    """The score files that it comes from."""


@dataclass(frozen=True, slots=True)
class _SetPages:
    """What the first pages show of a set whose data files are written."""

    found: RunSet
    line: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]
    lives: Mapping[str, Any]
    falls: Sequence[_Fall]
    stale: Mapping[tuple[int, int, int], str]
    missing: Sequence[str]


def _fill(
    draft: Path, sources: Sources, wanted: Wanted, on_progress: Callable[[str], None], damaged: list[str]
) -> None:
    records = [run.record for own in sources.sets for run in own.runs]
    loaded_prompts.cache_clear()  # a file may have changed since this process made a report
    clean = cleaner(sources.results, [*wanted.private, *(record.prompts_dir for record in records)])
    shards = Shards(draft / "data", clean)
    sets: list[_SetPages] = []
    for number, found in enumerate(sources.sets, 1):
        if (own := read_set(found, damaged)) is None:
            continue
        counts = f"{counted(len(own.runs), 'run')}, {counted(len(own.asked), 'question')}"
        on_progress(f"{number}/{len(sources.sets)} {own.name}: {counts}")
        runs = sum(len(each.runs) for each in sets)
        sets.append(_write_set(shards, found, own, len(sets), runs, sources, wanted.trees))
    if not sets and not sources.tables:
        raise nothing(sources.results, damaged)
    labels = set_labels([each.found for each in sets], [each.line["questions"] for each in sets])
    told = _write_lives(draft, [each.lives for each in sets], labels, wanted.title, clean)
    falls = [
        TableFile(own.stem, {**as_json(f"{own.run} on {label}, {own.scorer}", own.fall), "from": own.source})
        for label, each in zip(labels, sets, strict=True)
        for own in each.falls
    ]
    losses = [*sources.losses, *falls]
    more = (*sources.tables, *losses, *sources.ceilings)
    for number, table in enumerate(more):
        shards.write(f"table{number}", table.content)
    titles = table_titles(sources.tables)
    tables = [
        {"stem": table.stem, "title": title, "caption": table.content["caption"]}
        for table, title in zip(sources.tables, titles, strict=True)
    ]
    stale_cells = {place: line for each in sets for place, line in each.stale.items()}
    missing = [line for each in sets for line in each.missing]
    index = {
        "title": wanted.title,
        "sets": [{**each.line, "label": label} for each, label in zip(sets, labels, strict=True)],
        "runs": [run for each in sets for run in each.runs],
        "tables": tables,
        "lives": told,
        "losses": _places(more, losses),
        "ceilings": _places(more, sources.ceilings),
        "missing": [*sources.missing, *damaged, *missing, *(stale_cells[place] for place in sorted(stale_cells))],
        "costs": COMPARED,
        "right": RIGHT,
    }
    shards.write("index", index)
    _write_pages(draft, sources, titles, wanted, clean, clean.value(index["missing"]), told)


def _write_set(
    shards: Shards, found: RunSet, own: ReadSet, number: int, first: int, sources: Sources, trees: int
) -> _SetPages:
    """Write the data files of a set, from its number and that of its first run in the report; `trees` as in `Wanted`."""
    every = scorers(own, sources.tables)
    blocks, answered = write_set(shards, number, own, every)
    judges = [each.stem for each in every if each.is_judge]
    runs = []
    for place, run in enumerate(own.runs):
        name = f"run{first + place}"
        shards.write(name, memory_page(run, own, _write_trees(shards, name, run, own, trees), judges))
        runs.append(_run_line(run, own, number, place, answered[place]))
    missing = [  # the same command continues them
        f"run {run['key']} ({run['title']}) is not finished: {run['finished']} of {counted(run['cases'], 'history')}, "
        f"{run['answered']} of {counted(run['asked'], 'question')}"
        for run in runs
        if run["answered"] < run["asked"] or run["finished"] < run["cases"]
    ]
    missing += [
        f"run {run.key}: {path.name} holds no score" for run in own.runs for path in run.scores if not run.scores[path]
    ]
    falls = list(waterfalls(own, every, missing))
    dataset, cuts = own.runs[0].record.dataset, {"size": "all", "max_cases": None, "transform": "none"}
    cut = [f"{name} {dataset[name]}" for name, whole in cuts.items() if dataset.get(name, whole) != whole]
    line = {
        "key": own.key,
        "name": own.name,
        "questions": len(own.asked),
        "histories": len({question.cluster for question in own.asked}),
        "status": str(own.runs[0].record.data_status),
        "cut": ", ".join(cut),
        "why": own.why,
        "scorers": [{"title": each.title, "stem": each.stem, "judge": each.is_judge} for each in every],
        "blocks": blocks,
    }
    return _SetPages(found, line, runs, lives(own), falls, stale(sources.results, own, sources.tables), missing)


def _places(every: Sequence[TableFile], own: Sequence[TableFile]) -> list[list[Any]]:
    """Number of the data file and name of each of these files."""
    return [[number, file.stem] for number, file in enumerate(every) if any(file is each for each in own)]


def table_titles(tables: Sequence[TableFile]) -> list[str]:
    """The titles of tables; a title of several tables is followed by the differing part of their files' names."""
    titles = [str(table.content["title"]) for table in tables]
    return [
        f"{title} ({table.stem.partition('-')[2] or table.stem})" if titles.count(title) > 1 else title
        for title, table in zip(titles, tables, strict=True)
    ]


def set_labels(sets: Sequence[RunSet], questions: Sequence[int]) -> list[str]:
    """A name for each set of runs: data set, and the settings in which sets of this data set differ; a hash where that is not enough.

    Args:
        questions: number of questions of each set.
    """
    labels = []
    for own, count in zip(sets, questions, strict=True):
        alike = [each.runs[0].record.dataset for each in sets if each.name == own.name]
        mine = own.runs[0].record.dataset
        names = [name for name in mine if name != "name" and any(each.get(name) != mine[name] for each in alike)]
        plain = [name for name in names if isinstance(mine[name], str | int | float | bool)]
        parts = [f"{name} {mine[name]}" for name in plain if len(str(mine[name])) <= 20]
        labels.append(f"{own.name} ({', '.join([*parts, counted(count, 'question')])})" if len(alike) > 1 else own.name)
    return [
        f"{label} {own.key.rpartition('-')[2]}" if labels.count(label) > 1 else label
        for label, own in zip(labels, sets, strict=True)
    ]


def _run_line(run: ReadRun, own: ReadSet, number: int, place: int, answered: int) -> dict[str, Any]:
    reader = run.record.models.get("reader", {})
    named = reader.get("model") or reader.get("name") or f"offline engine ({reader.get('engine', 'unknown')})"
    return {
        "key": run.key,
        "title": run.title,
        "memory": run.record.name,
        "set": number,
        "place": place,
        "answered": answered,
        "asked": len(own.asked),
        "finished": len(RunFolder(run.folder).complete()),
        "cases": run.record.cases or 0,
        "reader": "answers of others" if run.record.imported else str(named),
        "stand_ins": run.record.stand_ins,
        "costs": {name: getattr(run.costs, name) for name, _ in COMPARED},
    }


def _write_trees(shards: Shards, name: str, run: ReadRun, own: ReadSet, most: int) -> dict[str, str]:
    """Data file of the nodes of each case, or a sentence that begins with `-` if there is none."""
    trees: dict[str, str] = {}
    for number, case_id in enumerate(own.case_ids):
        if sum(not tree.startswith("-") for tree in trees.values()) >= most:
            trees[case_id] = f"-left out: the report holds the nodes of {most} histories (--trees)"
            continue
        page = nodes_page(RunFolder(run.folder).case(case_id))
        trees[case_id] = page if isinstance(page, str) else f"{name}-case{number}"
        if not isinstance(page, str):
            shards.write(trees[case_id], page)
    return trees


def write_page(
    file: Path, clean: Cleaner, template: str, values: Mapping[str, Any], package: str = "eval.report.html"
) -> None:
    """Write a page from a template of a package; the template escapes every text."""
    text = _environment(package).get_template(template).render(values)
    file.write_text(clean.page(text), encoding="utf-8", errors="replace")  # a damaged file may hold half a character


@lru_cache(maxsize=2)
def _environment(package: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader, strict = PackageLoader(package), StrictUndefined
    return Environment(loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)


def _write_lives(
    draft: Path, told: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str, clean: Cleaner
) -> list[tuple[str, str]]:
    """Write a page for each set with a suite `change`; returns the file names and the sets' labels."""
    written: list[tuple[str, str]] = []
    for number, (families, label) in enumerate(zip(told, labels, strict=True)):
        if families:
            name = f"lives-{number}.html"
            values = {"title": f"Lives of probes: {label}", "label": label, "families": families, "report": title}
            write_page(draft / name, clean, "lives.html.j2", values)
            written.append((name, label))
    return written


def _write_pages(
    draft: Path,
    sources: Sources,
    titles: Sequence[str],
    wanted: Wanted,
    clean: Cleaner,
    missing: Sequence[str],
    told: Sequence[tuple[str, str]],
) -> None:
    """Write the first page, one page per table for readers without JavaScript, styles and scripts.

    Args:
        told: file names and labels of the pages with the histories of probes.
    """
    stems = [
        (f"table-{number}.html", title, table.stem)
        for number, (title, table) in enumerate(zip(titles, sources.tables, strict=True))
    ]
    tables = [*stems, *((name, "Lives of probes", label) for name, label in told)]
    index = {"title": wanted.title, "tables": tables, "scripts": SCRIPTS, "missing": missing}
    write_page(draft / "index.html", clean, "index.html.j2", index)
    for (name, title, stem), table in zip(stems, sources.tables, strict=True):
        values = {"title": title, "table": table.content, "stem": stem, "report": wanted.title}
        write_page(draft / name, clean, "table.html.j2", values)
    for name in ("report.css", *SCRIPTS):
        content = (files("eval.report.html") / "static" / name).read_text(encoding="utf-8")
        (draft / name).write_text(content, encoding="utf-8")
    about = "A report of memsys-bench: open index.html. Another report may take this folder's place.\n"
    (draft / MARK).write_text(about, encoding="utf-8")


def waterfalls(own: ReadSet, every: Sequence[Scorer], missing: list[str]) -> Iterator[_Fall]:
    """Loss waterfalls of the runs of a set, by the first metric that has scored both the run and the run of `gold_evidence`.

    Computed while the report is built, from the scores that its tables show.

    Args:
        missing: gets a sentence about each waterfall that cannot be computed.
    """
    evidence = next((run for run in own.runs if run.record.name == EVIDENCE), None)
    if evidence is None or not own.cases:
        return
    for run in own.runs:
        both = ((each, run.score_file(each.stem), evidence.score_file(each.stem)) for each in every)
        scored = next((each for each in both if each[1] in run.scores and each[2] in evidence.scores), None)
        if scored is None or run.record.imported:
            continue
        scorer, ours, theirs = scored
        means = means_of(run.scores[ours]), means_of(evidence.scores[theirs])
        try:
            losses = list(losses_of(run.folder, *means, own.cases, run.record.reader, run.recalls))
        except RunError as error:
            missing.append(f"run {run.key}: no loss waterfall: {error}")
            continue
        if losses:
            source = " and ".join(f"runs/{each.key}/scores/{scorer.stem}.jsonl" for each in (run, evidence))
            yield _Fall(
                f"{run.folder.name}-{scorer.stem}", run.title, scorer.title, waterfall(losses, scorer.aggregate), source
            )

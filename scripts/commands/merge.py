"""Merge the results of shards: `python -m scripts merge A B … INTO`; all are results folders, merged case by case, and caches.

Everything is compared before anything is written. Two folders contradict each other when

- the records of one run differ in more than versions and machine,
- a case is finished in both with other answers, recalled items or structure; costs hold measured seconds and may differ,
- the caches hold different texts for one request, or different vectors of one text (cosine below 0.999). With `--first`, the
  cache of the folder that is named first is used.

Folders may come from untrusted sources: links, pipes and other entries that are no plain files are refused, as are databases that are no
caches. Replies of batches that are not stored as answers yet are copied, too; while a batch is open, nothing is merged.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from eval.files.run_folder import CASES, TIMELESS, RunFolder, is_complete
from eval.files.store import RunError, locked, read_record
from eval.report.counted import counted
from memsys.folders import read_only
from memsys.llm.batching.journal import Journal
from memsys.llm.store import (
    DAMAGE,
    ENDINGS,
    KEY_BYTES,
    UNSOUND,
    check_schema,
    completion_of,
    connected,
    opened_as,
    vector_of,
)
from scripts.setup.arguments import verb_parser

GROUP = "data"

NAMED = 3
"""Maximum number of contradictions that a message names; it counts the others."""
SAME_DIRECTION = 0.999


def merge(
    sources: Sequence[Path], into: Path, *, first: bool = False, left_out: Counter[tuple[str, str]] | None = None
) -> tuple[int, int]:
    """Merge results folders into `into`; returns the numbers of copied cases and of copied cache rows.

    Args:
        first: of two cached answers to one request, keep the answer of the folder that comes first.
        left_out: counts the rows of the sources' caches that are not in `into` afterwards; its keys are a noun and the reason.

    Raises:
        RunError: a source is no results folder or is `into`, or two folders contradict each other; nothing is written.
    """
    for source in sources:
        if not (source / "runs").is_dir():
            raise RunError(f"{source} is no results folder: it has no folder runs")
    if into.resolve() in [source.resolve() for source in sources]:
        raise RunError(f"{into} is also a source; name another folder to merge into")
    folders = [*([into] if (into / "runs").is_dir() else []), *sources]
    if odd := [place for folder in folders for place in _no_plain_files(folder)]:
        raise RunError(f"nothing was merged: {_listed([f'{place} is a link or no plain file' for place in odd])}")
    faults = [
        *_run_faults(folders),
        *_batches_under_way(folders),
        *([] if first else _cache_faults([folder / "cache.sqlite" for folder in folders])),
    ]
    if faults:
        raise RunError(f"nothing was merged: {_listed(faults)}")
    copied = sum(_merge_runs(source, into) for source in sources)
    counter = Counter[tuple[str, str]]() if left_out is None else left_out
    caches = (source / "cache.sqlite" for source in sources)
    return copied, sum(_merge_cache(cache, into / "cache.sqlite", counter, first=first) for cache in caches)


def _listed(faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return f"{'; '.join(faults[:NAMED])}{more}"


def _no_plain_files(folder: Path) -> Iterator[Path]:
    """Entries below a results folder that lead elsewhere or cannot be copied: links, pipes, sockets, devices."""
    for ending in ENDINGS:
        if (file := folder / f"cache.sqlite{ending}").is_symlink() or (file.exists() and not file.is_file()):
            yield file
    if (folder / "runs").is_symlink():
        yield folder / "runs"
        return
    open_folders = [folder / "runs"]
    while open_folders:
        with os.scandir(open_folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    open_folders.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)


# --- run folders ---------------------------------------------------------------------------------------------------------


def _run_faults(folders: Sequence[Path]) -> Iterator[str]:
    """Differences between two folders about one run or one of its cases."""
    seen: dict[str, RunFolder] = {}
    finished: dict[tuple[str, str], Path] = {}
    for folder in folders:
        for run in RunFolder.all(folder):
            first = seen.setdefault(run.key, run)
            if _settings(run) != _settings(first):
                yield f"{run.file} and {first.file} describe different runs"
            for case in run.complete():
                other = finished.setdefault((run.key, case.name), case)
                if name := next((name for name in TIMELESS if _content(case / name) != _content(other / name)), None):
                    yield f"{case / name} and {other / name} differ"


def _settings(run: RunFolder) -> dict[str, object]:
    return {name: value for name, value in read_record(run.file).items() if name != "made_with"}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _merge_runs(source: Path, into: Path) -> int:
    """Copy the run folders' records and the finished cases that `into` has not finished; a copy appears whole or not at all."""
    copied = 0
    for run in RunFolder.all(source):
        target = RunFolder(into / "runs" / run.dataset / run.path.name)
        with ExitStack() as locks:
            for folder in sorted({target.path} if read_only(run.path) else {run.path, target.path}):
                locks.enter_context(locked(folder))
            if not target.file.is_file():
                shutil.copyfile(run.file, target.file)
            for case in run.complete():
                copied += _copied(case, target.path / CASES / case.name)
    return copied


def _copied(case: Path, target: Path) -> bool:
    if is_complete(target):
        return False
    draft = target.with_name(f"{target.name}.draft")
    for old in (draft, target):  # left by an earlier merge or an unfinished case
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(case, draft)
    draft.rename(target)
    return True


# --- caches --------------------------------------------------------------------------------------------------------------


def _cache_faults(caches: Sequence[Path]) -> Iterator[str]:
    """Requests that two caches answer differently, and texts whose vectors differ."""
    present = [cache for cache in caches if cache.is_file()]
    for place, cache in enumerate(present):
        for other in present[:place]:
            with closing(_attached(cache, other)) as both:
                answers, vectors = _differing(both)
            if answers or vectors:
                differing = f"{counted(answers, 'answer')} and {counted(vectors, 'vector')}"
                yield f"{cache} and {other} differ in {differing} (--first keeps one of each)"


def _differing(both: sqlite3.Connection) -> tuple[int, int]:
    """The numbers of answers and of vectors in which two caches of one connection differ."""
    texts = "SELECT a.completion, b.completion FROM main.answers a JOIN other.answers b USING (key)"
    arrays = "SELECT a.vector, b.vector FROM main.vectors a JOIN other.vectors b USING (key) WHERE a.vector != b.vector"
    # Seconds and attempts may differ, and a damaged row is no contradiction.
    rows = (tuple(map(completion_of, pair)) for pair in both.execute(texts))
    answers = sum(None not in pair and _said(pair[0]) != _said(pair[1]) for pair in rows)
    return answers, sum(_other_direction(*pair) for pair in both.execute(arrays))


def _batches_under_way(folders: Sequence[Path]) -> Iterator[str]:
    """Results folders with open batches at a provider: the command that fetches the replies needs them in that folder."""
    for cache in (cache for folder in folders if (cache := folder / "cache.sqlite").is_file()):
        batches = 0
        try:
            with closing(connected(cache)) as connection:
                check_schema(connection)
                if connection.execute("PRAGMA table_info(batches)").fetchall():
                    ((batches,),) = connection.execute("SELECT count(*) FROM batches WHERE state != 'ended'")
        except DAMAGE as error:
            raise RunError(f"{cache} is no readable cache ({error}); see python -m scripts cache check") from error
        if batches:
            yield (
                f"{cache}: batches under way: {batches}; run that folder's command again to fetch them, or see "
                "python -m scripts batch status"
            )


def _attached(cache: Path, other: Path) -> sqlite3.Connection:
    """Open a connection to a cache, with another cache attached as the schema `other`."""
    connection = connected(cache)
    try:
        connection.execute("ATTACH ? AS other", (opened_as(other),))
        for schema in ("main", "other"):
            check_schema(connection, schema)
            connection.execute(
                f"SELECT 1 FROM {schema}.answers, {schema}.outcomes, {schema}.vectors LIMIT 1"
            ).fetchone()
    except DAMAGE as error:
        connection.close()
        raise RunError(
            f"{cache} or {other} is no readable cache ({error}); see python -m scripts cache check"
        ) from error
    return connection


def _said(completion: object) -> tuple[object, ...]:
    return tuple(getattr(completion, name) for name in ("text", "reasoning", "logprobs", "stopped"))


def _other_direction(one: bytes, other: bytes) -> bool:
    first, second = vector_of(one), vector_of(other)
    if first is None or second is None:
        return False
    return len(first) != len(second) or float(np.dot(first, second)) < SAME_DIRECTION


def _merge_cache(source: Path, into: Path, left_out: Counter[tuple[str, str]], *, first: bool) -> int:
    """Add the rows whose keys `into` lacks, in one transaction; returns their number.

    Args:
        first: the rows that both have may differ.
    """
    if not source.is_file():
        return 0
    Journal(into).close()  # creates the file if there is none
    with closing(_attached(into, source)) as both:
        before = both.total_changes
        for kind, count in zip(("answer", "vector"), _differing(both) if first else (), strict=False):
            left_out[kind, "in conflict with a folder before"] += count
        both.execute("BEGIN IMMEDIATE")
        for table in ("answers", "outcomes", "vectors"):
            both.execute(
                f"INSERT OR IGNORE INTO main.{table} SELECT * FROM other.{table} WHERE length(key) = ?", (KEY_BYTES,)
            )
            query = f"SELECT count(*) FROM other.{table} WHERE length(key) != ?"
            ((count,),) = both.execute(query, (KEY_BYTES,))
            left_out["row", f"of {table} whose key has not {KEY_BYTES} bytes"] += count
        for table, condition in (("batch_replies", "1"), ("batch_calls", "batch IS NULL"), ("batches", "1")):
            columns = ", ".join(row[1] for row in both.execute(f"PRAGMA other.table_info({table})"))
            if columns:  # a folder that never used batches has no such table
                both.execute(
                    f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM other.{table} "
                    f"WHERE {condition} AND NOT ({UNSOUND[table]})"
                )
        both.execute("COMMIT")
        return both.total_changes - before


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("merge", __doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="results folders; the last is merged into"
    )
    parser.add_argument(
        "--first", action="store_true", help="of two cached answers to one request keep the first folder's"
    )
    chosen = parser.parse_args(arguments)
    if len(chosen.folders) < 2:
        parser.error("name at least one folder to merge, and the folder to merge into")
    *sources, into = chosen.folders
    left_out = Counter[tuple[str, str]]()
    cases, rows = merge(sources, into, first=chosen.first, left_out=left_out)
    lacking = ", ".join(f"{counted(count, noun)} {why}" for (noun, why), count in sorted(left_out.items()) if count)
    print(
        f"{into}: {counted(cases, 'case')} and {counted(rows, 'row')} of the caches added"
        + (f"; left out: {lacking}" if lacking else "")
    )
    return 0

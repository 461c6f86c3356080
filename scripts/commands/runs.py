"""The run folders on this disk: `python -m scripts.runs list`, `… rm RUN…` and `… gc`; all take `--results FOLDER`.

`list` shows memory, data set, when a run was last started, its state, and what it takes of the disk. A file that several runs share
counts once. `rm` removes the runs that are named. `gc` removes, and says why for each:

- an unfinished run that other code or other prompts began: no command can finish it, because today's makes another folder;
- a finished run that another one has superseded: the same memory and settings on the same data, made by today's code and prompts,
  and finished too. Without such a successor a finished run stays, whatever made it;
- a folder without a `run.json`: a start that ended before anything was written;
- a draft of a file (`*.draft`) whose process is gone.

Both list what they would remove and ask; `--yes` answers. Nothing that another process is writing is touched. The cache stays: what
was bought is bought once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from eval.provenance import has_source
from eval.received import is_linked, run_record
from eval.store import RunError, locked, read_lines
from memsys.prompts import PromptError, Prompts
from scripts.experiment.exits import guarded
from scripts.settings.arguments import add_traceback, as_called

STATES = ("finished", "unfinished", "in use", "damaged")
NEVER_THE_SAME = ("source", "prompts", "distributions", "made_with")
"""Parts of a record that code and prompts decide, not settings."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run as it lies on the disk."""

    path: Path
    record: Mapping[str, Any]
    """Of `run.json`; empty when there is none that can be read."""
    state: str
    """One of `STATES`."""
    detail: str
    """Cases finished, and questions that failed."""
    started: datetime
    """When it was last started."""


def folders(results: Path) -> list[RunFolder]:
    """All runs below a results folder, by data set and memory."""
    return [_run(path) for path in sorted((results / "runs").glob("*/*")) if path.is_dir()]


def _run(path: Path) -> RunFolder:
    file = path / "run.json"
    started = datetime.fromtimestamp((file if file.is_file() else path).stat().st_mtime)
    record: dict[str, Any] = {}
    try:
        if is_linked(path):
            raise RunError("a link: the run may lie outside the results; remove the link itself")
        record = run_record(path) if file.is_file() else {}
        state, detail = _state(path, record)
    except RunError as error:
        state, detail = "damaged", str(error)
    return RunFolder(path, record, "in use" if held(path) else state, detail, started)


def _state(path: Path, record: Mapping[str, Any]) -> tuple[str, str]:
    done = sorted(path.glob("cases/*/case.json"))
    lines = [line for one in done for line in read_lines(one.with_name("predictions.jsonl"), again=False)]
    failed = sum(line.get("outcome") == "error" for line in lines)
    total = record.get("cases")
    if "imported" in record:
        return "finished" if len(done) == total else "unfinished", f"{len(lines)} imported answers"
    detail = f"{len(done)}{'' if total is None else f' of {total}'} cases" + (f", {failed} errors" if failed else "")
    return "finished" if len(done) == total and not failed else "unfinished", detail


def held(path: Path) -> bool:
    """Whether another process is writing the run."""
    lock = path / ".lock"
    if lock.is_symlink() or not lock.is_file():
        return False
    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def sizes(runs: Sequence[RunFolder]) -> list[int]:
    """Bytes that each run takes of the disk; a file of several names counts for the first that has it."""
    seen: set[tuple[int, int]] = set()
    found = []
    for run in runs:
        total = 0
        for path in run.path.rglob("*"):
            known = path.lstat()
            if (known.st_dev, known.st_ino) not in seen:
                seen.add((known.st_dev, known.st_ino))
                total += known.st_blocks * 512
        found.append(total)
    return found


def listed(runs: Sequence[RunFolder]) -> list[str]:
    """The table of `list`."""
    rows = [("memory", "data set", "started", "state", "size", "folder")]
    taken = sizes(runs)
    for run, size in zip(runs, taken, strict=True):
        name = str(run.record.get("name") or run.path.name.rpartition("-")[0] or run.path.name)
        when, state = f"{run.started:%Y-%m-%d %H:%M}", f"{run.state} ({run.detail})" if run.detail else run.state
        rows.append((name, run.path.parent.name, when, state, shown(size), str(run.path)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, f"{len(runs)} runs, {shown(sum(taken))}"]


def shown(size: int) -> str:
    """Bytes for people."""
    amount, units = float(size), ("B", "KB", "MB", "GB", "TB")
    for unit in units[:-1]:
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} {units[-1]}"


def named(results: Path, names: Sequence[str]) -> list[RunFolder]:
    """The runs of these folders, or of these names of folders.

    Raises:
        RunError: one is no run below `results`, or another process is writing it.
    """
    known = folders(results)
    chosen = []
    for name in names:
        fits = [run for run in known if run.path.name == name or run.path.resolve() == Path(name).resolve()]
        if not fits:
            raise RunError(f"{name} is no run below {results / 'runs'}; python -m scripts.runs list shows them")
        chosen += fits
    if busy := [str(run.path) for run in chosen if run.state == "in use"]:
        raise RunError(f"another process is writing {', '.join(busy)}; wait for it, or stop it")
    if away := [str(run.path) for run in chosen if is_linked(run.path)]:
        raise RunError(f"{away[0]} is a link, and what it leads to stays: remove the link itself")
    return list({run.path: run for run in chosen}.values())


def garbage(runs: Sequence[RunFolder]) -> Iterator[tuple[RunFolder, str]]:
    """Runs that nothing needs, each with the reason."""
    todays = {run.path for run in runs if _is_todays(run.record)}
    for run in runs:
        if run.state == "in use" or run.path in todays:
            continue
        if not (run.path / "run.json").is_file():
            yield run, "it never began: no run.json"
        elif run.state == "unfinished":
            yield run, "unfinished, and its code or prompts have changed since: no command can finish it"
        elif run.state == "finished":
            twins = [one for one in runs if one.path in todays and one.state == "finished" and _twins(run, one)]
            if twins:
                yield run, f"superseded by {twins[0].path.name}"


def _is_todays(record: Mapping[str, Any]) -> bool:
    """Whether today's code, packages and prompts would make this run in this folder; also where that cannot be known."""
    from scripts.experiment.source_code import modules_of, sources, used_distributions

    if "imported" in record:
        return True  # no code of ours made the answers
    try:
        build, loader = record["memory"]["build"], record["dataset"]["load"]["_target_"]
        if not all(map(has_source, modules_of(build, loader))):
            return True  # a memory kept elsewhere, that this process does not see
        same_code = sources(build, loader) == record["source"]
        same_packages = used_distributions(build, loader) == record.get("distributions")
        same_prompts = Prompts(record.get("prompts_dir")).digest(record["prompts"]) == record["prompts"]
        return same_code and same_packages and same_prompts
    except (KeyError, TypeError, PromptError):
        return False


def _twins(run: RunFolder, other: RunFolder) -> bool:
    return _settings(run.record) == _settings(other.record)


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a user chose, without what the code of the day added."""
    return {name: value for name, value in record.items() if name not in (*NEVER_THE_SAME, "cases")}


def drafts(results: Path) -> list[Path]:
    """Drafts of files whose process is gone."""
    return [path for path in sorted((results / "runs").rglob("*.draft")) if not _alive(path.suffixes[-2:-1])]


def _alive(suffixes: Sequence[str]) -> bool:
    number = suffixes[0].lstrip(".") if suffixes else ""
    if not number.isdecimal():
        return True  # not one of ours
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def agreed(count: int, yes: bool) -> bool:
    """Whether to go on; without a terminal to ask on, the answer is no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RunError("not asked, because there is no terminal; repeat with --yes")
    return input(f"Remove {count}? [y/N] ").strip().lower() in ("y", "yes")


def _list(args: argparse.Namespace) -> int:
    print("\n".join(listed(folders(args.results))))
    return 0


def _rm(args: argparse.Namespace) -> int:
    chosen = named(args.results, args.runs)
    print("\n".join(listed(chosen)))
    if not agreed(len(chosen), args.yes):
        return 1
    for run in chosen:
        _remove(run)
    return 0


def _remove(run: RunFolder) -> None:
    with locked(run.path):  # whoever starts the run now waits, and begins it anew
        shutil.rmtree(run.path)


def _gc(args: argparse.Namespace) -> int:
    found, stale = list(garbage(folders(args.results))), drafts(args.results)
    for run, why in found:
        print(f"{run.path}: {why}")
    for path in stale:
        print(f"{path}: its process is gone")
    print(f"{len(found)} runs and {len(stale)} drafts, {shown(sum(sizes([run for run, _ in found])))}")
    if not (found or stale):
        return 0
    if not agreed(len(found) + len(stale), args.yes):
        return 1
    for run, _ in found:
        _remove(run)
    for path in stale:
        path.unlink(missing_ok=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command says; 2 with one line on standard error for what the user can mend, 1 when nobody agreed."""
    parser = argparse.ArgumentParser(
        prog=as_called("python -m scripts.runs"),
        description=as_called(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, work, about in (
        ("list", _list, "show all runs"),
        ("rm", _rm, "remove runs"),
        ("gc", _gc, "remove what nothing needs"),
    ):
        one = commands.add_parser(name, help=about)
        one.add_argument("--results", type=Path, default=Path("results"), help="the results folder (default: results)")
        if name == "rm":
            one.add_argument("runs", nargs="+", metavar="RUN", help="a folder below results/runs, or its name")
        if name != "list":
            one.add_argument("--yes", action="store_true", help="do not ask")
        add_traceback(one)
        one.set_defaults(work=work)
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser.parse_args(given or ["list"])
    return guarded(lambda: int(args.work(args)), traceback=args.traceback)

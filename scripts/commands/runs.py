"""List, compare and remove the run folders on this disk: `python -m scripts runs list`, `… compare RUN RUN`, `… rm RUN…` and `… gc`; all
take `--results FOLDER`.

`list` shows memory, data set, the last start of a run, its state, and its size on disk. A file that several runs share
counts once. `compare` shows why two runs have different identities: each setting and each digest of code, prompts and data that differs.
`rm` removes the named runs. `gc` removes the following, each with the reason:

- an unfinished run of other code or other prompts: no command can finish it, because today's code makes another folder;
- a finished run that another run has superseded: the same memory and settings on the same data, made by today's code and prompts,
  and finished too. Without such a successor a finished run stays, whatever code made it;
- a folder without a `run.json`: a start that ended before it wrote anything;
- a draft of a file (`*.draft`) whose process is gone.

Both list the runs that they would remove and ask; `--yes` agrees. A run that another process is writing is never touched. The cache stays,
so no call has to be paid for again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.files.provenance import distributions, has_source
from eval.files.run_folder import RunFolder, RunRecord
from eval.files.store import RunError, locked
from eval.report.counted import counted
from memsys.jsons import canonical
from memsys.prompts import PromptError, Prompts
from scripts.assembly.run_folders import ListedRun, folders, listed, shown, sizes
from scripts.setup.arguments import as_called, verb_parser
from scripts.setup.printing import agrees

GROUP = "look"

ABSENT = object()
NEVER_THE_SAME = ("source", "prompts", "distributions", "made_with")
"""Parts of a record that depend on code and prompts, not on settings."""


def named(results: Path, names: Sequence[str]) -> list[ListedRun]:
    """The runs with these folders or names of folders.

    Raises:
        RunError: a name is no run below `results`, or another process is writing it.
    """
    chosen = _found(results, names)
    if busy := [str(run.path) for run in chosen if run.state == "in use"]:
        raise RunError(f"another process is writing {', '.join(busy)}; wait for it, or stop it")
    if away := [str(run.path) for run in chosen if RunFolder(run.path).is_linked]:
        raise RunError(f"{away[0]} is a link, and what it leads to stays: remove the link itself")
    return list({run.path: run for run in chosen}.values())


def _found(results: Path, names: Sequence[str]) -> list[ListedRun]:
    known, chosen = folders(results), []
    for name in names:
        fits = [run for run in known if run.path.name == name or run.path.resolve() == Path(name).resolve()]
        if not fits:
            raise RunError(f"{name} is no run below {results / 'runs'}; python -m scripts runs list shows them")
        chosen += fits
    return chosen


def differences(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places in which two records differ, with both values; `ABSENT` if a record has no such place."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({*one, *other}):
            values = one.get(name, ABSENT), other.get(name, ABSENT)
            yield from differences(*values, f"{place}.{name}" if place else str(name))
    elif one != other:
        yield place, one, other


def garbage(runs: Sequence[ListedRun]) -> Iterator[tuple[ListedRun, str]]:
    """Runs that are not needed, each with the reason."""
    todays = {run.path for run in runs if _is_todays(run.record)}
    for run in runs:
        if run.state == "in use" or run.path in todays:
            continue
        if not RunFolder(run.path).file.is_file():
            yield run, "it never began: no run.json"
        elif run.state == "unfinished":
            yield run, "unfinished, and its code or prompts have changed since: no command can finish it"
        elif run.state == "finished":
            done = [one for one in runs if one.path in todays and one.state == "finished"]
            twins = [one for one in done if _settings(one.record) == _settings(run.record)]
            if twins:
                yield run, f"superseded by {twins[0].path.name}"


def _is_todays(record: RunRecord) -> bool:
    """Whether today's code, packages and prompts would make this run in this folder; also true where this is unknown."""
    from scripts.assembly.runs import modules_of, sources

    if record.imported:
        return True  # imported answers: no code of ours made them
    try:
        modules = modules_of(record.memory["build"], record.dataset["load"]["_target_"])
        if not all(map(has_source, modules)):
            return True  # a memory outside this process, whose code is not visible here
        same_code = sources(modules) == record.source
        same_packages = distributions(modules) == record.distributions
        same_prompts = Prompts(record.prompts_dir).digest(record.prompts) == record.prompts
        return same_code and same_packages and same_prompts
    except (KeyError, TypeError, PromptError):
        return False


def _settings(record: RunRecord) -> dict[str, Any]:
    """The user's choices, without additions of the current code."""
    return {name: value for name, value in record.content.items() if name not in (*NEVER_THE_SAME, "cases")}


def _alive(suffixes: Sequence[str]) -> bool:
    number = suffixes[0].lstrip(".") if suffixes else ""
    if not number.isdecimal():
        return True  # no draft of ours
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # a process of another user, or an impossible process id: no draft of ours
        pass
    return True


def agreed(count: int, yes: bool) -> bool:
    """Ask whether to continue; without a terminal the answer is no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RunError("not asked, because there is no terminal; repeat with --yes")
    return agrees(f"Remove {count}?")


def _list(args: argparse.Namespace) -> int:
    print("\n".join(listed(folders(args.results))))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from scripts.assembly.runs import NOT_IDENTIFYING

    given = [(RunFolder(Path(name)), name) for name in args.runs]  # a path may lead to another results folder
    runs = [run for own, name in given for run in _found(own.results if own.file.is_file() else args.results, [name])]
    if len(runs) != 2:
        raise RunError(f"two runs are compared, and these names are of {len(runs)}; name their folders")
    if broken := [f"{run.path} is {run.state} ({run.detail})" for run in runs if not run.record.content]:
        raise RunError(f"{'; '.join(broken)}: there is nothing to compare")
    print(f"{runs[0].path}\n{runs[1].path}")
    for place, *values in differences(runs[0].record.content, runs[1].record.content):
        why = " (not part of the identity)" if place.partition(".")[0] in NOT_IDENTIFYING else ""
        values_said = ("–" if value is ABSENT else canonical(value).decode() for value in values)
        print(f"{place}: {' | '.join(values_said)}{why}")
    return 0


def _rm(args: argparse.Namespace) -> int:
    chosen = named(args.results, args.runs)
    print("\n".join(listed(chosen)))
    if not agreed(len(chosen), args.yes):
        return 1
    for run in chosen:
        _remove(run)
    return 0


def _remove(run: ListedRun) -> None:
    with locked(run.path):  # a command that starts the run now waits, and then begins it again
        shutil.rmtree(run.path)


def _gc(args: argparse.Namespace) -> int:
    found = list(garbage(folders(args.results)))
    drafts = sorted((args.results / "runs").rglob("*.draft"))
    stale = [path for path in drafts if not _alive(path.suffixes[-2:-1])]
    for run, why in found:
        print(f"{run.path}: {why}")
    for path in stale:
        print(f"{path}: its process is gone")
    print(
        f"{counted(len(found), 'run')} and {counted(len(stale), 'draft')}, {shown(sum(sizes([run for run, _ in found])))}"
    )
    if not (found or stale):
        return 0
    if not agreed(len(found) + len(stale), args.yes):
        return 1
    still = {run.path for run, _ in garbage(folders(args.results))}  # one may have begun during the question
    for run, _ in found:
        if run.path in still:
            _remove(run)
    for path in stale:
        path.unlink(missing_ok=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 if the plan was declined."""
    parser = verb_parser("runs", as_called(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    for name, work, about in (
        ("list", _list, "show all runs"),
        ("compare", _compare, "show in what two runs differ"),
        ("rm", _rm, "remove runs"),
        ("gc", _gc, "remove what nothing needs"),
    ):
        one = commands.add_parser(name, help=about)
        one.add_argument("--results", type=Path, default=Path("results"), help="the results folder (default: results)")
        if name in ("compare", "rm"):
            count = 2 if name == "compare" else "+"
            one.add_argument("runs", nargs=count, metavar="RUN", help="a folder below results/runs, or its name")
        if name in ("rm", "gc"):
            one.add_argument("--yes", action="store_true", help="do not ask")
        one.set_defaults(work=work)
    args = parser.parse_args(arguments or ["list"])
    return int(args.work(args))

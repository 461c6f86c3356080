"""The `memsys-bench` command: every entry point of `scripts` as a verb, from any folder.

Installed, this package is `memsys_bench` and holds `conf`, `data_loaders`, `memsys`, `eval`, `scripts` and the published numbers inside
itself, so nothing called `eval` or `scripts` stands at the top of site-packages. In a checkout it runs the same modules from the checkout.
Results are written to the working folder; a `conf/` folder there is searched before the shipped one. `from memsys_bench import Lab` is the
API for notebooks (`scripts.door`).
"""

from __future__ import annotations

import ast
import atexit
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

GROUPS = {
    "run": "Run memories",
    "look": "Look at runs",
    "science": "Test the numbers",
    "publish": "Publish and audit",
    "data": "Data, models, caches",
    "develop": "Develop",
}
"""Headings of the verbs' groups (`GROUP` of a verb's module), in the order of `help`."""
SHORT: Mapping[str, tuple[str, ...]] = {"reproduce-table4": ("reproduce", "table=segtreemem_t4")}
"""Commands that are a verb with settings, as the target of `make` of that name."""


_HERE = Path(__file__).resolve().parent
HOME = _HERE if (_HERE / "memsys").is_dir() else _HERE.parents[1]
"""The folder that holds `memsys`, `eval`, `scripts` and `conf`: the installed package, or the checkout."""


def __getattr__(name: str) -> Any:
    """The names of `scripts.door`: `from memsys_bench import Lab, compare`."""
    if name.startswith("_"):
        raise AttributeError(name)
    import_from_home()
    from scripts import door

    return getattr(door, name)


def verbs(name: str, value: object = None) -> list[str]:
    """The verbs whose module sets a constant of this name, to this value if one is given; nothing is imported.

    A verb is a file of `scripts/commands`: its docstring is its manual, `GROUP` is its place in `help`, and `main` does the work. A verb
    with `CONFIG` takes `key=value` settings of that primary file of `conf`. A verb with `WORDS` takes the first of its settings, or else of
    its options, as plain words in that order: `run bm25 locomo` is `run memory=bm25 dataset=locomo`, `judge-card mem0` is `judge-card
    --judge=mem0`. A verb with `RUNS_MEMORIES` runs memories, with the user's prompts if the working folder has them; a verb with `CHECKOUT`
    needs the tests, documents or reference results of a checkout.
    """
    every = [path.stem.replace("_", "-") for path in sorted((HOME / "scripts/commands").glob("[!_]*.py"))]
    return [verb for verb in every if name in (names := _constants(verb)) and value in (None, names[name])]


def usage() -> str:
    """Output of the command without a verb."""
    hidden = set() if (HOME / "tests/rigs").is_dir() else set(verbs("CHECKOUT"))
    lines = ["usage: memsys-bench VERB [settings …]"]
    for group, title in GROUPS.items():
        lines += [
            "",
            f"{title}:",
            *(_described(verb) for verb in verbs("GROUP", group) if verb not in hidden),
        ]
    return "\n".join(lines)


def _described(verb: str) -> str:
    """The verb's lines in `help`, of at most 80 columns: the first line of its docstring, without its example."""
    from textwrap import wrap

    summary = _constants(verb)["__doc__"].partition("\n")[0].partition(": `")[0].partition(" `")[0].rstrip(".:")
    first, *more = wrap(summary, 80 - 17, break_on_hyphens=False)
    return "\n".join([f"  {verb:<15}{first}", *(f"{'':<17}{line}" for line in more)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code. A standard stream that was closed before the start, as by a daemon, is the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open as long as the process
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while modules were imported, before `guarded` handles signals: nothing was begun
        print("stopped before anything was begun", file=sys.stderr)
        return 130


def _dispatch(given: list[str]) -> int:
    # A last garbage collection took a second at the exit of a large run; the system frees the memory at once anyway.
    atexit.register(gc.freeze)
    import_from_home()
    if given[:1] == ["help"] and given[1:]:
        given = [given[1], "--help"]
    if not given or given[0] in ("-h", "--help", "help"):
        from scripts.setup.exits import guarded

        return guarded(lambda: print(usage())) or (0 if given else 2)
    name, *rest = [*SHORT.get(given[0], (given[0],)), *given[1:]]
    constants = _constants(name)
    if "GROUP" not in constants:
        near = get_close_matches(name, verbs("GROUP"), 1)
        hint = f"did you mean {near[0]}?" if near else "`memsys-bench help` lists them"
        print(f"error: no verb called {name!r}; {hint}", file=sys.stderr)
        return 2
    if "CHECKOUT" in constants and not (HOME / "tests/rigs").is_dir():
        print(f"error: {name} needs a checkout of the repository, with its tests and documents", file=sys.stderr)
        return 2
    from scripts.setup.arguments import COMMAND, called

    if __name__ == "memsys_bench":
        called.add(COMMAND)
    sys.argv = [f"memsys-bench {name}", *_completed(constants, rest)]
    return verb(name, sys.argv[1:])


def verb(name: str, arguments: Sequence[str]) -> int:
    """Run a verb with these arguments; return its exit code, 2 with one line on standard error for an error that the user can fix.

    A verb with settings reads `sys.argv`, as Hydra does.

    Raises:
        SystemExit: argparse refuses the arguments, or has shown its help.
    """
    from scripts.setup.exits import guarded

    module = import_module(f"scripts.commands.{name.replace('-', '_')}")
    if hasattr(module, "CONFIG"):
        from scripts.setup.arguments import as_called
        from scripts.setup.launch import launch

        # Hydra's help lists the settings alone.
        manual = as_called(module.__doc__ or "") + "\n" if {"-h", "--help"} & {*arguments} else ""
        keep = getattr(module, "KEEP_RECORD", False)
        return guarded(lambda: print(manual, end="")) or launch(module.main, module.CONFIG, keep_record=keep)
    plain = [argument for argument in arguments if argument != "--traceback"]
    return guarded(lambda: module.main(plain), traceback=len(plain) < len(arguments))


@cache
def _constants(verb: str) -> Mapping[str, Any]:
    """Upper-case names that a verb's module sets to a plain value, and its `__doc__`, read as text; empty without such a file."""
    path = HOME / "scripts" / "commands" / f"{verb.replace('-', '_')}.py"
    if not path.is_file():
        return {}
    module = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"__doc__": ast.get_docstring(module) or ""}
    for node in module.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.targets[0], ast.Name)
        ):
            found[node.targets[0].id] = node.value.value
    return found


def import_from_home() -> None:
    # Our folder is first: another distribution may have a module called `eval` or `scripts`. The working folder holds the user's memories.
    if str(HOME) not in sys.path[:1]:
        sys.path[:0] = [str(HOME)]
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _completed(constants: Mapping[str, Any], rest: list[str]) -> list[str]:
    """The settings or options, with the plain words at their beginning under the names that `WORDS` gives them; settings with the working
    folder's `conf` and `prompts` if they exist and none are named."""
    settings = constants.keys() & {"CONFIG", "RUNS_MEMORIES"}
    names = [name if settings else f"--{name}" for name in constants.get("WORDS", "").split()]
    plain = list(takewhile(lambda word: word[:1].isalnum() and "=" not in word, rest[: len(names)]))
    rest = [*(f"{name}={word}" for name, word in zip(names, plain, strict=False)), *rest[len(plain) :]]
    conf, prompts = Path.cwd() / "conf", Path.cwd() / "prompts"
    if not settings or Path.cwd() == HOME:
        return rest
    named = [setting.partition("=")[0] for setting in rest]
    if "CONFIG" in constants and conf.is_dir() and "--config-dir" not in named:
        rest = ["--config-dir", str(conf), *rest]
    if prompts.is_dir() and "prompts_dir" not in named:
        rest = [*rest, f"prompts_dir={prompts}"]
    return rest

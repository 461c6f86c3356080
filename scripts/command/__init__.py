"""The `memsys-bench` command: every entry point of `scripts` as a verb, from any folder.

Installed, this package is `memsys_bench` and holds `conf`, `data_loaders`, `memsys`, `eval`, `scripts` and the published numbers inside
itself, so nothing called `eval` or `scripts` stands at the top of site-packages. In a checkout it runs the same modules from the checkout.
Results land in the working folder; a `conf/` folder there is searched before the shipped one. `from memsys_bench import Lab` is the door
for notebooks (`scripts.door`).
"""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HYDRA = ("run", "reproduce", "reproduce-all", "figures", "budgets", "sweep", "growth", "calibrate", "conformance")
"""Verbs that take `key=value` settings."""
PLAIN = (
    *(
        "compare",
        "list",
        "watch",
        "report",
        "losses",
        "ceilings",
        "variance",
        "judge-card",
        "order-test",
        "leaks",
        "completion",
    ),
    *("tables", "inspect", "structure", "runs", "merge", "cache", "doctor", "audit", "fidelity", "gateway", "product"),
    *("import-answers", "claims", "claims-site", "check-answers", "export", "paper-table", "card"),
    *("fetch", "local-model", "data", "batch", "new-memory", "make-msc-e", "mock-endpoint", "mock-memory"),
)
"""Verbs that take `--flags`."""
RUNNING = (*HYDRA, "compare", "order-test", "leaks")
"""Verbs that run memories, with prompts of one's own where the working folder has them."""
CHECKOUT_ONLY = ("architecture", "bench", "coverage", "regress", "report-speed", "torture")
"""Entry points of a checkout that are no verbs: they need its tests, its documents or its reference results."""


def home() -> Path:
    """The folder that holds `memsys`, `eval`, `scripts` and `conf`: the installed package, or the checkout."""
    here = Path(__file__).resolve().parent
    return here if (here / "memsys").is_dir() else here.parents[1]


def __getattr__(name: str) -> Any:
    """The names of `scripts.door`: `from memsys_bench import Lab, compare`."""
    if name.startswith("_"):
        raise AttributeError(name)
    _import_from(home())
    from scripts import door

    return getattr(door, name)


def usage() -> str:
    """What the command prints when it is called without a verb."""
    return "usage: memsys-bench VERB [settings …]\n\n" + "\n".join(
        f"  {verb:<15}{_summary(verb)}" for verb in (*HYDRA, *PLAIN)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _import_from(home())
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if given else 2
    verb, *rest = given
    if verb not in (*HYDRA, *PLAIN):
        print(f"error: no verb called {verb!r}; `memsys-bench help` lists them", file=sys.stderr)
        return 2
    from scripts.settings.arguments import COMMAND, called

    called.add(COMMAND)
    sys.argv = [f"memsys-bench {verb}", *_with_own_files(verb, rest)]
    try:
        runpy.run_module(_module(verb), run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _import_from(folder: Path) -> None:
    # Ours first: another distribution may well have a module called `eval` or `scripts`. The working folder holds the user's own memories.
    if str(folder) not in sys.path[:1]:
        sys.path[:0] = [str(folder)]
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _with_own_files(verb: str, rest: list[str]) -> list[str]:
    """The settings, with the working folder's `conf` and `prompts` where it has them and none are named."""
    conf, prompts = Path.cwd() / "conf", Path.cwd() / "prompts"
    if verb not in RUNNING or Path.cwd() == home():
        return rest
    named = [setting.partition("=")[0] for setting in rest]
    if verb in HYDRA and conf.is_dir() and "--config-dir" not in named:
        rest = ["--config-dir", str(conf), *rest]
    if prompts.is_dir() and "prompts_dir" not in named:
        rest = [*rest, f"prompts_dir={prompts}"]
    return rest


def _module(verb: str) -> str:
    return f"scripts.{verb.replace('-', '_')}"


def _summary(verb: str) -> str:
    """The first line of the entry point's docstring; read as text, so that help imports nothing."""
    source = (home() / "scripts" / f"{verb.replace('-', '_')}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].partition(" `")[0].rstrip(":")

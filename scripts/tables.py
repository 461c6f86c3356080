"""Tables about the systems themselves: `python -m scripts.tables calls` and `… systems`.

`calls` measures calls per insertion and per query on the LoCoMo sample with the offline engines; where a paper prints a figure, it
stands beside. `systems` writes one row for each memory into `memsys/README.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.costs import costs
from eval.provenance import ROOT
from eval.published import find, read_published
from eval.run import Run, run_all
from eval.store import read_lines

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Where a paper prints calls: file of results/published, and what selects the line.
PRINTED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "memtree": ("memtree_a2", {"method": "MemTree", "metric": "llm_calls"}),
    "memstream": ("memtree_a2", {"method": "MemoryStream", "metric": "llm_calls"}),
    "raptor": ("memtree_a2", {"method": "RAPTOR", "metric": "llm_calls"}),
    "graphrag": ("memtree_a2", {"method": "GraphRAG", "metric": "llm_calls"}),
    "memtree_segt": ("segtreemem_t5", {"dataset": "LoCoMo", "method": "MemTree", "metric": "calls_per_leaf"}),
    "segtree_batch": ("segtreemem_t5", {"dataset": "LoCoMo", "variant": "Batch", "metric": "calls_per_leaf"}),
    "segtree_cosine": ("segtreemem_t5", {"dataset": "LoCoMo", "variant": "Cosine", "metric": "calls_per_leaf"}),
    "segtree_pointwise": ("segtreemem_t5", {"dataset": "LoCoMo", "variant": "Pointwise", "metric": "calls_per_leaf"}),
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Logical model calls of one memory on one history."""

    name: str
    title: str
    per_insertion: float
    """Of writing and consolidating, divided by units: amortised for offline systems."""
    rebuild: int
    """Of the consolidation: for an offline system the whole rebuild that one more unit costs."""
    per_query: float
    offline: bool
    printed: str


def measure(names: Sequence[str], folder: Path) -> list[Calls]:
    """Build and read each memory once, on one history of the LoCoMo sample, offline."""
    from hydra import compose, initialize_config_dir

    from scripts.assemble import bench, data, load_option, memory_run, reader

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg: DictConfig = compose("config", [f"results={folder}", "data.max_cases=1"])
    built = bench(cfg)
    dataset = data(cfg, load_option("dataset", "locomo"))
    reading = reader("segtree")
    runs = [memory_run(cfg, built, dataset, load_option("memory", name), reading) for name in names]
    run_all(runs, threads=1)
    return [_calls(run, load_option("memory", run.name)) for run in runs]


def _calls(run: Run, memory: Mapping[str, Any]) -> Calls:
    found = costs(run.folder)
    lines = [line for path in run.folder.glob("cases/*/effort.jsonl") for line in read_lines(path)]
    rebuild = sum(sum(line["calls"].values()) for line in lines if line["phase"] == "consolidate")
    offline = _class(memory["build"]["_target_"]).OFFLINE
    return Calls(
        run.name,
        memory["title"],
        found.calls_per_insertion or 0.0,
        rebuild,
        found.calls_per_query or 0.0,
        offline,
        printed(run.name),
    )


def _class(target: str) -> Any:
    from hydra.utils import get_class

    return get_class(target)


def printed(name: str) -> str:
    """The figure that a paper prints for a memory, with its place; empty where there is none."""
    if name not in PRINTED:
        return ""
    file, wanted = PRINTED[name]
    number = find(read_published(file), wanted)
    return "" if number is None else f"{number.printed} ({number.paper} {number.table}, {number.dataset})"


def calls_table(rows: Sequence[Calls]) -> str:
    """The calls of all systems as Markdown."""
    lines = [
        "STAND-IN: measured on one history of the LoCoMo sample with the offline engines; "
        "replies of a model change how often some systems call.",
        "",
        "| memory | calls / insertion | whole consolidation | calls / query | published |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        rebuild = f"{row.rebuild} (offline: every rebuild)" if row.offline else str(row.rebuild)
        lines.append(
            f"| {row.name} | {row.per_insertion:.2f} | {rebuild} | {row.per_query:.2f} | {row.printed or '–'} |"
        )
    return "\n".join(lines)


def systems_table() -> str:
    """One row for each memory: what it is, where it lives, how long it is, how it is tested, and which modes it has."""
    from scripts.assemble import load_option, options

    lines = [
        "# Memory systems",
        "",
        "Written by `python -m scripts.tables systems`. The module's docstring cites the paper and names every deviation;",
        "`conf/memory/<name>.yaml` holds every setting.",
        "Calls per insertion and per query: `python -m scripts.tables calls`.",
        "",
        "| memory | title | module | lines | test functions | modes | built |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in options("memory"):
        option = load_option("memory", name)
        module = option["build"]["_target_"].rpartition(".")[0]
        source = _source(module)
        tests = ROOT / "tests" / "memsys" / f"test_{module.split('.')[-1]}.py"
        count = tests.read_text(encoding="utf-8").count("\ndef test_") if tests.is_file() else 0
        length = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in source)
        modes = "paper, code" if '"code"' in "".join(path.read_text(encoding="utf-8") for path in source) else "–"
        how = "offline" if _class(option["build"]["_target_"]).OFFLINE else "online"
        lines.append(f"| {name} | {option['title']} | `{module}` | {length} | {count} | {modes} | {how} |")
    return "\n".join(lines) + "\n"


def _source(module: str) -> list[Path]:
    stem = ROOT.joinpath(*module.split("."))
    return sorted(stem.glob("*.py")) if stem.is_dir() else [stem.with_suffix(".py")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["calls", "systems"])
    parser.add_argument("--memory", nargs="*", help="names; all by default")
    options_ = parser.parse_args(arguments)
    if options_.table == "systems":
        (ROOT / "memsys" / "README.md").write_text(systems_table(), encoding="utf-8")
        print("written: memsys/README.md")
        return 0
    from scripts.assemble import options

    with tempfile.TemporaryDirectory() as folder:
        print(calls_table(measure(options_.memory or options("memory"), Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

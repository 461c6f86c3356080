"""Print tables about the systems themselves: `python -m scripts tables calls`, `… systems`, `… pareto [TABLE] [key=value …]`, `… ratings
FILE`.

`calls` measures calls per insertion and per query on the LoCoMo sample with the offline engines, and prints a paper's figure next to ours
where there is one. `systems` writes one row for each shipped memory into `memsys/README.md`. `pareto` compares the quality of every run row
of a table (`segtreemem_t4` by default) with the tokens that it recalls for a question and the cost of writing a unit, marks the rows that
no other row beats in both, and draws them; it calls no model, and its settings are those of `memsys-bench reproduce`.
`ratings` compares the verdicts that a person exported from the HTML report with those of the judges.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.analysis.costs import costs, efforts
from eval.files.provenance import ROOT
from eval.report.published import find, read_published
from eval.report.rendering import grid
from eval.running.loop import run_all
from eval.running.run import Run
from scripts.setup.arguments import verb_parser
from scripts.setup.options import CONF, load_option, memories_here, memory_classes

GROUP = "look"

# Places where a paper prints calls: file of results/published, and the fields that select the line.
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
    per_insertion: float
    """Calls of writing and consolidating, divided by units: amortised for offline systems."""
    rebuild: int
    """Calls of the consolidation: for an offline system, the whole rebuild after one more unit."""
    per_query: float
    offline: bool
    printed: str


def measure(names: Sequence[str], folder: Path) -> list[Calls]:
    """Build and read each memory once, on one history of the LoCoMo sample, offline."""
    from scripts.lab.lab import Lab

    prompts = Path.cwd() / "prompts"  # of the user's memories, as `memsys-bench run` takes them
    own = [f"prompts_dir={prompts}"] if prompts.is_dir() else []
    lab = Lab(f"results={folder}", "data.max_cases=1", "protocol.reader=segtree", *own, probe=False)
    dataset = lab.load("locomo")
    runs = [lab.run(lab.memory(name), dataset) for name in names]
    run_all(runs, threads=1)
    return [_calls(run) for run in runs]


def _calls(run: Run) -> Calls:
    found = costs(run.folder)
    lines = list(efforts(run.folder))
    rebuild = sum(sum(line["calls"].values()) for line in lines if line["phase"] == "consolidate")
    offline = memory_classes(load_option("memory", run.name)["build"])[0].OFFLINE
    return Calls(
        run.name,
        found.calls_per_insertion or 0.0,
        rebuild,
        found.calls_per_query or 0.0,
        offline,
        printed(run.name),
    )


def printed(name: str) -> str:
    """The figure that a paper prints for a memory, with its place; empty if there is none."""
    if name not in PRINTED:
        return ""
    file, wanted = PRINTED[name]
    number = find(read_published(file), wanted)
    return "" if number is None else f"{number.printed} ({number.paper} {number.table}, {number.dataset})"


def calls_table(rows: Sequence[Calls]) -> str:
    """The calls of all systems as Markdown."""
    note = (
        "STAND-IN: measured on one history of the LoCoMo sample with the offline engines; "
        "replies of a model change how often some systems call."
    )
    lines = []
    for row in rows:
        rebuild = f"{row.rebuild} (offline: every rebuild)" if row.offline else str(row.rebuild)
        lines.append([row.name, f"{row.per_insertion:.2f}", rebuild, f"{row.per_query:.2f}", row.printed or "–"])
    header = ["memory", "calls / insertion", "whole consolidation", "calls / query", "published"]
    return f"{note}\n\n{grid(header, lines)}"


def systems_table() -> str:
    """One row for each shipped memory: description, module, length, tests and modes."""
    lines = [
        "# Memory systems",
        "",
        "Written by `python -m scripts tables systems`. The module's docstring cites the paper and names every deviation;",
        "`conf/memory/<name>.yaml` holds every setting.",
        "Calls per insertion and per query: `python -m scripts tables calls`.",
        "",
        "| memory | title | module | lines | test functions | modes | built |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(path.stem for path in (CONF / "memory").glob("*.yaml")):
        option = load_option("memory", name)
        module = option["build"]["_target_"].rpartition(".")[0]
        source = _source(module)
        room = "services" if ".services." in module else "systems"
        tests = ROOT / "tests" / "memsys" / room / f"test_{module.split('.')[-1]}.py"
        count = tests.read_text(encoding="utf-8").count("\ndef test_") if tests.is_file() else 0
        length = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in source)
        memory = memory_classes(option["build"])[0]
        modes, how = ", ".join(memory.MODES) or "–", "offline" if memory.OFFLINE else "online"
        lines.append(f"| {name} | {option['title']} | `{module}` | {length} | {count} | {modes} | {how} |")
    return "\n".join(lines) + "\n"


def _source(module: str) -> list[Path]:
    stem = ROOT.joinpath(*module.split("."))
    return sorted(stem.glob("*.py")) if stem.is_dir() else [stem.with_suffix(".py")]


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("tables", __doc__)
    parser.add_argument("table", choices=["calls", "systems", "pareto", "ratings"])
    parser.add_argument("--memory", nargs="*", help="calls: names; all by default")
    parser.add_argument("--results", type=Path, default=Path("results"), help="ratings: the results folder")
    parser.add_argument(
        "rest", nargs="*", metavar="TABLE key=value", help="pareto: a table, and settings; ratings: the file"
    )
    options_ = parser.parse_args(arguments)
    if options_.table == "pareto":
        named = [word for word in options_.rest if "=" not in word]
        settings = [word for word in options_.rest if "=" in word]
        from scripts.tables.pareto import pareto

        return pareto(named[0] if named else "segtreemem_t4", settings)
    if options_.table == "ratings":
        if len(options_.rest) != 1:
            parser.error("ratings takes one file, which the HTML report exports")
        from eval.report.ratings import as_markdown, compare

        print(as_markdown(compare(Path(options_.rest[0]), options_.results)))
        return 0
    if options_.rest:
        parser.error(f"{options_.table} takes no {options_.rest[0]}")
    if options_.table == "systems":
        file = ROOT / "memsys" / "README.md"
        file.write_text(systems_table(), encoding="utf-8")
        print(f"written: {file}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        print(calls_table(measure(options_.memory or memories_here(), Path(folder))))
    return 0

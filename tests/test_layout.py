"""The shape of the repository: which way imports point, what may not occur, and that files and names agree.

One test a rule, over all files: it lists who breaks it. `test_every_rule_sees_an_offence` shows each rule a module that does.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft202012Validator

from memsys.prompts import SHIPPED, Prompts

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data_loaders", "memsys", "eval", "scripts")
"""Each may import those before it."""
LINES, FUNCTION_LINES, ENTRY_LINES, PARAMETERS = 650, 60, 60, 8
"""Most lines of a module, of a function and of an entry point, and most parameters of a function."""
HEAVY = {
    "openai", "aiohttp", "wandb", "datasets", "matplotlib", "torch", "bpe_openai", "pandas", "sklearn", "umap",
    "sentence_transformers", "llmlingua", "networkx", "ray", "mcp",
}  # fmt: skip
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
EXECUTORS = {"eval", "exec", "compile", "__import__", "os.system", "yaml.load", "yaml.unsafe_load"}
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}
"""Names that do not say what a module holds."""


@dataclass(frozen=True)
class Module:
    """A module of the project by its path below the repository, `memsys/systems/bm25.py`."""

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imported_at_run_time(self) -> set[str]:
        """Dotted names, those of `from m import n` also as `m.n`."""
        running = list(at_run_time(self.tree))
        froms = [node for node in running if isinstance(node, ast.ImportFrom)]
        return imported(running) | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}

    @property
    def parts(self) -> tuple[str, ...]:
        return Path(self.path).with_suffix("").parts

    @property
    def dotted(self) -> str:
        return ".".join(self.parts).removesuffix(".__init__")

    @cached_property
    def tops(self) -> set[str]:
        """The packages imported."""
        return {module.split(".")[0] for module in imported(self.nodes)}

    @property
    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with the name that is called as it is written, `a.b.c`."""
        return ((ast.unparse(node.func), node) for node in self.nodes if isinstance(node, ast.Call))


def read_modules() -> list[Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


MODULES = read_modules()
BELOW_SCRIPTS = [module for module in MODULES if module.parts[0] != "scripts"]
MEMSYS = [module for module in MODULES if module.parts[0] == "memsys"]
METHODS = [
    module
    for module in MEMSYS
    if module.parts[1] not in {"llm", "embed", "processes", "confine", "products", "services"}
]
"""What memories are made of: no model, no embedder, no process of a released product, no client of a service."""
ENTRY_POINTS = [module for module in MODULES if module.parts[0] == "scripts" and len(module.parts) == 2]
CONFIGS = sorted((ROOT / "conf").rglob("*.yaml"))
OF_MEMORIES = [path for path in CONFIGS if path.parent.name == "memory"]
PROMPT_FILES = sorted(SHIPPED.rglob("*.md"))

Rule = Callable[[Module], Iterable[str]]


def offences(rule: Rule, modules: Iterable[Module]) -> list[str]:
    return [f"{module.path}: {offence}" for module in modules for offence in rule(module)]


def nobody(rule: Rule, modules: Iterable[Module]) -> None:
    found = offences(rule, modules)
    assert not found, "\n" + "\n".join(found)


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Dotted names of the modules imported (for `from a import b` it is `a`)."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        checking = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
        if not checking and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


# --- rules: a module -> its offences -----------------------------------------------------------------------------------


def imports_upward(module: Module) -> Iterable[str]:
    above = {*PACKAGES[PACKAGES.index(module.parts[0]) + 1 :], "tests", "conf"}
    if "CHECKOUT = True" in module.source.splitlines():  # a verb that needs the rigs of the tests
        above -= {"tests"}
    yield from (f"imports {package}" for package in sorted(module.tops & above))
    if "" in module.tops:
        yield "imports are absolute"


def imports_hydra(module: Module) -> Iterable[str]:
    return sorted(module.tops & {"hydra", "omegaconf"})


def imports_heavy_packages_at_once(module: Module) -> Iterable[str]:
    return sorted({each.split(".")[0] for each in imported(outside_functions(module.tree))} & HEAVY)


def knows_more_of_the_data_than_its_records(module: Module) -> Iterable[str]:
    used = {each for each in imported(module.nodes) if each.startswith("data_loaders")}
    yield from sorted(used - {"data_loaders.schema"})
    names = {node.id for node in module.nodes if isinstance(node, ast.Name)}
    names |= {alias.name for node in module.nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    yield from sorted(names & {"Gold", "Case"})


def executes_what_came_from_outside(module: Module) -> Iterable[str]:
    yield from sorted(module.tops & UNPICKLERS)
    for called, call in module.calls:
        if called in EXECUTORS:
            yield f"line {call.lineno}: {called}"
        for word in call.keywords:
            if word.arg in {"allow_pickle", "shell"} and ast.unparse(word.value) != "False":
                yield f"line {call.lineno}: {word.arg}"


def catches_without_a_name(module: Module) -> Iterable[str]:
    return [f"line {node.lineno}" for node in module.nodes if isinstance(node, ast.ExceptHandler) and node.type is None]


def leaves_a_text_behind(module: Module) -> Iterable[str]:
    """A text as a statement of its own that is no docstring: the second line of a sentence whose brackets are missing."""
    for node in module.nodes:
        blocks = () if isinstance(node, ast.Module | ast.ClassDef) else ("body", "orelse", "finalbody")
        for block in (block for name in blocks if isinstance(block := getattr(node, name, None), list)):
            for before, line in pairwise(block):
                text = line.value if isinstance(line, ast.Expr) else None
                about = before.targets[0] if isinstance(before, ast.Assign) else getattr(before, "target", None)
                plain = isinstance(text, ast.Constant) and isinstance(text.value, str)
                if isinstance(text, ast.JoinedStr) or (plain and not isinstance(about, ast.Attribute | ast.Tuple)):
                    yield f"line {line.lineno}"


def looks_at_a_clock_or_throws_dice(module: Module) -> Iterable[str]:
    yield from sorted(module.tops & {"random", "secrets", "uuid", "time", "concurrent", "asyncio"})
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in {"numpy", "numpy.random"}:
            wrong = {alias.name for alias in node.names} - {"default_rng", "Generator"}
            yield from sorted(wrong if node.module == "numpy.random" else wrong & {"random"})
    for called, call in module.calls:
        last = called.split(".")[-1]
        unseeded = last == "default_rng" and not call.args
        of_numpy = re.match(r"(np|numpy)\.random\.(?!default_rng$|Generator$)", called)
        outside = called in {"print", "open", "input", "hash"}
        if unseeded or of_numpy or outside or last in {"now", "utcnow", "today", "Thread"}:
            yield f"line {call.lineno}: {called}"


def is_named_after_nothing(module: Module) -> Iterable[str]:
    return sorted(NAMELESS & set(module.parts))


def is_too_long(module: Module) -> Iterable[str]:
    if (lines := len(module.source.splitlines())) > LINES:
        yield f"{lines} lines"


def has_a_function_too_long(module: Module) -> Iterable[str]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


def has_a_function_with_too_many_parameters(module: Module) -> Iterable[str]:
    """`self` and `cls` do not count. A constructor with many settings takes a record of them (`memsys.interface`)."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if len(names) - (names[:1] in (["self"], ["cls"])) > PARAMETERS:
                yield f"{node.name} has {len(names)} parameters"


def is_more_than_an_entry_point(module: Module) -> Iterable[str]:
    if (lines := len(module.source.splitlines())) > ENTRY_LINES:
        yield f"{lines} lines"


def test_imports_point_one_way() -> None:
    nobody(imports_upward, MODULES)


PLACES = re.compile(
    r"""/ ["'](cases|scores)["']|["'](cases|scores)/|folder\.parent\.name|["']judge_["'{*]"""
    r"""|(file|path|run|folder|score)s?(\[[^]]*\])?\.parents\[|(?<!table\.)\b(stem|name)\.r?(partition|split)\(["']-["']"""
    r"""|["'/*.](run\.json|case\.json|vectors\.npy|errors\.log|(predictions|items|effort|nodes|recorded)\.jsonl)["']"""
)


def spells_where_a_run_writes(module: Module) -> Iterable[str]:
    """Only `eval.files.run_folder` does. An importer looks for a run's files in a folder that somebody gives it."""
    if module.parts[0] != "data_loaders" and module.parts[-1] not in ("run_folder", "formats", "journal"):
        yield from (line.strip() for line in module.source.splitlines() if PLACES.search(line))


def imports_a_verb(module: Module) -> Iterable[str]:
    return sorted(each for each in imported(module.nodes) if each.startswith("scripts.commands"))


def test_no_command_imports_a_command() -> None:
    nobody(imports_a_verb, [module for module in MODULES if module.parts[0] == "scripts"])


def test_hydra_stays_in_scripts() -> None:
    nobody(imports_hydra, BELOW_SCRIPTS)


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    nobody(imports_heavy_packages_at_once, BELOW_SCRIPTS)


def test_a_memory_knows_the_records_of_the_data_and_never_the_answer_key() -> None:
    nobody(knows_more_of_the_data_than_its_records, MEMSYS)


def test_one_module_knows_where_a_run_writes() -> None:
    nobody(spells_where_a_run_writes, MODULES)


def test_nothing_that_came_from_outside_is_executed() -> None:
    nobody(executes_what_came_from_outside, MODULES)


def test_no_sentence_loses_its_second_line() -> None:
    nobody(leaves_a_text_behind, MODULES)


def test_errors_are_caught_by_name() -> None:
    nobody(catches_without_a_name, MODULES)


def test_memories_look_at_no_clock_and_throw_no_dice_of_their_own() -> None:
    assert {"memsys/systems/graphrag/graph.py", "memsys/systems/bm25.py"} <= {each.path for each in METHODS}
    nobody(looks_at_a_clock_or_throws_dice, METHODS)


def test_modules_and_packages_are_named_after_what_they_hold() -> None:
    nobody(is_named_after_nothing, MODULES)


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    nobody(is_too_long, MODULES)


def test_no_function_is_longer_than_a_page() -> None:
    nobody(has_a_function_too_long, MODULES)


def test_no_function_has_more_parameters_than_a_reader_can_hold() -> None:
    nobody(has_a_function_with_too_many_parameters, MODULES)


def test_an_entry_point_of_scripts_is_thin() -> None:
    nobody(is_more_than_an_entry_point, ENTRY_POINTS)


OFFENCES: list[tuple[Rule, str]] = [
    (imports_upward, "import eval.running.loop"),
    (imports_upward, "from scripts import run"),
    (imports_upward, "from . import dense"),
    (leaves_a_text_behind, "def f(n):\n    yield f'{n} answers, '\n    'and more'"),
    (leaves_a_text_behind, "def f(n):\n    if n:\n        text = 'a'\n        f'{n}'"),
    (spells_where_a_run_writes, 'folder.glob("cases/*/case.json")'),
    (spells_where_a_run_writes, 'run.folder / "scores" / name'),
    (spells_where_a_run_writes, 'lines = read_lines(folder / "predictions.jsonl")'),
    (spells_where_a_run_writes, 'sorted(runs.glob("*/*/run.json"))'),
    (spells_where_a_run_writes, 'name = f"judge_{judge}"'),
    (spells_where_a_run_writes, 'folder.score_files("judge_*")'),
    (spells_where_a_run_writes, "RunFolder(path.parents[1]).record()"),
    (spells_where_a_run_writes, "owners.get(paths[0].parents[1])"),
    (spells_where_a_run_writes, "metric = stem.rpartition('-')[0]"),
    (spells_where_a_run_writes, 'version = files[0].stem.rpartition("-")[2]'),
    (imports_a_verb, "from scripts.commands.runs import folders"),
    (imports_hydra, "def f():\n    from omegaconf import OmegaConf"),
    (imports_heavy_packages_at_once, "if True:\n    import umap.umap_"),
    (knows_more_of_the_data_than_its_records, "from data_loaders.locomo import load"),
    (knows_more_of_the_data_than_its_records, "from data_loaders.schema import Gold"),
    (executes_what_came_from_outside, "import pickle"),
    (executes_what_came_from_outside, "def f(x):\n    return eval(x)"),
    (executes_what_came_from_outside, "run(x, shell=True)"),
    (catches_without_a_name, "try:\n    f()\nexcept:\n    pass"),
    (looks_at_a_clock_or_throws_dice, "def f():\n    import random"),
    (looks_at_a_clock_or_throws_dice, "from numpy import random"),
    (looks_at_a_clock_or_throws_dice, "from numpy.random import shuffle"),
    (looks_at_a_clock_or_throws_dice, "np.random.shuffle(x)"),
    (looks_at_a_clock_or_throws_dice, "rng = np.random.default_rng()"),
    (looks_at_a_clock_or_throws_dice, "datetime.now()"),
    (looks_at_a_clock_or_throws_dice, "hash(x)"),
    (is_too_long, "x = 1\n" * (LINES + 1)),
    (has_a_function_too_long, "class A:\n    def f(self):\n" + "        x = 1\n" * FUNCTION_LINES),
    (has_a_function_with_too_many_parameters, "class A:\n    def f(self, a, b, c, d, e, f, g, *, h, i):\n        pass"),
    (is_more_than_an_entry_point, "x = 1\n" * (ENTRY_LINES + 1)),
]


def test_every_rule_sees_an_offence() -> None:
    assert [text for rule, text in OFFENCES if not list(rule(Module("memsys/systems/toy.py", text)))] == []
    assert list(is_named_after_nothing(Module("memsys/utils/toy.py", "")))
    harmless = "from data_loaders.schema import Unit\n\ndef f(rng):\n    import umap\n    rng.random(3)\n    np.random.default_rng(0)"
    assert [rule for rule, _ in OFFENCES if list(rule(Module("memsys/systems/toy.py", harmless)))] == []


# --- packages ----------------------------------------------------------------------------------------------------------


def test_the_packages_imported_are_ours() -> None:
    for package in PACKAGES:
        assert Path(str(importlib.import_module(package).__file__)) == ROOT / package / "__init__.py"


def test_no_module_imports_one_that_imports_it() -> None:
    """Imports for type checkers count: they bind two modules to each other all the same."""
    known = {module.dotted for module in MODULES}
    graph = {module.dotted: needed(module) & known - {module.dotted} for module in MODULES}
    assert {"memsys.llm.meter", "eval.running.case_log"} <= graph["eval.running.question"], "what is imported is seen"
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def room(dotted: str) -> str:
    """A package of a floor, or a module that stands directly in it: `eval.running`, `memsys.prompts`."""
    return ".".join(dotted.split(".")[:2])


def rooms(modules: Iterable[Module]) -> dict[str, set[str]]:
    """For each room those that it needs when it runs; imports for type checkers do not count."""
    own = list(modules)
    known = {module.dotted for module in own}
    graph: dict[str, set[str]] = {}
    for module in own:
        needed_rooms = {room(name) for name in module.imported_at_run_time & known if "." in name}
        graph.setdefault(room(module.dotted), set()).update(needed_rooms - {room(module.dotted)})
    return graph


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All but expressions, which import nothing, and blocks for type checkers."""
    open_ends = [node]
    while open_ends:
        for child in ast.iter_child_nodes(open_ends.pop()):
            guard = child.test if isinstance(child, ast.If) else None
            if not (isinstance(child, ast.expr) or (isinstance(guard, ast.Name) and guard.id == "TYPE_CHECKING")):
                yield child
                open_ends.append(child)


def test_no_room_needs_one_that_needs_it() -> None:
    graph = rooms(MODULES)
    assert {"eval.files", "eval.statistics"} <= graph["eval.report"], "what is imported is seen"
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the rooms
    back = Module("eval/files/toy.py", "def f():\n    import eval.report.cell")
    with pytest.raises(CycleError):
        TopologicalSorter(rooms([*MODULES, back])).prepare()


def class_names(modules: Iterable[Module]) -> dict[tuple[str, str], list[str]]:
    """Modules that define a class of this name, by floor and name. `Product` is the name that every adapter must have."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "adapters" not in module.parts:
                found[module.parts[0], node.name].append(module.path)
    return found


def test_no_floor_has_two_classes_of_one_name() -> None:
    assert [f"{name}: {paths}" for (_, name), paths in class_names(MODULES).items() if len(paths) > 1] == []
    again = Module("eval/report/toy.py", "class Cell:\n    pass")
    assert len(class_names([*MODULES, again])["eval", "Cell"]) == 2


def needed(module: Module) -> set[str]:
    """Modules and, for `from package import name`, what may be a module of it."""
    froms = [node for node in module.nodes if isinstance(node, ast.ImportFrom)]
    return imported(module.nodes) | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


# --- configuration -----------------------------------------------------------------------------------------------------


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def targets(value: Any) -> Iterator[str]:
    """Every `_target_` in a configuration."""
    if isinstance(value, dict):
        if "_target_" in value:
            yield value["_target_"]
        for inner in value.values():
            yield from targets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from targets(inner)


@cache
def load(path: Path) -> dict[str, Any]:
    loaded = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded if isinstance(loaded, dict) else {}


def test_every_target_exists_and_is_ours() -> None:
    found = {target: named(path) for path in CONFIGS for target in targets(load(path))}
    assert len(found) > 30
    assert {target: where for target, where in found.items() if not ours(target)} == {}


def ours(target: str) -> bool:
    module, _, attribute = target.rpartition(".")
    return module.split(".")[0] in PACKAGES and hasattr(importlib.import_module(module), attribute)


def snake(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).lower()


def test_a_file_is_named_after_its_module_or_is_a_variant_of_it() -> None:
    for path in (path for path in CONFIGS if path.parent.name in {"memory", "dataset"}):
        config = load(path)
        assert config["name"] == path.stem
        assert config["title"], named(path)
        target = config["build" if path.parent.name == "memory" else "load"]["_target_"]
        module, attribute = target.split(".")[-2:]
        # quality_choice is a variant of quality; `nothing` and `recency` are classes of `controls`, `dmr` is `msc.load_dmr`;
        # naive_rag_pruned is naive_rag in the wrapper `pruned`; gold_evidence and oracle_editor are controls of the run loop
        own = {module, snake(attribute).removeprefix("load_"), *([path.stem] if config.get("control") else [])}
        variant = path.stem.endswith(f"_{module}") or any(re.fullmatch(rf"{stem}\d*(_\w+)?", path.stem) for stem in own)
        assert variant, f"{named(path)} is no variant of {own}"


def test_no_two_rows_of_a_table_have_the_same_title() -> None:
    for group in ("memory", "dataset"):
        titles = [load(path)["title"] for path in CONFIGS if path.parent.name == group]
        assert sorted(title for title in titles if titles.count(title) > 1) == []


def test_configuration_holds_values_only() -> None:
    secret = re.compile(r"!!python|\b(?:sk-|hf_)[A-Za-z0-9]{16,}")
    assert [named(path) for path in CONFIGS if secret.search(path.read_text(encoding="utf-8"))] == []


def test_readers_and_judges_name_prompts_that_exist() -> None:
    for path in (path for path in CONFIGS if path.parent.name in {"reader", "judge"}):
        prompts = list(prompts_in(load(path)))
        assert prompts, f"{named(path)} names no prompt"
        for prompt in prompts:  # one prompt, or those of a judge that has one per kind of question
            assert list(SHIPPED.glob(f"{prompt}.md")) or list(SHIPPED.glob(f"{prompt}_*.md")), (
                f"{named(path)}: {prompt}"
            )


def prompts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from prompts_in(inner)
    elif isinstance(value, str) and re.fullmatch(r"(reader|judge)/\w+", value):
        yield value


# --- prompts -----------------------------------------------------------------------------------------------------------


def test_every_prompt_parses() -> None:
    for path in PROMPT_FILES:
        prompt = Prompts()[path.relative_to(SHIPPED).with_suffix("").as_posix()]
        assert prompt.user, named(path)
        assert 0 < prompt.max_tokens <= 16_384, named(path)
        if prompt.schema is not None:
            Draft202012Validator(prompt.schema)  # an invalid schema is refused
            assert prompt.schema.get("type") in {"object", "array"}, f"{named(path)}: the reader looks for a bracket"


def test_every_prompt_stands_in_the_folder_of_what_uses_it() -> None:
    for path in PROMPT_FILES:
        folder, step = path.relative_to(SHIPPED).parts
        assert re.fullmatch(r"[a-z0-9_]+\.md", step)
        systems = ROOT / "memsys" / "systems"
        owners = [systems / f"{folder}.py", systems / folder, *(ROOT / "eval").glob(f"*/{folder}.py")]
        owners += [ROOT / "scripts/commands" / f"make_{folder}.py"]
        assert any(owner.exists() for owner in owners), f"{named(path)}: nothing is called {folder}"


def test_the_prompts_that_a_memory_declares_exist() -> None:
    for path in OF_MEMORIES:
        module, _, attribute = load(path)["build"]["_target_"].rpartition(".")
        declared = getattr(importlib.import_module(module), attribute).PROMPTS
        assert all(Prompts().digest([declaration]) for declaration in declared), named(path)


# --- the suite itself --------------------------------------------------------------------------------------------------


def test_the_network_is_out_of_reach() -> None:
    with pytest.raises(RuntimeError, match="offline"):
        socket.getaddrinfo("example.org", 443)
    with pytest.raises(RuntimeError, match="offline"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram, pytest.raises(RuntimeError, match="offline"):
        datagram.sendto(b"x", ("192.0.2.1", 9))


def test_this_machine_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(target=server.accept, daemon=True)
        accepting.start()
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=5).close()
        accepting.join(timeout=5)
    assert not accepting.is_alive()


def test_no_key_is_in_the_environment() -> None:
    assert not [variable for variable in os.environ if variable.endswith("_API_KEY")]

"""The shape of the repository: which way imports point, what may not occur, and that files and names agree."""

from __future__ import annotations

import ast
import importlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from memsys.prompts import SHIPPED, Prompts

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data_loaders", "memsys", "eval", "scripts")
"""Each may import those before it."""
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
BELOW_SCRIPTS = [path for path in MODULES if path.relative_to(ROOT).parts[0] != "scripts"]
SYSTEMS = [
    path
    for path in sorted((ROOT / "memsys").rglob("*.py"))
    if "embed" not in path.stem and "llm" not in path.relative_to(ROOT).parts
]
CONFIGS = sorted((ROOT / "conf").rglob("*.yaml"))
PROMPT_FILES = sorted(SHIPPED.rglob("*.md"))
HEAVY = {
    "openai", "aiohttp", "wandb", "datasets", "matplotlib", "torch", "bpe_openai", "pandas", "sklearn", "umap",
    "sentence_transformers", "llmlingua", "networkx", "ray",
}  # fmt: skip


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_module = pytest.mark.parametrize("path", MODULES, ids=name)
each_module_below_scripts = pytest.mark.parametrize("path", BELOW_SCRIPTS, ids=name)
each_config = pytest.mark.parametrize("path", CONFIGS, ids=name)
each_prompt = pytest.mark.parametrize("path", PROMPT_FILES, ids=name)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(nodes: Iterator[ast.AST]) -> set[str]:
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


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the name that is called as it is written, `a.b.c`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


# --- packages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_imported_is_ours(package: str) -> None:
    assert Path(str(importlib.import_module(package).__file__)) == ROOT / package / "__init__.py"


@each_module
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    above = set(PACKAGES[PACKAGES.index(package) + 1 :]) | {"tests", "conf"}
    tops = {module.split(".")[0] for module in imports(ast.walk(parsed(path)))}
    assert not tops & above
    assert "" not in tops, "imports are absolute"


def test_no_module_imports_one_that_imports_it() -> None:
    """Imports for type checkers count: they bind two modules to each other all the same."""
    dotted = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES
    }
    graph = {module: needed(path) & dotted.keys() - {module} for module, path in dotted.items()}
    assert {"memsys.llm.meter", "eval.case_log"} <= graph["eval.question"], "what is imported is seen"
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def needed(path: Path) -> set[str]:
    """Modules and, for `from package import name`, what may be a module of it."""
    found = imports(ast.walk(parsed(path)))
    froms = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)]
    return found | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


@pytest.mark.parametrize("path", [path for path in MODULES if (ROOT / "memsys") in path.parents], ids=name)
def test_a_memory_knows_the_records_of_the_data_and_nothing_else_of_it(path: Path) -> None:
    used = {module for module in imports(ast.walk(parsed(path))) if module.startswith("data_loaders")}
    assert used <= {"data_loaders.schema"}
    names = {node.id for node in ast.walk(parsed(path)) if isinstance(node, ast.Name)}
    names |= {alias.name for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not names & {"Gold", "Case"}, "memories never see the answer key"


@each_module_below_scripts
def test_hydra_stays_in_scripts(path: Path) -> None:
    assert not {module.split(".")[0] for module in imports(ast.walk(parsed(path)))} & {"hydra", "omegaconf"}


@each_module_below_scripts
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    assert not {module.split(".")[0] for module in imports(outside_functions(parsed(path)))} & HEAVY


@each_module
def test_nothing_that_came_from_outside_is_executed(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(ast.walk(parsed(path)))}
    assert not tops & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    for called, call in calls(path):
        assert called not in {"eval", "exec", "compile", "__import__", "os.system", "yaml.load", "yaml.unsafe_load"}
        assert not any(
            word.arg in {"allow_pickle", "shell"} and ast.unparse(word.value) != "False" for word in call.keywords
        )


@each_module
def test_modules_are_named_after_what_they_hold(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}


@each_module
def test_errors_are_caught_by_name(path: Path) -> None:
    bare = [node.lineno for node in ast.walk(parsed(path)) if isinstance(node, ast.ExceptHandler) and node.type is None]
    assert not bare


@pytest.mark.parametrize("path", SYSTEMS, ids=name)
def test_memories_look_at_no_clock_and_throw_no_dice_of_their_own(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(ast.walk(parsed(path)))}
    assert not tops & {"random", "secrets", "uuid", "time", "concurrent", "asyncio"}
    for called, call in calls(path):
        assert called.split(".")[-1] not in {"now", "utcnow", "today"}, f"line {call.lineno}"
        assert not re.match(r"(np|numpy)\.random\.(?!default_rng$|Generator$)", called), f"line {call.lineno}"
        assert not (called.endswith("default_rng") and not call.args), f"line {call.lineno}: an unseeded generator"
        assert called.split(".")[-1] != "Thread", f"line {call.lineno}"
        assert called not in {"print", "open", "input", "hash"}, f"line {call.lineno}"


def test_a_memory_that_is_a_package_is_looked_into() -> None:
    assert {"graphrag/__init__.py", "graphrag/communities.py", "graphrag/graph.py"} <= {
        path.relative_to(ROOT / "memsys" / "systems").as_posix() for path in SYSTEMS if "systems" in path.parts
    }


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


# --- configuration -----------------------------------------------------------------------------------------------------


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


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}


@each_config
def test_every_target_exists_and_is_ours(path: Path) -> None:
    for target in targets(load(path)):
        module, _, attribute = target.rpartition(".")
        assert module.split(".")[0] in PACKAGES
        assert hasattr(importlib.import_module(module), attribute), target


def snake(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).lower()


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.parent.name in {"memory", "dataset"}], ids=name)
def test_a_file_is_named_after_its_module_or_is_a_variant_of_it(path: Path) -> None:
    config = load(path)
    assert config["name"] == path.stem
    assert config["title"]
    target = config["build" if path.parent.name == "memory" else "load"]["_target_"]
    module, attribute = target.split(".")[-2:]
    # quality_choice is a variant of quality; `nothing` and `recency` are classes of `controls`, `dmr` is `msc.load_dmr`;
    # naive_rag_pruned is naive_rag in the wrapper `pruned`; gold_evidence is a control of the run loop
    own = {module, snake(attribute).removeprefix("load_"), *([path.stem] if config.get("gold_evidence") else [])}
    variant = path.stem.endswith(f"_{module}") or any(re.fullmatch(rf"{stem}\d*(_\w+)?", path.stem) for stem in own)
    assert variant, f"{path.stem} is no variant of {own}"


@pytest.mark.parametrize("group", ["memory", "dataset"])
def test_no_two_rows_of_a_table_have_the_same_title(group: str) -> None:
    titles = [load(path)["title"] for path in CONFIGS if path.parent.name == group]
    assert len(titles) == len(set(titles)), sorted(title for title in titles if titles.count(title) > 1)


@each_config
def test_configuration_holds_values_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "!!python" not in text
    assert not re.search(r"\b(?:sk-|hf_)[A-Za-z0-9]{16,}", text), "a secret"


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.parent.name in {"reader", "judge"}], ids=name)
def test_readers_and_judges_name_prompts_that_exist(path: Path) -> None:
    def named(value: Any) -> Iterator[str]:
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from named(inner)
        elif isinstance(value, str) and re.fullmatch(r"(reader|judge)/\w+", value):
            yield value

    prompts = list(named(load(path)))
    assert prompts, "no prompt is named"
    for prompt in prompts:  # one prompt, or those of a judge that has one per kind of question
        assert list(SHIPPED.glob(f"{prompt}.md")) or list(SHIPPED.glob(f"{prompt}_*.md")), prompt


# --- prompts -----------------------------------------------------------------------------------------------------------


@each_prompt
def test_every_prompt_parses(path: Path) -> None:
    prompt = Prompts()[path.relative_to(SHIPPED).with_suffix("").as_posix()]
    assert prompt.user
    assert 0 < prompt.max_tokens <= 16_384
    if prompt.schema is not None:
        Draft202012Validator.check_schema(prompt.schema)
        assert prompt.schema.get("type") in {"object", "array"}, "the reader of JSON looks for a bracket"


@each_prompt
def test_every_prompt_stands_in_the_folder_of_what_uses_it(path: Path) -> None:
    folder, step = path.relative_to(SHIPPED).parts
    assert re.fullmatch(r"[a-z0-9_]+\.md", step)
    systems = ROOT / "memsys" / "systems"
    owners = [systems / f"{folder}.py", systems / folder, ROOT / "eval" / f"{folder}.py"]
    owners.append(ROOT / "scripts" / f"make_{folder}.py")
    assert any(owner.exists() for owner in owners)


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.parent.name == "memory"], ids=name)
def test_the_prompts_that_a_memory_declares_exist(path: Path) -> None:
    module, _, attribute = load(path)["build"]["_target_"].rpartition(".")
    declared = getattr(importlib.import_module(module), attribute).PROMPTS
    assert all(Prompts().digest([declaration]) for declaration in declared)


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

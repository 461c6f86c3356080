"""Start a memory of your own: `python -m scripts new-memory mine` writes its module, its settings and its prompt.

In a checkout the files go to the folders of the other memories. In any other folder they go to `mine.py`, `conf/memory/mine.yaml` and
`prompts/mine/`, where `memsys-bench run memory=mine` finds them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from string import Template

from eval.files.provenance import ROOT
from eval.files.store import RunError
from scripts.setup.arguments import verb_parser

GROUP = "develop"

NO_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "nan", "inf"}
"""Words that are no text in a file of `conf` or on the command line."""
TEMPLATES = Path(__file__).parents[1] / "templates"


def files(name: str, folder: Path) -> dict[Path, str]:
    """Files to write below `folder`: content by path.

    Raises:
        RunError: the name is no valid name of a Python module, or a word that YAML or Hydra reads as another value; it is the name of a
            shipped memory, or outside a checkout that of an installed module, which would be imported in its place.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in NO_TEXT:
        raise RunError(f"a memory's name is a lower-case Python name such as my_memory, found {name!r}")
    if (ROOT / "conf" / "memory" / f"{name}.yaml").is_file():
        raise RunError(f"there is a memory called {name} already; nothing was written")
    checkout = (folder / "memsys" / "systems").is_dir()
    if not checkout and not (folder / f"{name}.py").exists() and find_spec(name) is not None:
        raise RunError(f"there is a module called {name} already, which Python would import; choose another name")
    fields = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "cls": "".join(part.capitalize() for part in name.split("_")),
        "module": f"memsys.systems.{name}" if checkout else name,
    }
    module = folder / "memsys" / "systems" if checkout else folder
    prompts = folder / "memsys" / "prompts" if checkout else folder / "prompts"
    targets = {
        module / f"{name}.py": "memory.py.txt",
        folder / "conf" / "memory" / f"{name}.yaml": "memory.yaml.txt",
        prompts / name / "note.md": "note.md.txt",
    }
    return {
        path: Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(fields)
        for path, template in targets.items()
    }


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("new-memory", __doc__)
    parser.add_argument("name", help="lower-case Python name, e.g. my_memory")
    name = parser.parse_args(arguments).name
    contents = files(name, Path.cwd())
    if existing := [path for path in contents if path.exists()]:
        raise RunError(f"{existing[0]} exists already; nothing was written")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(Path.cwd())}")
    if (Path.cwd() / "memsys" / "systems").is_dir():
        print(f"next: make run MEMORY={name}    .venv/bin/pytest tests/memsys/test_contract.py -k {name}")
    else:
        print(f"next: memsys-bench run memory={name}")
    return 0

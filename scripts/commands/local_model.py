"""Fetch a model that runs on this machine: `python -m scripts local-model [NAME]`; without a name it lists those of `conf/local`.

Then `make run LOCAL=NAME`, or `local.model=NAME` on any command; `LOCAL=` and `local.model=` also take the path of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.setup.arguments import verb_parser

GROUP = "data"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("local-model", __doc__)
    parser.add_argument("name", nargs="?", help="a file of conf/local")
    name = parser.parse_args(arguments).name
    from scripts.assembly.models import fetch
    from scripts.setup.options import load_option, options

    if name is not None:
        print(fetch(name))
        return 0
    for known in options("local"):
        option = load_option("local", known)
        print(f"{known:<20}{option['bytes'] / 1e6:>8.0f} MB  {option['licence']:<12}{option['title']}")
    return 0

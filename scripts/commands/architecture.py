"""Draw the packages and their imports: `python -m scripts architecture` writes the drawing into ARCHITECTURE.md."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.setup.arguments import verb_parser
from tests.rigs.reporting.drawing import DRAWING, ROOT, drawing

GROUP = "develop"
CHECKOUT = True


def main(arguments: Sequence[str]) -> int:
    verb_parser("architecture", __doc__).parse_args(arguments)
    page = ROOT / "ARCHITECTURE.md"
    page.write_text(DRAWING.sub(lambda _: drawing(), page.read_text(encoding="utf-8")), encoding="utf-8")
    print(drawing(), end="")
    return 0

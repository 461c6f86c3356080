"""Compare two memories side by side, such as ours and the released product: `python -m scripts fidelity mem0_v3 released_mem0
dataset=locomo`.

Both get the same units and models. The table compares calls, tokens and stored texts per unit, and recalls and answers per question, each
difference with its interval. Further settings are those of `memsys-bench run`. The table is printed and written to `results/fidelity/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.analysis.fidelity import Compared, Fidelity, Overlap, compared
from eval.files.store import RunError, replace_file
from eval.report.rendering import cell_text, grid, number, span
from scripts.lab.lab import Answers, Lab, Scored, compare, in_words
from scripts.setup.arguments import verb_parser
from scripts.tables.captions import caption, waivers

GROUP = "science"


def rendered(
    answers: Sequence[Answers], scored: Sequence[Scored], result: Fidelity, caption_lines: Sequence[str]
) -> str:
    """The comparison as Markdown."""
    titles = [each.title for each in answers]
    heading = cell_text(f"{titles[0]} and {titles[1]} on {answers[0].dataset.title}")
    lines = [f"## {heading}", "", *map(cell_text, caption_lines), ""]
    lines += ["Differences are first minus second, paired, with 95 % intervals by unit or question.", ""]
    for head, gaps in (("Per unit", result.per_unit), ("Per question", result.per_question)):
        lines += [grid([head, *titles, "difference", "n"], map(_gap_row, gaps)), ""]
    lines += [grid(["Agreement", "share", "n"], map(_overlap_row, result.overlaps)), ""]
    scores = [[name, in_words(compare(scored[0], scored[1], name))] for name in scored[0].cells]
    lines += [grid(["Scores", "difference"], scores), ""]
    for title, purposes, notes in zip(titles, result.purposes, result.notes, strict=True):
        lines.append(f"{cell_text(title)}: calls per unit {_listed(purposes)}; events of the build {_listed(notes)}.")
    return "\n".join([*lines, ""])


def _gap_row(row: Compared) -> list[str]:
    gap = f"{row.gap.mean:+.3f} {span(row.gap.by_question)}".strip()
    return [row.what, number(row.first), number(row.second), gap, str(row.gap.n)]


def _overlap_row(overlap: Overlap) -> list[str]:
    if overlap.value is None:
        return [overlap.what, "–", "0"]
    return [overlap.what, f"{number(overlap.value.mean)} {span(overlap.value.by_question)}", str(overlap.value.n)]


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in counts.items()) or "none"


def main(arguments: Sequence[str]) -> int:
    """Run both memories if needed, compare, print and write; return 2 unless exactly two are named.

    Raises:
        RunError: the two do not take the same units, or have none in common.
    """
    parser = verb_parser("fidelity", __doc__)
    parser.add_argument("words", nargs="+", metavar="MEMORY", help="two files of conf/memory; then settings, key=value")
    words = parser.parse_args(arguments).words
    names = [word for word in words if "=" not in word]
    if len(names) != 2:
        parser.error(f"give two memories, such as mem0_v3 released_mem0; found {len(names)}")
    lab = Lab(*(word for word in words if "=" in word))
    dataset = lab.load()
    units = [dict(lab.run(lab.memory(name), dataset).unit) for name in names]
    if units[0] != units[1]:
        raise RunError(
            f"the memories take other units ({units[0]} and {units[1]}): give 'protocol.unit={{rule: …}}' for both"
        )
    answers = [lab.ask(name, dataset) for name in names]
    try:
        result = compared(answers[0].folder, answers[1].folder, lab.cfg.k_evidence)
    except ValueError as error:
        raise RunError(str(error)) from error
    scored = [lab.score(each) for each in answers]
    used = [(dataset, answers[0].runs[0].reader, answers[0].runs[0].unit)]
    said = (*caption(lab.cfg, lab.models, used), *waivers(run for each in answers for run in each.runs))
    text = rendered(answers, scored, result, said)
    path = lab.models.results / "fidelity" / f"{names[0]}-{names[1]}-{dataset.name}.md"
    replace_file(path, text)
    print(text)
    print(f"written: {path}")
    return 0

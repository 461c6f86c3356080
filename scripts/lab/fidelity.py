"""`memsys-bench fidelity`: run two memories on the same units, compare the run folders, print the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.analysis.fidelity import Fidelity, compared
from eval.files.store import RunError, replace_file
from eval.report.rendering import cell_text, grid, number, span
from scripts.lab.lab import Answers, Lab, Scored, compare, in_words
from scripts.tables.captions import caption, waivers


def fidelity(first: str, second: str, settings: Sequence[str]) -> int:
    """Run both memories if needed, compare, print and write.

    Raises:
        RunError: the two do not take the same units, or have none in common, or the spending cap was reached.
    """
    lab = Lab(*settings)
    dataset = lab.load()
    units = [dict(lab.run(lab.memory(name), dataset).unit) for name in (first, second)]
    if units[0] != units[1]:
        raise RunError(
            f"the memories take other units ({units[0]} and {units[1]}): give 'protocol.unit={{rule: …}}' for both"
        )
    answers = [lab.ask(name, dataset) for name in (first, second)]
    scored = [lab.score(each) for each in answers]
    lab.check_cap()
    try:
        result = compared(answers[0].folder, answers[1].folder, lab.cfg.k_evidence)
    except ValueError as error:
        raise RunError(str(error)) from error
    used = [(dataset, answers[0].runs[0].reader, answers[0].runs[0].unit)]
    said = (*caption(lab.cfg, lab.models, used), *waivers(run for each in answers for run in each.runs))
    text = rendered(answers, scored, result, said)
    path = lab.models.results / "fidelity" / f"{first}-{second}-{dataset.name}.md"
    replace_file(path, text)
    print(text)
    print(f"written: {path}")
    return 0


def rendered(
    answers: Sequence[Answers], scored: Sequence[Scored], result: Fidelity, caption_lines: Sequence[str]
) -> str:
    titles = [each.title for each in answers]
    heading = cell_text(f"{titles[0]} and {titles[1]} on {answers[0].dataset.title}")
    lines = [f"## {heading}", "", *map(cell_text, caption_lines), ""]
    lines += [
        "Differences are first minus second, paired, with 95 % intervals by unit or question, about these histories alone.",
        "",
    ]
    for head, gaps in (("Per unit", result.per_unit), ("Per question", result.per_question)):
        rows = [
            [
                gap.what,
                number(gap.first),
                number(gap.second),
                f"{gap.gap.mean:+.3f} {span(gap.gap.by_question)}".strip(),
                str(gap.gap.n),
            ]
            for gap in gaps
        ]
        lines += [grid([head, *titles, "difference", "n"], rows), ""]
    overlaps = [
        [what, "–", "0"] if share is None else [what, f"{number(share.mean)} {span(share.by_question)}", str(share.n)]
        for what, share in result.overlaps.items()
    ]
    lines += [grid(["Agreement", "share", "n"], overlaps), ""]
    asked, both = len(answers[0].dataset.questions), result.per_question[0].gap.n
    lines += [f"{both} of {asked} questions were read by both.", ""] if both < asked else []
    scores = [[name, in_words(compare(scored[0], scored[1], name))] for name in scored[0].cells]
    lines += [grid(["Scores", "difference"], scores), ""]
    for title, purposes, notes in zip(titles, result.purposes, result.notes, strict=True):
        lines.append(
            f"{cell_text(title)}: calls of the build per unit {_listed(purposes)}; events of the build {_listed(notes)}."
        )
    return "\n".join([*lines, ""])


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in counts.items()) or "none"

"""The verdicts of HaluMem's judge of answers.

Source: MemTensor/HaluMem, eval/evaluation.py and eval/eval_tools.py at 59402b9. A verdict is Correct, Hallucination (it contradicts the
reference or its memory points, or is definite where the reference is unknown) or Omission (something of the reference is missing).

Deviation: the official shares "(all)" divide by every question, so that one without a verdict counts as none of the three; ours leaves it
out of the mean and prints how many there are, as "(valid)" does. With a verdict on every question all three are the same.
"""

from __future__ import annotations

from typing import Literal, get_args

from eval.metrics.labels import in_fields, stated

Label = Literal["Correct", "Hallucination", "Omission"]
LABELS: tuple[Label, ...] = get_args(Label)


def verdict(reply: str) -> Label | None:
    """The label in a judge's reply; None when it states no label or several. The JSON field decides if there is one."""
    found: set[str | None] = {*in_fields(reply)} or {stated(reply, LABELS)}
    return next((label for label in LABELS if found == {label}), None)

"""The judges' rules for DMR (MSC-Self-Instruct) and MSC-E questions.

There is no official script. MemGPT (section 3.1.1) reports the share of replies that a judge calls CORRECT, and ROUGE-L
recall because replies are verbose (`eval.metrics.lexical.rouge_recall`). MemTree (appendix A.2) asks its judge for one digit. The
judges are lenient in different ways, so a table names its judge. MemGPT's labels are read by `eval.metrics.locomo.label_verdict`.

Deviation. A reply without a clear verdict is not counted as wrong: the question stays unscored.
"""

from __future__ import annotations

from eval.metrics.labels import stated


def memtree_verdict(reply: str) -> bool | None:
    """True for the digit 1, False for 0; None when the reply states neither or both (MemTree, appendix A.2).

    The digit must stand alone: "on a scale of 0 to 1" states neither.
    """
    digit = stated(reply, ("0", "1"))
    return digit == "1" if digit else None

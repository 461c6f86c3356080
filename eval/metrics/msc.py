"""The judges' rules for DMR (MSC-Self-Instruct) and MSC-E questions.

There is no official script. MemGPT (section 3.1.1) reports the share of replies that a judge calls CORRECT, and ROUGE-L
recall because replies are verbose (`eval.metrics.lexical.rouge_l_recall`). Zep's public evaluation asks for a boolean,
MemTree (appendix A.2) for one digit. The three judges are lenient in different ways, so a table names its judge.

Deviation: a reply without a clear verdict is not counted as wrong; it has no verdict.
"""

from __future__ import annotations

import re

from eval.metrics.labels import stated
from eval.metrics.locomo import label_verdict

_ZEP_FIELD = re.compile(r'"is_correct"\s*:\s*(true|false)\b', re.IGNORECASE)


def memgpt_verdict(reply: str) -> bool | None:
    """True for CORRECT, False for WRONG, None when the reply says neither or both (MemGPT's judge for DMR)."""
    return label_verdict(reply)


def zep_verdict(reply: str) -> bool | None:
    """The value of the JSON field `is_correct`; None when it is missing or given both ways (Zep's judge for DMR)."""
    values = {value.lower() for value in _ZEP_FIELD.findall(reply)}
    return values == {"true"} if len(values) == 1 else None


def memtree_verdict(reply: str) -> bool | None:
    """Whether the digit that the reply gives by itself is a 1; None when it gives neither 0 nor 1, or both (MemTree, A.2).

    A digit inside a phrase ("on a scale of 0 to 1") is none.
    """
    digit = stated(reply, ("0", "1"))
    return digit == "1" if digit else None

"""The official rules of RealMem for judge replies: the grade of an answer, and the recall and helpfulness of a memory.

Source: AvatarMemory/RealMemBench at 67afd08, eval/compute_llm_metrics_for_realmem.py.

The judge of the memory is shown the five best recalled items (`--top_k`). Recall and helpfulness are averaged separately, each over the
replies that have it.

Deviations. A grade outside its scale counts as unparsable. Unparsable replies are left out of the means, as upstream,
but they are counted. The official retrieval metrics and summaries are not implemented: no published table that we
reproduce prints them.
"""

from __future__ import annotations

import json
from typing import Any

QA_SCORES = (0, 1, 2, 3)
"""0 conflicts with memory, 1 no conflict but generic, 2 uses part of the gold memories, 3 uses all."""


def extract_json(reply: str) -> Any:
    """The JSON value in the first ```json block of a reply, or else between its outermost braces.

    None when the reply has neither, or the text there is not valid JSON.
    """
    _, opened, rest = reply.partition("```json")
    block, closed, _ = rest.partition("```")
    text = block if opened and closed else reply[reply.find("{") : reply.rfind("}") + 1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def qa_score(reply: str) -> int | None:
    """The grade of an answer, 0 to 3; None when the reply has no JSON object with a `score` on that scale."""
    score = _number(extract_json(reply), "score")
    return int(score) if score in QA_SCORES else None


def memory_verdict(reply: str) -> tuple[float | None, float | None]:
    """The memory judge's recall and helpfulness; each is None when the reply has none on its scale.

    The recall is the share of the gold memories whose content was retrieved, in [0, 1]. The helpfulness is 0 where retrieved memories
    contradict one another, 1 where they are partial, 2 where they are comprehensive.
    """
    value = extract_json(reply)
    recall, helpful = _number(value, "Mem_recall"), _number(value, "Mem_helpful_score")
    return (
        recall if recall is not None and 0 <= recall <= 1 else None,
        helpful if helpful is not None and 0 <= helpful <= 2 else None,
    )


def _number(value: Any, field: str) -> float | None:
    number = value.get(field) if isinstance(value, dict) else None
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None

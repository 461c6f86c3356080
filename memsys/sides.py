"""The views of a dialogue: each side in turn as the user, as in the evaluations of Mem0 and MemOS.

Each view keeps its own memories. A recall divides its `k` among the views.
"""

from __future__ import annotations

from collections.abc import Mapping

from data_loaders.schema import Role

SIDES: Mapping[str, tuple[Role, ...]] = {"both": ("user", "assistant"), "user": ("user",)}
"""For each value of the setting `views`, the sides that are the user in turn."""


def shares(k: int, count: int) -> list[int]:
    """`k` divided into `count` (at least 1) parts that differ by at most 1, the larger parts first."""
    share, rest = divmod(k, count)
    return [share + (place < rest) for place in range(count)]

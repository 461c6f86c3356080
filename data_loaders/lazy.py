"""Cases that are parsed on access, so that a data set larger than memory can be iterated over and scheduled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from data_loaders.raw import check_unique
from data_loaders.schema import Case


class LazyCases(Sequence[Case]):
    """A sequence of cases whose ids and sizes are known at once and whose contents are parsed on access.

    Parsed cases are not cached: accessing a case twice parses it twice. A slice is lazy too.
    """

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    """Approximate size of each case, in bytes or turns, comparable within one data set; the longest case is scheduled first."""

    def __init__(self, ids: Sequence[str], sizes: Sequence[int], parse: Callable[[int], Case]) -> None:
        """`parse(i)` returns the case `ids[i]`.

        Raises DataError for an id that occurs twice, ValueError for unequal lengths.
        """
        if len(ids) != len(sizes):
            raise ValueError(f"{len(ids)} ids but {len(sizes)} sizes")
        check_unique(ids, "case ids")
        self.ids = tuple(ids)
        self.sizes = tuple(sizes)
        self._parse = parse

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> LazyCases: ...
    def __getitem__(self, index: int | slice) -> Case | LazyCases:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        return self._parse(range(len(self))[index])

    def __iter__(self) -> Iterator[Case]:
        # Replaces Sequence's own, which takes an IndexError raised inside `parse` for the end of the data.
        return (self._parse(index) for index in range(len(self)))

    def select(self, indices: Sequence[int]) -> LazyCases:
        """The cases at these positions, in this order, still unparsed."""
        kept = tuple(range(len(self))[index] for index in indices)
        return LazyCases(
            [self.ids[index] for index in kept],
            [self.sizes[index] for index in kept],
            lambda position: self._parse(kept[position]),
        )


def as_lazy(cases: Sequence[Case]) -> LazyCases:
    """The same cases as `LazyCases`; for another kind of sequence, sizes are numbers of turns."""
    if isinstance(cases, LazyCases):
        return cases
    return LazyCases(
        [case.id for case in cases],
        [sum(len(session.turns) for session in case.sessions) for case in cases],
        cases.__getitem__,
    )

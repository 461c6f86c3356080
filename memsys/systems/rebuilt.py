"""The base of memories that keep all units and build their structure offline (RAPTOR, GraphRAG, LATTICE)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from data_loaders.schema import Unit
from memsys.interface import MemorySystem


class RebuiltMemory(MemorySystem):
    """Builds its whole structure again in `consolidate` when units have been written since the last build; a read uses the last build."""

    EMBEDS_UNITS: ClassVar = False
    OFFLINE: ClassVar = True

    def __init__(self) -> None:
        self._units: list[Unit] = []
        self._built = 0
        """Number of units in the last build."""

    def write(self, unit: Unit) -> None:
        self._units.append(unit)

    def consolidate(self) -> None:
        if self._built < len(self._units):
            self._build()
            self._built = len(self._units)

    @abstractmethod
    def _build(self) -> None:
        """Build the structure of all units."""

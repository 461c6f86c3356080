"""The reference memory service on this machine: `python -m scripts mock-memory --port 8095`, with a fault: `--fault "k ignored"`."""

from __future__ import annotations

from scripts.mock.memory_service import main

GROUP = "develop"
__all__ = ["main"]

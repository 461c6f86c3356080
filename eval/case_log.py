"""The files of one case while it runs, and what a step cost as a line of them."""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_loaders.schema import Case
from eval.records import Effort, Outcome, Prediction
from eval.run import Run
from eval.store import (
    Appender,
    item_key,
    item_record,
    read_items,
    read_lines,
    read_predictions,
    replace_file,
    write_lines,
)
from memsys.interface import Item, MemorySystem, NodeView
from memsys.llm.meter import Ledger
from memsys.llm.secrets import redact

Recalled = tuple[tuple[str, ...], tuple[float, ...]]
"""Hashes of recalled items, and the memory's own score of each, to four decimals."""
NOTHING: Recalled = (), ()


class CaseLog:
    """The files of one case while it runs."""

    def __init__(
        self, run: Run, case: Case, folder: Path, done: Mapping[str, Prediction], left: Collection[str]
    ) -> None:
        self.run, self.case_id, self.left, self._folder = run, case.id, left, folder
        self._items = read_items(folder)
        write_lines(folder / "predictions.jsonl", done.values())
        write_lines(folder / "items.jsonl", self._items.values())
        write_lines(folder / "effort.jsonl", _kept_effort(folder, done))
        self._predictions = Appender(folder / "predictions.jsonl")
        self._item_lines = Appender(folder / "items.jsonl")
        self._efforts = Appender(folder / "effort.jsonl")
        self._lock = threading.Lock()
        self._trouble: list[str] = []
        self._report: dict[str, Any] = {}
        self._hidden_root = False

    def recalled(self, items: Sequence[Item]) -> Recalled:
        """Write down the items that are new, and say what a prediction keeps of them all."""
        keys = tuple(map(item_key, items))
        for key, item in zip(keys, items, strict=True):
            with self._lock:  # until the line is out: another thread's prediction may name it next
                if key not in self._items:
                    self._items[key] = item_record(key, item)
                    self._item_lines.add(self._items[key])
        return keys, tuple(round(float(item.score), 4) for item in items)

    def predicted(
        self,
        question_id: str,
        outcome: Outcome,
        answer: str,
        error: str = "",
        recalled: Recalled = NOTHING,
        cut: bool = False,
    ) -> None:
        self._predictions.add(Prediction(self.case_id, question_id, answer, *recalled, outcome, error, cut))

    def trouble(self, error: BaseException) -> None:
        with self._lock:
            self._trouble.append(redact("".join(traceback.format_exception(error))))

    def spent(self, effort: Effort) -> None:
        self._efforts.add(effort)

    def structure(self, memory: MemorySystem, first: CaseLog | None = None) -> None:
        """Dump the finished structure: `nodes.jsonl`, and `vectors.npy` with one row a node (zeros where it has none).

        Args:
            memory: as it stands at the end.
            first: a log of the same build that is written already: its vectors are linked, not stored again.
        """
        self._report, self._hidden_root = memory.report(), memory.HIDDEN_ROOT
        place = self._folder / "vectors.npy"
        place.unlink(missing_ok=True)
        nodes = list(memory.nodes())
        if not nodes:
            return
        write_lines(
            self._folder / "nodes.jsonl",
            (
                {
                    "id": node.id,
                    "parents": node.parents,
                    "level": node.level,
                    "kind": node.kind,
                    "text": node.text,
                    "sources": node.sources,
                    "start": node.start.isoformat() if node.start else None,
                    "end": node.end.isoformat() if node.end else None,
                }
                for node in nodes
            ),
        )
        if self.run.vectors:
            content = _as_npy(nodes)
            if first is None or not _linked(first._folder / "vectors.npy", place, content):
                replace_file(place, content)

    def finish(self, case: Case, dropped: Sequence[str]) -> None:
        """Sort what arrived in any order, and say what the case was."""
        self.close()
        order = {question.id: index for index, (question, _) in enumerate(case.questions)}
        lines = read_predictions(self._folder)
        write_lines(self._folder / "predictions.jsonl", sorted(lines.values(), key=lambda one: order[one.question_id]))
        write_lines(self._folder / "items.jsonl", sorted(self._items.values(), key=lambda one: str(one["key"])))
        if self._trouble:
            (self._folder / "errors.log").write_text("\n".join(self._trouble), encoding="utf-8")
        write_lines(
            self._folder / "case.json",
            [
                {
                    "case_id": case.id,
                    "cluster": case.cluster or case.id,
                    "dropped_turns": dropped,
                    "notes": case.notes,
                    "memory": self._report,
                    "hidden_root": self._hidden_root,
                }
            ],
        )

    def close(self) -> None:
        for file in (self._predictions, self._item_lines, self._efforts):
            file.close()


def _linked(stored: Path, place: Path, content: bytes) -> bool:
    """Whether a second name was made for a file of this content; not every file system has such names."""
    try:
        if stored.read_bytes() != content:
            return False
        place.hardlink_to(stored)
    except (OSError, NotImplementedError):
        return False
    return True


def _as_npy(nodes: Sequence[NodeView]) -> bytes:
    """The vectors of nodes, float32 [nodes, d], as the content of a `.npy` file."""
    width = max((len(node.vector) for node in nodes if node.vector is not None), default=0)
    rows = [np.zeros(width, dtype=np.float32) if node.vector is None else node.vector for node in nodes]
    held = io.BytesIO()
    np.save(held, np.stack(rows) if width else np.empty((len(nodes), 0), dtype=np.float32))
    return held.getvalue()


def effort(
    case_id: str,
    phase: str,
    subject: str,
    held: int,
    ledger: Ledger,
    own_cpu: float,
    context_tokens: int = 0,
    dropped: int = 0,
) -> Effort:
    """A ledger as a line of `effort.jsonl`."""
    return Effort(
        case_id=case_id,
        subject=subject,
        phase=phase,
        held=held,
        calls=dict(ledger.calls),
        attempts=dict(ledger.attempts),
        failures=dict(ledger.failures),
        parse_failures=dict(ledger.parse_failures),
        notes=dict(ledger.notes),
        sent=ledger.sent,
        tokens_in=ledger.tokens_in,
        tokens_out=ledger.tokens_out,
        tokens_cached=ledger.tokens_cached,
        tokens_reasoning=ledger.tokens_reasoning,
        embedding_calls=ledger.embedding_calls,
        embedding_tokens=ledger.embedding_tokens,
        provider_seconds=round(ledger.critical_seconds, 6),
        provider_seconds_sum=round(ledger.seconds, 6),
        own_cpu_seconds=round(own_cpu, 6),
        context_tokens=context_tokens,
        dropped_items=dropped,
    )


def _kept_effort(folder: Path, done: Mapping[str, Prediction]) -> list[dict[str, Any]]:
    """On resume the build is done again, from the cache: only the lines of questions that keep their answers stay."""
    return [
        record
        for record in read_lines(folder / "effort.jsonl", fields=("phase", "subject"))
        if record["phase"] in ("read", "answer") and record["subject"] in done
    ]

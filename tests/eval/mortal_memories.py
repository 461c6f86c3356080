"""Memories and models for tests of workers: importable there, unlike what stands in a test module."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import HashingEmbedder
from memsys.interface import Recall
from memsys.llm import meter
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import Completion, Request
from memsys.systems.bm25 import BM25


class Mortal(BM25):
    """BM25 that kills its process when it reads question `q2` of one history, as often as the folder `lives` has files."""

    def __init__(self, lives: str, victim: str = "case-1", k: int = 3) -> None:
        super().__init__(k=k)
        self.lives, self.victim, self._first = lives, victim, ""

    def write(self, unit: Unit) -> None:
        self._first = self._first or unit.text
        super().write(unit)

    def read(self, question: Question) -> Recall:
        if question.id == "q2" and self.victim in self._first:
            for life in sorted(Path(self.lives).iterdir())[:1]:
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read(question)


class Loud(BM25):
    """BM25 that prints what it is told, with an escape sequence."""

    def write(self, unit: Unit) -> None:
        for stream in (sys.stdout, sys.stderr):
            print(f"told\x1b[2J {unit.text}", file=stream, flush=True)
        super().write(unit)


class Slow(BM25):
    """BM25 whose first read takes a minute; the file `pids` gets the number of its process."""

    def __init__(self, pids: str, k: int = 3) -> None:
        super().__init__(k=k)
        self.pids = pids

    def read(self, question: Question) -> Recall:
        with open(self.pids, "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(60)
        return super().read(question)


class Patient(BM25):
    """BM25 whose first read of a history notes its process in the file `seen`, and waits for the file `go` beside it."""

    def __init__(self, seen: str, k: int = 3) -> None:
        super().__init__(k=k)
        self.seen, self._read_before = seen, False

    def read(self, question: Question) -> Recall:
        if not self._read_before:
            self._read_before = True
            with open(self.seen, "a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            go, deadline = Path(self.seen).with_name("go"), time.monotonic() + 120
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        return super().read(question)


class Full(BM25):
    """BM25 on a machine whose disk is full when one history is written."""

    def __init__(self, victim: str, k: int = 3) -> None:
        super().__init__(k=k)
        self.victim = victim

    def write(self, unit: Unit) -> None:
        if self.victim in unit.text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "items.jsonl")
        super().write(unit)


class Counted:
    """The offline engine behind a counter: no worker may run it, because it is not the engine itself."""

    def __init__(self, fail_at: int | None = None, error: Exception | None = None) -> None:
        self.calls, self.fail_at, self.error = 0, fail_at, error
        self.threads: set[int] = set()
        self._engine = ExtractiveLLM()

    def submit(self, request: Request) -> Future[Completion]:
        self.calls += 1
        self.threads.add(os.getpid())
        if self.calls == self.fail_at and self.error is not None:
            failed: Future[Completion] = Future()
            threading.Timer(0.01, lambda: failed.set_exception(self.error)).start()
            return failed
        return self._engine.submit(request)


class CountedEmbedder:
    """The hashing embedder behind a counter, with a note for each call."""

    def __init__(self) -> None:
        self.calls, self._inner = 0, HashingEmbedder(64)

    def embed(self, texts: list[str], *, query: bool = False) -> np.ndarray:
        self.calls += 1
        meter.note("embedding_truncated")
        return self._inner.embed(texts, query=query)

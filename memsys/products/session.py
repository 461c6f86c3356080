"""A product's session for one case: its worker, its account at the gateway, and the restart of a worker that has ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from memsys.llm import meter
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.server import Gateway
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.products.places import Place
from memsys.products.process import Crashed, Hung, WorkerError, WorkerProcess


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that a worker may take."""

    open_seconds: float
    step_seconds: float
    memory_mb: int
    """0 = no limit."""
    restarts: int
    """Maximum number of restarts after a worker died; a new worker gets the same history again, with replies from the cache."""


class ProductSession:
    """Passes steps to a worker. A new worker is started for the first step, and after a worker has died.

    Steps are taken one at a time, also if they come from different threads.

    Args:
        opening: the values that the product is built with, in addition to the gateway's address.
    """

    def __init__(
        self, gateway: Gateway, account: Account, place: Place, opening: Mapping[str, Any], limits: Limits
    ) -> None:
        self._gateway, self._account, self._place = gateway, account, place
        self._opening, self._limits = dict(opening), limits
        self._process: WorkerProcess | None = None
        self._history: list[tuple[str, dict[str, Any]]] = []
        self._closed = False
        self._token = gateway.new_token(account.client)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Restarts, crashes, hangs, errors and garbage lines of all workers so far."""
        self.refused: Counter[str] = Counter()
        self.abilities: dict[str, Any] = {}

    def opens_with(self, more: Mapping[str, Any]) -> None:
        """Add to the values that the product is built with; a worker that is already running does not get them."""
        self._opening.update(more)

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 if none is running."""
        return 0 if self._process is None else self._process.pid

    def build(self, step: str, given: dict[str, Any]) -> Any:
        """Take a step that changes the memory.

        Raises:
            WorkerError: the step failed.
            ModelError: a model call failed for good, even if the product ignored it.
        """
        with self._lock:
            value = self._step(self._living(), step, given, "build")
            self._history.append((step, given))
        return value

    def read(self, step: str, given: dict[str, Any], scope: str) -> Any:
        """Take a step that changes nothing. Raises as `build`."""
        with self._lock:
            return self._step(self._living(), step, given, scope)

    def close(self) -> None:
        """End the worker for good."""
        with self._lock:
            self._closed = True
            self._end()
            self._gateway.dismiss(self._token)

    def _living(self) -> WorkerProcess:
        """The worker, started if need be, with the history written so far.

        Raises:
            WorkerError: it cannot be started, or was restarted too often.
        """
        if self._process is not None:
            return self._process
        if self._closed:
            raise WorkerError(f"{self._place.name} is closed")
        if self.counts["starts"] > self._limits.restarts:
            raise WorkerError(f"{self._place.name} died {self.counts['starts']} times; not started again")
        again = self.counts["starts"] > 0
        self.counts["starts"] += 1
        if again:
            meter.note("released.restart")
        with metering() as ledger:  # the cost of a history was charged when it was written first
            self._process = process = self._started()
            self._open(process)
            for step, given in self._history:
                self._step(process, step, given, "build")
        if not again:
            self.counts["calls_at_opening"] = sum(ledger.calls.values())
        return process

    def _started(self) -> WorkerProcess:
        """A new worker.

        Raises:
            WorkerError: it ended before its first step.
        """
        if not self._account.base_url:
            self._gateway.open(self._token, self._account)
        port, limit = urlsplit(self._account.base_url).port or 0, self._limits.memory_mb
        try:
            return WorkerProcess(self._place.python, self._place.adapter, port, self._gateway.also_on, limit)
        except WorkerError as error:
            self.counts[type(error).__name__.lower()] += 1
            raise

    def _open(self, process: WorkerProcess) -> None:
        address = urlsplit(self._account.base_url)
        opening = {
            **self._opening,
            "base_url": self._account.base_url,
            "host": address.hostname,
            "port": address.port,
            "key": "gateway",
            "scratch": str(process.scratch),
            "memory_mb": self._limits.memory_mb,
        }
        abilities = self._step(process, "open", opening, "build", self._limits.open_seconds, afresh=True)
        self.abilities = {**dict(abilities or {}), "sandbox": process.sandbox}

    def _step(
        self,
        process: WorkerProcess,
        step: str,
        given: dict[str, Any],
        scope: str,
        seconds: float | None = None,
        *,
        afresh: bool = False,
    ) -> Any:
        account, before, garbage = self._account, process.cpu, process.garbage
        with account.credit(scope, afresh=afresh):
            try:
                value = process.ask(step, given, seconds or self._limits.step_seconds, lambda: bool(account.failures))
            except WorkerError as error:
                self.counts[type(error).__name__.lower()] += 1
                if isinstance(error, Crashed | Hung):
                    self._end()
                self._raise_failures(step, error)
                raise
            finally:
                if (ledger := meter.current()) is not None:
                    ledger.add_worker_cpu(max(0.0, process.cpu - before))
                self.counts["garbage"] += process.garbage - garbage
                self.refused = Counter(process.refused)
            self._raise_failures(step, None)
        return value

    def _raise_failures(self, step: str, cause: Exception | None) -> None:
        """Raise the failure of a model call of this step. After a write that went on without the reply, the worker is ended.

        Raises:
            ModelError: a call failed; an `EndOfRun` is raised before other errors.
        """
        failures = list(self._account.failures)
        if not failures:
            return
        if step != "read":
            self._end()
        failure: ModelError = next((each for each in failures if isinstance(each, EndOfRun)), failures[0])
        raise failure from cause

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

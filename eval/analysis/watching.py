"""Progress of the runs below a results folder, from their files alone: nothing is locked, and a second look reads only new lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.analysis.costs import BATCH_EMBEDDED, PROBE, ROLES, TOKENS, embedded_again, in_batches
from eval.files.fields import wrong_field
from eval.files.run_folder import COSTS, EFFORTS, PREDICTIONS, RunFolder, RunRecord, judge_metric
from eval.files.store import RunError, read_record
from memsys.jsons import decoded

EMBEDDER = "embedder"


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a run at one moment."""

    folder: Path
    record: RunRecord
    """The content of `run.json`."""
    cases: int
    """Number of finished cases."""
    answered: int
    """Questions with an answer, or whose search the memory gave up."""
    errors: int
    """Questions that failed."""
    judged: int
    """Verdicts of judges, those without a verdict included."""
    usage: Mapping[str, Mapping[str, int]]
    """Tokens (`TOKENS`) by role; a judge's role is `judge <name of its model>`."""
    batched: Mapping[str, Mapping[str, float]]
    """The part of these tokens that came in batches."""
    failed_calls: int
    damaged: int
    """Number of lines that are no JSON objects with fields of the right types."""
    last: float
    """Unix time of the last line that was written."""

    @property
    def tokens(self) -> int:
        """Tokens in and out of all roles, embedded ones included."""
        return sum(tokens["tokens_in"] + tokens["tokens_out"] for tokens in self.usage.values())


@dataclass
class _File:
    """A growing file: the position up to which it was read, and the sums over its lines."""

    inode: int = 0
    offset: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome by question id; a later line replaces an earlier one."""
    lines: int = 0
    usage: dict[str, Counter[str]] = field(default_factory=dict)
    batched: dict[str, Counter[str]] = field(default_factory=dict)
    ahead: Counter[str] = field(default_factory=Counter)
    """As for `embedded_again`."""
    failed_calls: int = 0
    damaged: int = 0


class Watcher:
    """Looks at runs again and again."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}

    def runs(self, results: Path) -> list[Seen]:
        """All runs below a results folder that have begun, by data set and memory."""
        return [seen for run in RunFolder.all(results) if (seen := self.run(run.path)) is not None]

    def run(self, folder: Path) -> Seen | None:
        """One run; None where its `run.json` cannot be read, because it is being removed or is damaged."""
        run = RunFolder(folder)
        try:
            record = RunRecord.of(read_record(run.file), run.file, whole=False)
        except (OSError, RunError):
            return None
        scores = run.score_files(judge_metric("*"))
        answers = [self._file(path, "") for path in run.written(PREDICTIONS)]
        efforts = [self._file(path, "") for path in run.written(EFFORTS)]
        verdicts = [self._file(path, "") for path in scores]
        judges = [self._file(path, _judge(path)) for path in run.score_costs()]
        outcomes = Counter(outcome for file in answers for outcome in file.outcomes.values())
        files = [*answers, *efforts, *verdicts, *judges]
        written = [*run.written("*.json*"), *run.score_files(), *run.score_costs(), run.file]
        return Seen(
            folder,
            record,
            cases=len(run.complete()),
            answered=outcomes.total() - outcomes["error"],
            errors=outcomes["error"],
            judged=sum(file.lines for file in verdicts),
            usage=_added(file.usage for file in files),
            batched=_added(file.batched for file in files),
            failed_calls=sum(file.failed_calls for file in files),
            damaged=sum(file.damaged for file in files),
            last=max(map(_changed, written)),
        )

    def _file(self, path: Path, judge: str) -> _File:
        """The sums of a file, with the lines that were appended since the last look; a file that was replaced is read again."""
        known = self._files.setdefault(path, _File())
        try:
            with path.open("rb") as handle:
                state = path.stat()
                if state.st_ino != known.inode or state.st_size < known.offset:
                    known = self._files[path] = _File(inode=state.st_ino)
                handle.seek(known.offset)
                content = handle.read()
        except FileNotFoundError:
            return self._files.setdefault(path, _File())
        whole = content[: content.rfind(b"\n") + 1]  # the last line may still be being written
        known.offset += len(whole)
        for line in whole.splitlines():
            _add(known, line, judge)
        return known


def _add(file: _File, line: bytes, judge: str) -> None:
    try:
        record = decoded(line)
        if not isinstance(record, dict) or wrong_field([record]):
            raise ValueError
        file.lines += 1
        if "outcome" in record:
            file.outcomes[record["question_id"]] = record["outcome"]
        if "phase" in record:
            _add_effort(file, record, judge)
    except (ValueError, KeyError):
        file.damaged += 1


def _add_effort(file: _File, record: Mapping[str, Any], judge: str) -> None:
    tokens = Counter({name: record[name] for name in TOKENS})
    probed = record.get("roles", {}).get(PROBE, {})
    probe = Counter({name: probed.get(name, 0) for name in TOKENS})
    role = f"judge {judge}" if judge else ROLES[record["phase"]]
    embedded = Counter({"tokens_in": record["embedding_tokens"] - embedded_again(file.ahead, record)})
    share = embedded["tokens_in"] / max(1, record["embedding_tokens"])  # vectors that were bought ahead are no new ones
    vectors: Any = {"tokens_in": record["notes"].get(BATCH_EMBEDDED, 0) * share}
    for name, used, batched in (
        (role, tokens - probe, in_batches(record, probed)),
        (PROBE, probe, {}),
        (EMBEDDER, embedded, vectors),
    ):
        if used.total():
            file.usage.setdefault(name, Counter()).update(used)
        if sum(batched.values()):
            file.batched.setdefault(name, Counter()).update(batched)
    file.failed_calls += sum(record["failures"].values())


def _judge(path: Path) -> str:
    """Name of the model behind a judge's effort file, from the settings file next to it."""
    try:
        settings = read_record(path.with_name(path.name.replace(COSTS, ".json")))
    except (OSError, RunError):
        return "unknown"
    return str(settings.get("model_name", "unknown"))


def _added(usages: Iterator[Mapping[str, Counter[str]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for usage in usages:
        for role, tokens in usage.items():
            sums.setdefault(role, Counter()).update(tokens)
    return {role: {name: tokens[name] for name in TOKENS} for role, tokens in sorted(sums.items())}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

"""Progress of the runs below a results folder, from their files alone: nothing is locked, and a second look reads only new lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from eval.analysis.costs import NEEDED, ROLES, PhaseCost, Spent, Sums, batch_discount, phase_cost
from eval.files.fields import wrong_field
from eval.files.run_folder import COSTS, EFFORTS, PREDICTIONS, RunFolder, RunRecord, judge_metric
from eval.files.store import RunError, read_record
from memsys.jsons import decoded


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
    costs: tuple[PhaseCost, ...]
    """Costs of each phase, then of each judge, whose role is `judge <name of its model>`."""
    failed_calls: int
    damaged: int
    """Number of lines that are no JSON objects with the fields of such a line and their types."""
    last: float
    """Unix time of the last line that was written."""

    @property
    def tokens(self) -> int:
        """Tokens in and out of all roles, embedded ones included."""
        return sum(cost.tokens_in + cost.tokens_out + cost.embedding_tokens for cost in self.costs)


@dataclass
class _File:
    """A growing file: the position up to which it was read, and the sums over its lines."""

    inode: int = 0
    offset: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome by question id; a later line replaces an earlier one."""
    lines: int = 0
    spent: Spent = field(default_factory=Spent)
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
        answers = [self._file(path) for path in run.written(PREDICTIONS)]
        efforts = [self._file(path) for path in run.written(EFFORTS)]
        verdicts = [self._file(path) for path in scores]
        judges = {path: self._file(path) for path in run.score_costs()}
        outcomes = Counter(outcome for file in answers for outcome in file.outcomes.values())
        spent: dict[tuple[str, str], Sums] = {}  # by phase and role
        for role, file in [*(("", file) for file in efforts), *((_judge(path), judges[path]) for path in judges)]:
            for phase, sums in file.spent.by_phase().items():
                if sums["steps"]:
                    spent.setdefault((phase, role or ROLES[phase]), Sums()).update(sums)
        discount = batch_discount(record.made_with)
        written = [*run.written("*.json*"), *run.score_files(), *run.score_costs(), run.file]
        return Seen(
            folder,
            record,
            cases=len(run.complete()),
            answered=outcomes.total() - outcomes["error"],
            errors=outcomes["error"],
            judged=sum(file.lines for file in verdicts),
            costs=tuple(phase_cost(phase, role, sums, discount) for (phase, role), sums in spent.items()),
            failed_calls=sum(sums["failures"] for sums in spent.values()),
            damaged=sum(file.damaged for file in (*answers, *efforts, *verdicts, *judges.values())),
            last=max(map(_changed, written)),
        )

    def _file(self, path: Path) -> _File:
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
            _add(known, line)
        return known


def _add(file: _File, line: bytes) -> None:
    try:
        record = decoded(line)
        if not isinstance(record, dict) or wrong_field(record):
            raise ValueError
        if "outcome" in record:
            file.outcomes[record["question_id"]] = record["outcome"]
        if "phase" in record:
            if not record.keys() >= {*NEEDED}:  # nothing of a damaged line is added
                raise ValueError
            file.spent.add(record)
        file.lines += 1
    except (ValueError, KeyError):
        file.damaged += 1


def _judge(path: Path) -> str:
    """The role of a judge: the name of the model behind its effort file, from the settings file next to it."""
    settings = path.with_name(path.name.replace(COSTS, ".json"))
    try:
        return f"judge {read_record(settings).get('model_name', 'unknown')}"
    except (OSError, RunError):
        return "judge unknown"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

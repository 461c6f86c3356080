"""One trial of the campaign: a run of one memory on a small history, and the guarantees that must hold after any disturbance."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsys.llm.stopping import SAID

if TYPE_CHECKING:
    from scripts.settings.schema import Single

ROOT = Path(__file__).resolve().parents[3]
KEY_ENV = "TORTURE_KEY"
KEY = "sk-torture-6a1fd0c2b7e94853"
"""A key that no file may hold; replies of the catalogue echo it."""
IN_FLIGHT = 8
QUESTIONS = 3
"""Number of questions about the small history; the shipped sample has `SAMPLE`."""
SAMPLE = 48
PATIENCE = 600.0
"""Seconds after which a trial counts as hung: a run of a second takes two minutes at the lowest priority of a busy machine."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COUNTS = re.compile(r"· (\d+)/(\d+)/(\d+)/(\d+)")
"""scored/unscored/errored/not reached, in the format of tables."""


@dataclass
class Outcome:
    """Attempts and failures of a part of the campaign."""

    part: str
    tried: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    replies: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    """For the catalogue: counts of the ends of runs, by the reply's description and kind."""

    def to_json(self) -> str:
        return json.dumps({**vars(self), "replies": [[*kind, ends] for kind, ends in self.replies.items()]})

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        value = json.loads(text)
        replies = {(to, kind): Counter(ends) for to, kind, ends in value["replies"]}
        return cls(value["part"], Counter(value["tried"]), value["defects"], replies)

    def add(self, other: Outcome) -> None:
        self.tried += other.tried
        self.defects += other.defects
        for kind, ends in other.replies.items():
            self.replies[kind] = self.replies.get(kind, Counter()) + ends


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command."""

    code: int
    out: str
    err: str


def history(folder: Path, sessions: int = 2, turns: int = 6) -> Path:
    """A data root with a LoCoMo of one history: the beginning of the first history of the shipped sample."""
    (record, *_) = json.loads((ROOT / "data_loaders" / "samples" / "locomo.json").read_text(encoding="utf-8"))
    talk = record["conversation"]
    kept = {name: talk[name] for name in ("speaker_a", "speaker_b")}
    for number in range(1, sessions + 1):
        name = f"session_{number}"
        kept |= {name: talk[name][:turns], f"{name}_date_time": talk[f"{name}_date_time"]}
    told = {turn["dia_id"] for number in range(1, sessions + 1) for turn in kept[f"session_{number}"]}
    asked = [one for one in record["qa"] if set(one["evidence"]) <= told]
    path = folder / "locomo" / "locomo10.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    assert len(asked) >= QUESTIONS
    path.write_text(json.dumps([{**record, "conversation": kept, "qa": asked[:QUESTIONS]}]), encoding="utf-8")
    return folder


def settings(memory: str, url: str, results: Path, *more: str, data: Path | None = None) -> list[str]:
    """The command line of a run against a server; on the shipped sample, or on the history below `data`."""
    small = [] if data is None else ["data.source=real", f"data.root='{data}'", "data.unpinned=true"]
    models = [f"models.{role}=mock" for role in ("memory", "reader", "judge", "embedder")]
    place = [f"endpoint.base_url={url}", "endpoint.label=mock", f"endpoint.key_env={KEY_ENV}", "endpoint.probe=false"]
    limits = [f"endpoint.in_flight={IN_FLIGHT}", "endpoint.backoff=0.01", "endpoint.patience=5"]
    return [
        *("dataset=locomo", f"memory={memory}", "network=true", "threads=2", "print=plain", f"results='{results}'"),
        *(*models, *place, *limits, *quick(memory), *small, *more),
    ]


def quick(memory: str) -> list[str]:
    """Settings that only save time: UMAP compiles for half a minute, and mixtures of 50 components take long to fit."""
    from hydra.utils import get_class

    from memsys.interface import parameters
    from scripts.setup.options import load_option

    takes = parameters(get_class(load_option("memory", memory)["build"]["_target_"]))
    wanted = {"reducer": "pca", "max_components": 4}
    return [f"++memory.build.{name}={value}" for name, value in wanted.items() if name in takes]


def run_here(cfg: Single, **changed: Any) -> Ended:
    """Run `memsys-bench run` in a thread of this process, which is abandoned when it hangs; `changed` are changed settings.

    Raises:
        TimeoutError: it did not end within `PATIENCE`.
    """
    from scripts.commands import run
    from scripts.setup.exits import guarded

    out, err, codes = io.StringIO(), io.StringIO(), list[int]()

    def work() -> None:
        try:
            codes.append(guarded(lambda: run.main(cfg.changed(**changed))))
        except BaseException as error:
            import traceback

            err.write("".join(traceback.format_exception(error)))
            codes.append(1)

    with redirect_stdout(out), redirect_stderr(err):
        thread = threading.Thread(target=work, name="trial", daemon=True)
        thread.start()
        thread.join(PATIENCE)
    if thread.is_alive():
        raise TimeoutError(f"hangs: not over after {PATIENCE:.0f} s")
    return Ended(codes[0], out.getvalue(), err.getvalue())


def environment() -> dict[str, str]:
    return {**os.environ, KEY_ENV: KEY, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def results(folder: Path) -> dict[str, bytes]:
    """The results of a run, without its measured costs."""
    names = ("predictions.jsonl", "items.jsonl", "case.json", "nodes.jsonl")
    files = [path for name in names for path in folder.glob(f"runs/**/{name}")]
    files += [path for path in folder.glob("runs/**/scores/*.jsonl") if "effort" not in path.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def differing(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str:
    """Names of the files that differ; empty if all are equal."""
    return ", ".join(sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)))


def broken_promises(ended: Ended, folder: Path, questions: int) -> Iterator[str]:
    """Broken guarantees of a run that ended or was stopped."""
    lines = ended.err.strip().splitlines()
    last = lines[-1] if lines else ""
    if "Traceback" in ended.err:
        yield f"exit {ended.code} with a traceback that ends in {last[:300]!r}"
    elif ended.code in (0, 1):
        yield from _untrue_counts(ended, folder, questions)
    elif ended.code == 2:
        if not any(line.startswith("error: ") for line in lines):
            yield f"exit 2 without an error line, the last line is {last[:200]!r}"
    elif ended.code in [128 + number for number in SIGNALS]:
        if SAID not in ended.err:
            yield f"exit {ended.code} without saying so, the last line is {last[:200]!r}"
    else:
        yield f"exit code {ended.code}, the last line is {last[:200]!r}"
    yield from holding_key(folder)


def _untrue_counts(ended: Ended, folder: Path, questions: int) -> Iterator[str]:
    """Compare the row of the table with the number of questions, the files and the exit code."""
    row = next((line for line in ended.out.splitlines() if COUNTS.search(line)), "")
    cells = [tuple(map(int, counts)) for counts in COUNTS.findall(row)]
    if not cells:
        yield f"exit {ended.code} without a table"
        return
    errored = sum(one["outcome"] == "error" for one in predictions(folder))
    for cell in cells:
        if sum(cell) != questions:
            yield f"{'/'.join(map(str, cell))} of {questions} questions"
        if cell[2] != errored:
            yield f"the table counts {cell[2]} errors, the predictions {errored}"
    missing = max(1 - cell[0] / questions for cell in cells)
    complaint = "are not scored" in ended.err
    if (missing > 0.01) != (ended.code == 1) or complaint != (ended.code == 1):
        yield f"exit {ended.code} with {missing:.0%} not scored, standard error {'says' if complaint else 'does not say'} so"


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Complete lines of all predictions of a results folder; the later of two lines for a question."""
    found = {}
    for path in sorted(folder.glob("runs/**/predictions.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                one = json.loads(line)
            except ValueError:  # a line cut by a kill, or the empty text after the last line
                continue
            found[path, one["question_id"]] = one
    return list(found.values())


def holding_key(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and KEY.encode() in path.read_bytes():
            yield f"{path.relative_to(folder)} holds the key"

"""The most common reason for missing scores, with its count and a remedy."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from eval.files.provenance import PACKAGES, ROOT
from eval.files.run_folder import ERRORS, RunFolder, read_predictions
from eval.files.store import read_lines

_KNOWN = yaml.safe_load((ROOT / "conf" / "remedies.yaml").read_text(encoding="utf-8"))
DOCTOR: str = _KNOWN["doctor"]
WEB_PAGE: str = _KNOWN["web_page"]
REMEDIES = [(pattern, cure.format(doctor=DOCTOR)) for pattern, cure in _KNOWN["remedies"]]


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for missing scores."""

    text: str
    count: int
    """Number of scores missing for this reason: questions and judgements."""
    total: int
    """Number of scores missing for any reason."""
    log: Path | None = None
    """The `errors.log` with its traceback; None if no case wrote one."""

    def __str__(self) -> str:
        # Errors of these types come from a model's endpoint. Memories, products and services raise errors of other types.
        raised = re.match(r"[a-z ]+: ([A-Za-z_]\w*): ", self.text)
        of_endpoint = raised is None or raised[1] in ("ModelError", "ContextOverflow", "EndOfRun", "ReplyError")
        cure = remedy(self.text) if of_endpoint else _in_code(self.log, self.text)
        return f"the most common cause, {self.count} of {self.total}: {self.text}\n  remedy: {cure}"


def remedy(text: str, unknown: str = DOCTOR) -> str:
    """The remedy for an error message; `unknown` for a message that no pattern matches."""
    return next((cure for pattern, cure in REMEDIES if re.search(pattern, text, re.IGNORECASE | re.DOTALL)), unknown)


def _in_code(log: Path | None, text: str) -> str:
    """The place of an error, by the last traceback that ends with it, and the file with its traceback."""
    if log is None:
        return "the error is not the endpoint's: read what its memory, product or service logs"
    # Ray's copies of modules are gone after the run.
    content = re.sub(r'(?<=  File ")\S+/_ray_pkg_\w+', str(ROOT), log.read_text("utf-8", "replace"))
    before, raised, _ = content.rpartition(text.partition(": ")[2].partition("\n")[0] or text)
    tracebacks = before if raised else content
    frames = re.findall(r'^  File "([^"]+)", line (\d+), in (\S+)', tracebacks, re.MULTILINE)
    written = [frame for frame in frames if not _installed(frame[0])]
    ours = [ROOT / name for name in (*PACKAGES, "scripts")]
    users = [frame for frame in written if not any(Path(frame[0]).is_relative_to(folder) for folder in ours)]
    memories = [frame for frame in written if Path(frame[0]).is_relative_to(ROOT / "memsys" / "systems")]
    # A memory that calls a helper of ours wrongly is the place of the error, and not the helper that raises it.
    own = users or memories or written
    place = "{}:{} in {}; ".format(_short(own[-1][0]), *own[-1][1:]) if own else ""
    return f"{place}the whole traceback is in {log}"


def _installed(file: str) -> bool:
    """Whether a frame's file belongs to a package or to Python, or is no file, such as `<string>`."""
    path = Path(file)
    packaged = bool({"site-packages", "dist-packages"} & set(path.parts))
    return packaged or file.startswith("<") or path.is_relative_to(sysconfig.get_path("stdlib"))


def _short(file: str) -> str:
    """A path relative to the checkout or the working folder, if it is in one of them."""
    path = Path(file)
    return next((str(path.relative_to(folder)) for folder in (ROOT, Path.cwd()) if path.is_relative_to(folder)), file)


def commonest(folders: Iterable[Path], score_files: Iterable[Path]) -> Cause | None:
    """The most common reason in the predictions and scores of some runs; None if every question has its score."""
    lines = (line for path in dict.fromkeys(score_files) for line in read_lines(path))
    unscored: list[Reason] = [(line["why"] or "no reason given", None) for line in lines if line["value"] is None]
    reasons = [*_errors(dict.fromkeys(folders)), *unscored]
    kinds = Counter(_kind(reason) for reason, _ in reasons)
    if not kinds:
        return None
    kind, count = kinds.most_common(1)[0]
    of_kind = [(reason, log) for reason, log in reasons if _kind(reason) == kind]
    return Cause(of_kind[0][0], count, len(reasons), next((log for _, log in of_kind if log is not None), None))


Reason = tuple[str, Path | None]
"""The reason for a missing score, and the log of its case."""


def _errors(folders: Iterable[Path]) -> Iterator[Reason]:
    for folder in folders:
        for case in RunFolder(folder).cases():
            log = case / ERRORS
            for prediction in read_predictions(case).values():
                if prediction.outcome == "error":
                    yield prediction.error, log if log.is_file() else None


def _kind(reason: str) -> str:
    """The beginning of a message without the parts that differ from call to call: numbers, hashes and quoted text.

    The HTTP status is kept, because 401 and 429 are different causes.
    """
    status = re.search(r"HTTP \d{3}", reason)
    plain = re.sub(r"[0-9a-f]{8,}|\d+", "#", re.sub(r"'[^']*'", "'…'", reason))
    return f"{status[0] if status else ''} {plain[:160]}"

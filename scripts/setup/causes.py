"""The most common reason for missing scores, with its count and a remedy."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.files.provenance import PACKAGES, ROOT
from eval.files.run_folder import ERRORS, RunFolder, read_predictions
from eval.files.store import read_lines

DOCTOR = "`make doctor BASE_URL=… MODEL=…` shows what the endpoint accepts and writes settings that fit"
WEB_PAGE = r"the reply is not JSON: ['\"](\\[nrt]|\s)*<"
"""Pattern of the error message for a web page in the place of a model's reply."""
REMEDIES: tuple[tuple[str, str], ...] = (
    (r"replay: the cache", "the recorded run has not made this call; the same command without replay=true makes it"),
    (r"no key for", "set the environment variable it names (endpoint.key_env chooses another)"),
    (
        r"\[SSL",
        "the server speaks no TLS, or its certificate is not trusted: correct http:// or https:// and the name in endpoint.base_url "
        "(make … BASE_URL=), or export SSL_CERT_FILE with the certificate of its authority",
    ),
    (
        r"cannot connect|connection refused|Connect call failed|Cannot connect",
        "start the server, or correct endpoint.base_url (make … BASE_URL=)",
    ),
    (
        r"HTTP 40[13]\b",
        "the endpoint refuses the key: check the environment variable that endpoint.key_env names (default OPENAI_API_KEY)",
    ),
    (r"HTTP 402\b", "the account has no credit left: top it up; the same command goes on from there"),
    (r"HTTP 404.*\bmodel\b", "the endpoint does not serve this model: correct the name (make … MODEL=)"),
    (
        rf"HTTP 40[45]\b|{WEB_PAGE}",
        "the path is wrong: endpoint.base_url usually ends in /v1",
    ),
    (
        r"HTTP 4\d\d.*(context.{0,10}(length|size|window)|maximum context|n_ctx|too many tokens|prompt is too long)",
        "the prompt is longer than the model's window: serve it with a larger window, or make the prompt shorter: a smaller "
        "memory.build.k, or in a build the memory's limit on a prompt, if it has one (SegTreeMem: memory.build.summary_tokens)",
    ),
    (
        r"HTTP 4\d\d.*(response_format|json_schema|json_object|schema|grammar)",
        f"the endpoint accepts no such schema: set json_output to object or none in conf/llm/<model>.yaml; {DOCTOR}",
    ),
    (
        r"HTTP 4\d\d.*(max_tokens|max_completion_tokens|temperature|logprobs|reasoning_effort)",
        f"the endpoint refuses this field: set token_limit_field, send_temperature or reasoning_effort in conf/llm/<model>.yaml; {DOCTOR}",
    ),
    (r"HTTP 429\b", "too many calls for this endpoint: lower endpoint.in_flight, or look at the account's quota"),
    (
        r"no reply within",
        "the server answers too slowly: raise endpoint.timeout or lower endpoint.in_flight (of a memory's service: memory.build.…)",
    ),
    (r"HTTP 5\d\d\b", "the server fails: read its log; the same command tries these questions again"),
    (r"empty reply", f"the model returns no text: it may spend its whole token limit on thinking; {DOCTOR}"),
    (
        r"collected, not sent",
        "run the exported file, then `python -m scripts batch import FILE`; the same command goes on from there",
    ),
    (
        r"its worker process",
        "start fewer workers (workers=) if memory is short; executor=threads shows the error that ends them",
    ),
    (r"the metric returned|no reason given", "a metric that cannot score an answer returns Score(None, reason)"),
    (r"no verdict|without a verdict", "the judge's replies hold no verdict: use a stronger judge (make … JUDGE=)"),
)
"""Pattern of an error message, and its remedy; the first match counts."""


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

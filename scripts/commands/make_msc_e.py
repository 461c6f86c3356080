"""Generate conversations like MSC-E's: `python -m scripts make-msc-e --out DIR [--conversations 70 --rounds 200 --model NAME --base-url
URL]`.

After Rezazadeh et al. (MemTree, ICLR 2025), A.2.3 and A.2.4: a chat of MSC is continued by two rounds at a time, in view of its
last eight turns, until it has all its rounds, and each step gets a question that Bob can ask Alex about what Alex said in it.

**These are not the paper's data**, which were never published: results on them are not comparable with the paper's, and with
each other only on the same file. It is a data set version of its own (`VERSION`). The model is given by the user, the prompts
(`memsys/prompts/msc_e`) are in our own words, and where the paper gives no details the choices are ours:
- the seed is the first session of an MSC conversation, in file order and cut to an even number of rounds, so that no step lies
  across two bins of 40 rounds; speaker 1 is Alex. If there are fewer seeds than conversations, seeds are used again;
- all conversations have exactly the requested number of rounds (the paper: 200.3 ± 16.7), and one question per step, so about 97
  (the paper: 101.9 ± 8.6, for stretches of unknown length);
- the evidence of a question is the turns of its step, its position the round in which the step ends;
- a reply without the requested turns in strict alternation, or without a new question, is requested again, at most `--retries` times.

Every step is appended to `<out>/msc_e.jsonl.parts/`: the same command continues where it was stopped. When all steps are done,
`<out>/msc_e.jsonl` is written in the format of `data_loaders.msc_e`, and `msc_e.jsonl.about.json` records how it was made.

Without `--base-url` no model is called: turns of other MSC conversations continue the chat and the extractive engine makes the
questions. The result is a stand-in, and the file says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

from data_loaders.schema import Case
from data_loaders.source import Source, locate
from eval.files.provenance import surroundings
from eval.files.store import Appender, RunError, locked, read_lines, write_lines
from eval.report.counted import counted
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, parse
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.offline.reading import UNKNOWN
from memsys.llm.protocol import LLM, Completion, ModelError, Request
from memsys.prompts import Prompts
from memsys.tokens import count_tokens
from scripts.assembly.datasets import loader
from scripts.setup.arguments import amount, verb_parser, whole
from scripts.setup.options import load_option

GROUP = "data"

VERSION = "memsys-msc-e-1"
WHAT = (
    "Conversations generated after the description of MSC-E in MemTree (ICLR 2025, A.2.3 and A.2.4). Not the paper's data, "
    "which were never published: results on them are not comparable with the paper's."
)
NAMES = ("Alex", "Bob")
Round = tuple[str, str]
"""The turns of Alex and of Bob."""
STAND_IN = "STAND-IN: made without a model, from turns of other MSC conversations and the extractive engine; it tests machinery only."
WINDOW = 8
"""Number of turns shown to the model in a step."""
ROUNDS_A_STEP = 2
BIN = 40
"""Number of rounds per position in the paper's tables."""

T = TypeVar("T")
_LINE = re.compile(rf"[*_\s]*({'|'.join(NAMES)})[*_\s]*:[*_\s]*(\S.*)")


@dataclass(frozen=True, slots=True)
class Seed:
    """The beginning of a conversation."""

    number: int
    origin: str
    """Id of the MSC conversation."""
    draw: int
    """Number of earlier conversations of the set that began with it."""
    rounds: tuple[Round, ...]

    @property
    def id(self) -> str:
        return f"msc_e_{self.number}"


@dataclass(frozen=True, slots=True)
class Writer:
    """The model that continues the conversations, with its settings."""

    llm: LLM
    prompts: Prompts
    rounds: int
    retries: int
    parts: Path

    def part(self, seed: Seed) -> Path:
        return self.parts / f"{seed.id}.jsonl"


# --- seeds -------------------------------------------------------------------------------------------------------------


def seeds(cases: Iterable[Case], conversations: int, most: int) -> list[Seed]:
    """The beginnings of `count` conversations, of at most `most` rounds each.

    Raises:
        RunError: no case has a first session of two rounds.
    """
    openings = ((case.id, _opening(case, most)) for case in cases)
    usable = list(islice((opening for opening in openings if opening[1]), conversations))
    if not usable:
        raise RunError("the seeds have no first session of at least two rounds")
    again = enumerate(islice(cycle(usable), conversations))
    return [Seed(number, origin, number // len(usable), rounds) for number, (origin, rounds) in again]


def _opening(case: Case, most: int) -> tuple[Round, ...]:
    rounds = tuple(_rounds_of(case.sessions[0].turns))[:most] if case.sessions else ()
    return rounds[: len(rounds) - len(rounds) % ROUNDS_A_STEP]


def _rounds_of(turns: Sequence[Any]) -> Iterator[Round]:
    for first, second in zip(turns[::2], turns[1::2], strict=False):
        yield " ".join(first.text.split()), " ".join(second.text.split())


# --- one conversation --------------------------------------------------------------------------------------------------


def extend(writer: Writer, seed: Seed, stopped: Callable[[], bool], on_progress: Callable[[], None]) -> None:
    """Append the missing steps of a conversation to its part file, one line each, until it is complete or `stopped`.

    Raises:
        RunError: a reply could not be used after all attempts.
        ModelError: a call failed for good.
    """
    path = writer.part(seed)
    steps = read_lines(path)
    write_lines(path, steps)  # drops a last line that was cut by a kill
    said = [*seed.rounds, *rounds_in(steps)]
    asked = {_folded(step["question"]) for step in steps}
    book = Appender(path)
    try:
        while len(said) < writer.rounds and not stopped():
            step = _step(writer, seed, said, asked)
            book.add(step)
            said += rounds_in([step])
            asked.add(_folded(step["question"]))
            on_progress()
    finally:
        book.close()


def rounds_in(steps: Iterable[Mapping[str, Any]]) -> list[Round]:
    """The rounds of the steps in a part file."""
    return [(first, second) for step in steps for first, second in step["rounds"]]


def _step(writer: Writer, seed: Seed, said: Sequence[Round], asked: set[str]) -> dict[str, Any]:
    """The next rounds, the question about them, and their costs."""
    where = f"{seed.id} after round {len(said)}"
    count = min(ROUNDS_A_STEP, writer.rounds - len(said))
    names = {"first": NAMES[0], "second": NAMES[1]}
    place = {"number": seed.number, "round": len(said)}
    with meter.metering() as ledger:
        fields = {"recent": lines(said)[-WINDOW:], "rounds": count, "turns": 2 * count, **names, **place}
        request = replace(writer.prompts["msc_e/continue"].render(fields), sample=seed.draw)
        rounds = _usable(writer, request, lambda text: read_rounds(text, count), where)
        prompt = writer.prompts["msc_e/question"]
        fields = {"stretch": lines(rounds), "said": [first for first, _ in rounds], **names, **place}
        request = replace(prompt.render(fields), sample=seed.draw)
        pair = _usable(writer, request, lambda text: read_question(parse(text, prompt.schema, ()), asked), where)
    return {
        "rounds": rounds,
        **pair,
        "calls": dict(ledger.calls),
        "tokens_in": ledger.tokens_in,
        "tokens_out": ledger.tokens_out,
    }


def _usable(writer: Writer, request: Request, read: Callable[[str], T | ParseFailure], where: str) -> T:
    why = ""
    for retry in range(writer.retries + 1):
        reply = writer.llm.submit(replace(request, retry=retry)).result()
        value = ParseFailure(reply.text, f"the reply was {reply.stopped}") if reply.stopped else read(reply.text)
        if not isinstance(value, ParseFailure):
            return value
        meter.count_parse_failure(request.purpose)
        why = value.why
    raise RunError(
        f"{where}: no usable reply to {request.purpose} in {writer.retries + 1} attempts ({why}); "
        "the same command with a larger --retries goes on from here"
    )


def read_rounds(text: str, count: int) -> tuple[Round, ...] | ParseFailure:
    """The rounds that a reply writes as `Name: text` lines: exactly this many, in strict alternation, Alex first."""
    found = [_LINE.fullmatch(line) for line in text.split("\n") if line.strip()]
    if None in found:
        return ParseFailure(text, f"line {found.index(None) + 1} does not begin with a name and a colon")
    spoken = [(line[1], line[2].strip()) for line in found if line is not None]
    names = [name for name, _ in spoken]
    if names != [*NAMES] * count:
        return ParseFailure(
            text, f"expected {', '.join([*NAMES] * count)} to speak, found {', '.join(names) or 'nobody'}"
        )
    return tuple((first, second) for (_, first), (_, second) in zip(spoken[::2], spoken[1::2], strict=True))


def read_question(value: Any, asked: set[str]) -> dict[str, str] | ParseFailure:
    """Question and response of a parsed reply, if both have text and the question was not `asked` before."""
    if isinstance(value, ParseFailure):
        return value
    pair = {key: " ".join(value[key].split()) for key in ("question", "response")}
    if not all(pair.values()):
        return ParseFailure(str(value), "question or response is empty")
    if _folded(pair["question"]) in asked:
        return ParseFailure(str(value), "the question was asked before")
    return pair


def _folded(question: str) -> str:
    return re.sub(r"\W+", " ", question.casefold()).strip()


# --- the finished file -------------------------------------------------------------------------------------------------


def conversation(
    seed: Seed, steps: Sequence[Mapping[str, Any]], generator: Mapping[str, Any], after_round: bool
) -> dict[str, Any]:
    """A finished conversation in the format of `data_loaders.msc_e`."""
    questions = []
    end = len(seed.rounds)
    for number, step in enumerate(steps, 1):
        start, end = end, end + len(step["rounds"])
        low = (end - 1) // BIN * BIN
        questions.append(
            {
                "id": f"q{number}",
                "question": step["question"],
                "response": step["response"],
                "evidence": [f"R{place}:{turn}" for place in range(start + 1, end + 1) for turn in (1, 2)],
                "bin": [low, low + BIN],
                "after_round": end if after_round else None,
            }
        )
    return {
        "id": seed.id,
        "speakers": NAMES,
        "generator": {
            **generator,
            "seed": {"conversation": seed.origin, "rounds": len(seed.rounds), "draw": seed.draw},
        },
        "rounds": [*seed.rounds, *rounds_in(steps)],
        "questions": questions,
    }


def generate(
    writer: Writer,
    beginnings: Sequence[Seed],
    out: Path,
    settings: Mapping[str, Any],
    *,
    after_round: bool = False,
    threads: int = 8,
    on_progress: Callable[[], None] = lambda: None,
) -> Path:
    """Complete every conversation and write the set; returns its path. A second start continues after the last complete step.

    Raises:
        RunError: there are parts with other settings, or some conversations could not be finished (their steps are kept).
    """
    path = out / "msc_e.jsonl"
    with locked(writer.parts):
        begun = writer.parts / "settings.json"
        if begun.is_file() and (there := json.loads(begun.read_text(encoding="utf-8"))) != settings:
            other = [name for name in settings if there.get(name) != settings[name]]
            raise RunError(
                f"{writer.parts} was begun with other settings ({', '.join(other)}); name another --out, or delete it"
            )
        begun.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        _extend_all(writer, beginnings, threads, on_progress)
        parts = [(seed, read_lines(writer.part(seed))) for seed in beginnings]
        generator = {
            name: settings[name] for name in ("version", "model", "stand_in", "window", "rounds_a_step", "prompts")
        }
        write_lines(path, (conversation(seed, steps, generator, after_round) for seed, steps in parts))
        steps = [step for _, each in parts for step in each]
        about = {
            "what": WHAT if not settings["stand_in"] else f"{WHAT} {STAND_IN}",
            **settings,
            "conversations": len(parts),
            "questions": len(steps),
            "asked": "after_round" if after_round else "end",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "calls": dict(sum((Counter(step["calls"]) for step in steps), Counter())),
            "tokens_in": sum(step["tokens_in"] for step in steps),
            "tokens_out": sum(step["tokens_out"] for step in steps),
            "made_with": surroundings(),
        }
        path.with_name(path.name + ".about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return path


def _extend_all(writer: Writer, beginnings: Sequence[Seed], threads: int, on_progress: Callable[[], None]) -> None:
    stop = threading.Event()
    failed = []
    with ThreadPoolExecutor(threads, "conversation") as pool:
        futures = [pool.submit(extend, writer, seed, stop.is_set, on_progress) for seed in beginnings]
        try:
            for future in futures:
                try:
                    future.result()
                except (RunError, ModelError) as error:
                    failed.append(error)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise RunError(f"{len(failed)} of {len(beginnings)} conversations are not finished; {failed[0]}") from failed[0]


# --- services ----------------------------------------------------------------------------------------------------------


def _model(args: argparse.Namespace) -> LLM:
    from memsys.llm.cache import CachedLLM
    from memsys.llm.client import Client
    from memsys.llm.endpoint import Endpoint, EndpointLimits
    from memsys.llm.network import is_local
    from memsys.llm.pricing import ModelSettings, Purse
    from memsys.llm.store import CacheStore
    from scripts.assembly.models import has_price
    from scripts.setup.options import model_option

    settings = ModelSettings(**(model_option("llm", args.model).get("settings") or {"model": args.model}))
    if args.max_usd is None and has_price(settings) and not is_local(args.base_url):
        raise RunError(f"{args.base_url} costs money: say how much may be spent, such as --max-usd 5")
    purse = Purse(args.max_usd)
    endpoint = Endpoint(args.base_url, EndpointLimits(in_flight=args.threads), key_env=args.key_env, purse=purse)
    return CachedLLM(Client(endpoint, settings), CacheStore(args.out / "cache.sqlite"), settings, endpoint.label)


def settings_of(args: argparse.Namespace, prompts: Prompts, source: Source) -> dict[str, Any]:
    """Inputs of a conversation: parts made with other inputs are not continued."""
    return {
        "version": VERSION,
        "model": args.model or "none",
        "endpoint": args.base_url or "offline",
        "stand_in": args.base_url is None,
        "prompts": prompts.digest(["msc_e"]),
        "seeds": {"status": source.status, "sha256": source.sha256},
        "rounds": args.rounds,
        "window": WINDOW,
        "rounds_a_step": ROUNDS_A_STEP,
    }


# --- the command -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("make-msc-e", __doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the set; the same folder again goes on with it"
    )
    parser.add_argument("--conversations", type=whole(1), default=70)
    parser.add_argument("--rounds", type=whole(1), default=200, help="of each conversation, its seed included")
    parser.add_argument("--model", help="a file of conf/llm, or any name that the endpoint serves")
    parser.add_argument("--base-url", help="OpenAI-compatible endpoint; without one, a stand-in without a model writes")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    parser.add_argument("--ask", choices=("end", "after_round"), default="end", help="when the questions are asked")
    parser.add_argument("--data", type=Path, help="data root with MSC for the seeds (default: the shipped sample)")
    parser.add_argument("--unpinned", action="store_true", help="accept MSC files whose sha256 is not known")
    parser.add_argument("--retries", type=whole(0), default=5, help="further attempts at a reply that can be used")
    parser.add_argument("--threads", type=whole(1), default=16, help="conversations written at the same time")
    parser.add_argument("--prompts-dir", type=Path, help="a folder laid over memsys/prompts")
    parser.add_argument("--max-usd", type=amount(0), help="spending cap of this start; needed where a call has a price")
    args = parser.parse_args(arguments)
    if (args.model is None) != (args.base_url is None):
        parser.error(
            "a model needs its endpoint and an endpoint its model: give both --model and --base-url, or neither"
        )
    from scripts.setup.progress import progress_line

    msc = load_option("dataset", "msc")
    located = locate(msc, real=args.data is not None, root=args.data, unpinned=args.unpinned)
    cases = loader(msc["load"])(located.source.path)
    prompts = Prompts(args.prompts_dir)
    beginnings = seeds(cases, args.conversations, args.rounds)
    rounds = [pair for case in cases for session in case.sessions for pair in _rounds_of(session.turns)]
    llm = meter.Metered(StandIn(rounds) if args.base_url is None else _model(args))
    writer = Writer(llm, prompts, args.rounds, args.retries, args.out / "msc_e.jsonl.parts")
    due = sum(-(-(args.rounds - len(seed.rounds)) // ROUNDS_A_STEP) for seed in beginnings)
    with progress_line("steps", due) as line:
        path = generate(
            writer,
            beginnings,
            args.out,
            settings_of(args, prompts, located.source),
            after_round=args.ask == "after_round",
            threads=args.threads,
            on_progress=line.step,
        )
    print(f"{path}: {counted(len(beginnings), 'conversation')}. {WHAT}")
    if args.base_url is None:
        print(STAND_IN)
    print("To use it, put it at msc_e/msc_e.jsonl below the data root and say data.unpinned=true.")
    return 0


def lines(rounds: Iterable[Round]) -> list[str]:
    """Rounds as `Name: text` lines."""
    return [f"{name}: {text}" for texts in rounds for name, text in zip(NAMES, texts, strict=True)]


class StandIn:
    """Writes MSC-E without a model: rounds of other conversations, and questions about sentences that the extractive engine selects."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._rounds = rounds
        self._engine = ExtractiveLLM()

    def submit(self, request: Request) -> Future[Completion]:
        fields = request.fields
        if request.purpose == "msc_e.continue":
            start = 7919 * (fields["number"] + 1) + fields["round"]  # a prime, so that conversations start apart
            rounds = (self._rounds[(start + n) % len(self._rounds)] for n in range(fields["rounds"]))
            text = "\n".join(lines(rounds))
        else:
            text = self._asked(request)
        future: Future[Completion] = Future()
        sent = sum(count_tokens(content) for _, content in request.messages)
        future.set_result(Completion(text, sent, count_tokens(text), model="stand-in", endpoint="offline"))
        return future

    def _asked(self, request: Request) -> str:
        said = request.fields["said"]
        words = self._found(request, "keywords", {"text": said}).split(", ")[:2]
        topic = " and ".join(words) if words != [UNKNOWN] else "yourself"
        question = f"What did you say about {topic} around round {request.fields['round'] + 1}?"
        response = self._found(request, "answer", {"question": question, "memories": said})
        return json.dumps({"question": question, "response": response})

    def _found(self, request: Request, kind: str, fields: Mapping[str, Any]) -> str:
        return self._engine.submit(replace(request, kind=kind, schema=None, fields=fields)).result().text

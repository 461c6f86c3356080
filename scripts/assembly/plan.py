"""Estimate the costs of an experiment before any call is paid for.

Every memory is built on one history of each data set, the history of median size, with the offline engines, and answers some of its
questions. For a long history two prefixes are built, the second twice as long as the first: the usage of a phase in both shows its growth
with the history. Calls and tokens are scaled to the remaining histories and questions, and priced at the real models' prices. Verdicts on
answers that are there, imported or graded by another judge, are counted one by one (`unjudged`). This is an estimate: replies of a real
model may be longer and its structures may differ, and calls that the cache holds are counted as if they had to be paid. A plan is printed
before the user is asked whether to spend it, and again next to the usage of the experiment.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from data_loaders.schema import Case
from data_loaders.transforms import beginning_of
from eval.analysis.costs import BUILD, phases
from eval.files.run_folder import COSTS, EFFORTS, NODES, VECTORS, RunFolder, read_efforts, read_predictions
from eval.files.store import read_lines
from eval.judging.score import Judging, is_judged, score_judge
from eval.judging.score_files import answer_key
from eval.report.counted import counted
from eval.report.published import left_open
from eval.running.run import Run, build_memory, innermost, no_rehearsal
from eval.statistics.power import POWER, planned
from eval.statistics.power import shown as detectable
from memsys.embed import HashingEmbedder
from memsys.interface import MemorySystem
from memsys.llm.batching.endpoint import BatchSettings
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, ContextOverflow, Request, failed, settle
from memsys.tokens import count_tokens
from scripts.assembly.models import Model, Models
from scripts.assembly.steps import execute, judging
from scripts.settings.schema import Settings
from scripts.setup.probe_calls import EndpointProbe
from scripts.setup.probes import ask

SAMPLED = 10
"""Number of questions of the sampled history that are answered, spread evenly over it."""
BUILT = 3
"""The same number for a memory that is rebuilt before each question."""

TURNS, CHARACTERS = 280, 80_000
"""Maximum turns and characters of the prefix that is built of a longer history; half of it for a memory that is rebuilt as a whole."""

ROLES = ("memory", "probe", "reader", "judge", "embedder")

SECONDS_PER_CALL = 1.5
"""Assumed duration of a call where none was measured; used for the estimated duration only."""

STEEPER = 0.25
"""Maximum deviation from 1 of the exponent of the building cost."""
PROPORTIONAL = 0.8
"""Exponent above which a question costs in proportion to the history."""

Place = tuple[str, str, str | None]
"""Case, question, and the last turn before the question (None: the question comes after the whole history)."""


@dataclass(frozen=True, slots=True)
class Share:
    """Planned usage of one role of an experiment."""

    role: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float | None
    """None when the price is unknown."""


@dataclass(frozen=True, slots=True)
class Duration:
    """The minimum duration of an experiment, and its cause."""

    chain: float
    """Dependent calls of the longest cell, from its first write to the verdict on its last answer."""
    calls: int
    in_flight: int
    latency: float
    """Seconds per call."""
    measured: bool
    """Whether the latency was measured at the endpoint; else it is assumed."""
    by_rate: float = 0.0
    """Seconds required by the limits of requests and tokens per minute."""

    @property
    def seconds(self) -> float:
        """The largest of the times required by the chain, the calls in flight and the rates."""
        return max(self.chain * self.latency, self.calls * self.latency / self.in_flight, self.by_rate)

    @property
    def minutes(self) -> str:
        return f"{self.seconds / 60:.1f}"

    @property
    def text(self) -> str:
        reasons = {
            self.by_rate: "the limits of requests and tokens a minute",
            self.calls * self.latency / self.in_flight: f"{counted(self.calls, 'call')}, {self.in_flight} in flight",
            self.chain * self.latency: f"the longest chain of dependent calls ({self.chain:.0f})",
        }
        how = "as measured just now" if self.measured else "assumed"
        return f"about {self.seconds / 60:.0f} minutes at {self.latency:.2g} s a call ({how}); decided by {reasons[self.seconds]}"


@dataclass(frozen=True, slots=True)
class Pace:
    prompt_tokens_a_second: float
    reply_tokens_a_second: float


def pace(base_url: str, model: str) -> Pace:
    """Measure a model with two calls: a long prompt with a reply of one token, and a short prompt with a longer reply."""
    settings = ModelSettings(model)
    with EndpointProbe(base_url, "", settings=settings) as line:
        long = ask(line, settings, "The weather was fine that day. " * 60, 1)
        short = ask(line, settings, "Count from 1 to 60, in figures, with spaces between them.", 32)
    return Pace(
        (long.usage.prompt or 400) / max(long.seconds, 1e-3),
        (short.usage.completion or 32) / max(short.seconds, 1e-3),
    )


@dataclass(frozen=True, slots=True)
class LocalDuration:
    """The duration of an experiment's calls one after the other: the machine limits a local model's speed."""

    pace: Pace
    calls: int
    tokens_in: int
    least_tokens_out: int
    """Tokens of replies if they are as short as in the plan."""
    most_tokens_out: int
    """Tokens of replies if every reply reaches its limit."""

    @property
    def minutes(self) -> str:
        """The range of the estimate in minutes."""
        reading = self.tokens_in / self.pace.prompt_tokens_a_second
        least, most = (
            max(1, round((reading + tokens / self.pace.reply_tokens_a_second) / 60))
            for tokens in (self.least_tokens_out, self.most_tokens_out)
        )
        return f"{least} to {most}"

    @property
    def text(self) -> str:
        return (
            f"Local model: {counted(self.calls, 'call')} with {self.tokens_in} prompt tokens, "
            f"read at {self.pace.prompt_tokens_a_second:.0f} a "
            f"second and written at {self.pace.reply_tokens_a_second:.0f} a second: about {self.minutes} minutes"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    shares: tuple[Share, ...]
    duration: Duration | LocalDuration
    detectable: tuple[str, ...] = ()
    """For each data set, a line with the smallest detectable difference between two rows."""
    chains: Mapping[Path, float] = field(default_factory=dict)
    """Dependent calls per unit of a run's sizes, by its folder."""
    failures: tuple[str, ...] = ()
    """For each run whose sample has unanswered questions, a line with their number and the reason of the first."""
    later: tuple[Share, ...] = ()
    """Usage of the second and further builds of its rows; empty where each is built once."""
    open: tuple[str, ...] = ()
    """For each data set whose rows are built several times, a line about the gaps that fewer builds could not settle."""
    costs: Mapping[Path, float] = field(default_factory=dict)
    """US dollars of a run, by its folder, without calls of unknown price. Of runs that share a build, the first bears its cost."""
    spent: float = 0.0
    """US dollars that the command spent before, under the same cap."""
    discount: float = BatchSettings().discount
    """Price of a batched call divided by that of a live one."""

    @property
    def usd(self) -> float | None:
        """Sum over the roles; None when a price is unknown."""
        return total_usd(self.shares)

    @property
    def usd_in_batches(self) -> float | None:
        """The same with `endpoint.mode=batch`, which discounts answers and judgements; None when a price is unknown."""
        late = sum(share.usd or 0.0 for share in self.shares if share.role in ("reader", "judge"))
        return None if self.usd is None else self.usd - (1.0 - self.discount) * late


def at_pace(plan: Plan, pace: Pace, most_reply_tokens: int) -> Plan:
    """Return the plan with the duration for a local model of this pace."""
    asked = [share for share in plan.shares if share.role != "embedder"]
    calls, tokens_in = sum(share.calls for share in asked), sum(share.tokens_in for share in asked)
    tokens_out = sum(share.tokens_out for share in asked)
    duration = LocalDuration(pace, calls, tokens_in, tokens_out, max(tokens_out, calls * most_reply_tokens))
    return replace(plan, duration=duration)


def total_usd(shares: Iterable[Share]) -> float | None:
    known = [share.usd for share in shares]
    return None if None in known else sum(filter(None, known))


@dataclass(frozen=True, slots=True)
class Sample:
    """A run cut down to one history and some questions, with the factors that scale it to the whole run."""

    planned: Run
    """The whole run."""
    run: Run
    questions: int
    """Number of questions that the sample answers."""
    write_factor: float
    consolidate_factor: float
    question_factor: float
    by_history: tuple[int, ...]
    """Numbers of questions of the whole run, by history."""
    half: Run | None = None
    """The same over half of the history that `run` builds, if `run` builds a prefix of a longer history."""
    longer: float = 1.0
    """Size of the whole history, divided by the size of the prefix that `run` builds."""

    def factor(self, phase: str) -> float:
        """Cost of a phase in the whole run, divided by its cost in the sample, if it grows with the number of units only."""
        if phase not in BUILD:
            return self.question_factor
        return self.consolidate_factor if phase == "consolidate" else self.write_factor

    def growth(self, phase: str, half: float, whole: float) -> float:
        """The correction of `factor`, from the usage of a phase over half of the sample and over the whole sample.

        A phase that uses `size ** exponent` is extrapolated with that exponent. Two samples give only a rough exponent. Therefore the
        exponent of building is kept within `STEEPER` of 1, and a question costs either the same or, as with the whole history in its
        prompt, in proportion.
        """
        if half <= 0.0 or whole <= 0.0:
            return 1.0
        exponent = math.log2(whole / half)
        if phase in BUILD:
            return float(self.longer ** min(max(exponent - 1.0, -STEEPER), STEEPER))
        return self.longer if exponent > PROPORTIONAL else 1.0


@dataclass(slots=True)
class Usage:
    """Calls and tokens of one role, scaled to the whole experiment."""

    calls: float = 0.0
    tokens_in: float = 0.0
    tokens_out: float = 0.0

    def add(self, factor: float, calls: float, tokens_in: float, tokens_out: float) -> None:
        """Add the usage of a sample, times its factor."""
        self.calls += factor * calls
        self.tokens_in += factor * tokens_in
        self.tokens_out += factor * tokens_out

    def share(self, role: str, model: str, prices: ModelSettings | None) -> Share:
        """This usage, rounded and priced. A stand-in has no prices and costs nothing."""
        calls, tokens_in, tokens_out = round(self.calls), round(self.tokens_in), round(self.tokens_out)
        usd = 0.0 if prices is None else prices.cost(tokens_in, tokens_out)
        return Share(role, model, calls, tokens_in, tokens_out, usd)


def plan(
    cfg: Settings, models: Models, runs: Sequence[Run], judges: Mapping[str, list[str]], window: int | None = None
) -> Plan:
    """Run a sample offline in a temporary folder, scale it and price it.

    Args:
        cfg: sets threads and calls in flight.
        runs: of imported runs only the verdicts are planned.
        models: the real models, whose prices are used.
        judges: names of the judges by data set.
        window: maximum tokens of a prompt, if known; a longer prompt fails, as it will in the run, and costs nothing.
    """
    engine: LLM = ExtractiveLLM() if window is None else Windowed(ExtractiveLLM(), window)
    offline = Metered(OneSecond(engine))
    with tempfile.TemporaryDirectory() as folder:
        own = [run for run in runs if not run.record.imported]
        samples = _samples(own, lambda run: _offline(run, offline, Path(folder)), whole=window is not None)
        sizes = {sample.run.dataset: sample.by_history for sample in samples}
        samples = [sample for sample in samples if sample.questions]
        played = [(run, sample.questions) for sample in samples for run in (sample.run, sample.half) if run is not None]
        execute([run for run, _ in played], sum(count for _, count in played), cfg.threads, "planning")
        chains = {  # dependent calls of a build per unit of the run's sizes
            sample.planned.folder: dependent_calls(sample.run.folder, BUILD) / max(sample.run.sizes[0], 1)
            for sample in samples
        }
        cells = (  # dependent calls of a run's longest cell: its build, one read, the answer and its verdict
            chains[sample.planned.folder] * max(sample.planned.sizes)
            + dependent_calls(sample.run.folder, ("read",)) / sample.questions
            + 2
            for sample in samples
        )
        longest = max(cells, default=1.0)  # a verdict
        graders = {
            name: [replace(judging(cfg, models, each), llm=offline) for each in own] for name, own in judges.items()
        }
        others = {each.identity: each for each in models.by_name.values() if each.identity != models.judge.identity}
        by_run = _usage(samples)
        answered = [(sample.planned, sample.run, sample.question_factor) for sample in samples]
        for planned_run, run, factor in [*answered, *((run, run, 1.0) for run in runs)]:
            used = by_run.setdefault(planned_run.folder, {role: Usage() for role in ROLES})
            for grader in graders.get(run.dataset, ()):  # a judge with a model of its own has no role
                graded = used.setdefault(grader.model if grader.model in others else "judge", Usage())
                graded.add(factor, *unjudged(run, grader))
        failures = tuple(line for sample in samples for line in _failures(sample))
    whole = _added(by_run.values())
    by_role = {role: getattr(models, role) for role in ROLES[:-1] if role != "probe" or whole["probe"].calls}
    by_role |= {role: model for role, model in others.items() if role in whole}
    shares = _shares(whole, by_role, models)
    lines = tuple(line for name, counts in sizes.items() for line in _detectable(name, counts))
    most = 1 + max((sample.run.replicate for sample in samples), default=0)
    left = tuple(f"  {name}: {left_open(counts, most)}" for name, counts in sizes.items() if most > 1)
    costs = {
        folder: sum(share.usd or 0.0 for share in _shares(used, by_role, models)) for folder, used in by_run.items()
    }
    again = {sample.planned.folder for sample in samples if sample.run.replicate}
    later = _added(used for folder, used in by_run.items() if folder in again)
    again_shares = tuple(_shares(later, by_role, models)) if again else ()
    lasting = duration(cfg, models, shares, longest)
    discount = cfg.endpoint.batch.discount
    return Plan(tuple(shares), lasting, lines, chains, failures, again_shares, left, costs, discount=discount)


def _usage(samples: Iterable[Sample]) -> dict[Path, dict[str, Usage]]:
    """Usage by run folder and role, scaled to the whole of each run. Of runs that share a build, the first bears its cost."""
    builds: set[str] = set()
    by_run: dict[Path, dict[str, Usage]] = {}
    for sample in samples:
        used = by_run.setdefault(sample.planned.folder, {role: Usage() for role in ROLES})
        half = _used(sample.half)
        for (phase, role), figures in _used(sample.run).items():
            if phase in BUILD and sample.run.shared in builds:
                continue
            smaller = half.get((phase, role), (0, 0, 0))
            grown = [
                count * sample.growth(phase, before, count) if sample.half is not None else count
                for before, count in zip(smaller, figures, strict=True)
            ]
            used[role].add(sample.factor(phase), *grown)
        builds |= {sample.run.shared} - {""}
    return by_run


def unjudged(run: Run, judge: Judging) -> tuple[int, int, int]:
    """Calls, tokens in and tokens out of the verdicts that the answers of a run lack, counted on a copy of the run.

    Args:
        judge: has an offline engine in place of its model.
    """
    if not run.folder.is_dir() or is_judged(run, judge):
        return 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(run, folder=Path(folder) / run.dataset / run.folder.name)
        shutil.copytree(run.folder, copy.folder, ignore=shutil.ignore_patterns(NODES, VECTORS))
        kept = {answer_key(line) for line in read_lines(judge.file(copy)) if line["value"] is not None}
        lines = read_lines(score_judge(copy, judge).with_suffix(COSTS))
    new = [line for line in lines if answer_key(line) not in kept]
    calls = sum(sum(line["calls"].values()) for line in new)
    return calls, sum(line["tokens_in"] for line in new), sum(line["tokens_out"] for line in new)


def _added(parts: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """Usage by role, added up."""
    total = {role: Usage() for role in ROLES}
    for part in parts:
        for role, used in part.items():
            total.setdefault(role, Usage()).add(1.0, used.calls, used.tokens_in, used.tokens_out)
    return total


def _shares(usage: Mapping[str, Usage], by_role: Mapping[str, Model], models: Models) -> list[Share]:
    shares = [
        usage.get(role, Usage()).share(role if role in ROLES else "judge", model.name, model.prices)
        for role, model in by_role.items()
    ]
    return [*shares, usage["embedder"].share("embedder", models.embedder.name, models.embedder.prices)]


def dependent_calls(folder: Path, phases: Collection[str]) -> float:
    """Calls on the critical path of these phases of a sample, in which every call takes a second."""
    paths = RunFolder(folder).written(EFFORTS)
    lines = (line for path in paths for line in read_lines(path, fields=("phase", "provider_seconds")))
    return float(sum(line["provider_seconds"] for line in lines if line["phase"] in phases))


@dataclass(frozen=True, slots=True)
class OneSecond:
    """A wrapper that makes every call take a second, so that seconds on the critical path count dependent calls."""

    inner: LLM

    def submit(self, request: Request) -> Future[Completion]:
        inner, outer = self.inner.submit(request), Future[Completion]()
        inner.add_done_callback(lambda done: settle(outer, lambda: replace(done.result(), seconds=1.0)))
        return outer


@dataclass(frozen=True, slots=True)
class Windowed:
    """A wrapper that refuses a prompt longer than a model's window, as a server does.

    Tokens are counted with the project's own vocabulary, so the model may decide differently about a prompt near the limit.
    """

    inner: LLM
    window: int

    def submit(self, request: Request) -> Future[Completion]:
        tokens = sum(count_tokens(text) for _, text in request.messages)
        if tokens <= self.window:
            return self.inner.submit(request)
        return failed(ContextOverflow(f"a prompt of about {tokens} tokens in a window of {self.window}"))


def _failures(sample: Sample) -> Iterator[str]:
    """The line about unanswered questions of a sample."""
    cases = (sample.run.case_folder(case.id) for case in sample.run.cases)
    errors = [line.error for case in cases for line in read_predictions(case).values() if line.outcome == "error"]
    if errors:
        name = f"{sample.run.dataset} · {sample.run.name}"
        yield f"  {name}: {len(errors)} of {sample.questions} sampled questions have no answer: {errors[0]}"


def duration(cfg: Settings, models: Models, shares: Sequence[Share], longest: float) -> Duration:
    """The duration of the calls of these shares; `longest` calls depend on each other."""
    measured = [endpoint.latency for endpoint in models.endpoints.values() if endpoint.latency is not None]
    latency = sum(measured) / len(measured) if measured else SECONDS_PER_CALL
    every = (models.memory, models.reader, models.judge, models.probe, *models.by_name.values())
    chat = {model.name: model.prices for model in every}
    minutes: dict[str, float] = {}
    for share in shares:  # roles that share a model share its limits
        prices = models.embedder.prices if share.role == "embedder" else chat[share.model]
        rpm = (prices.rpm if prices else None) or cfg.endpoint.rpm
        tpm = (prices.tpm if prices else None) or cfg.endpoint.tpm
        for kind, used, rate in (("r", share.calls, rpm), ("t", share.tokens_in + share.tokens_out, tpm)):
            if rate:
                minutes[share.model + kind] = minutes.get(share.model + kind, 0.0) + used / rate
    calls = sum(share.calls for share in shares)
    by_rate = 60.0 * max(minutes.values(), default=0.0)
    return Duration(longest, calls, cfg.endpoint.in_flight, latency, bool(measured), by_rate)


def _used(run: Run | None) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Calls, tokens in and tokens out of a sample, by phase and role."""
    used: dict[tuple[str, str], tuple[int, int, int]] = {}
    for cost in phases(run.folder) if run is not None else ():
        for role, each in cost.by_role.items():
            used[cost.phase, role] = (each.calls, each.tokens_in, each.tokens_out)
        used[cost.phase, "embedder"] = (cost.steps if cost.embedding_tokens else 0, cost.embedding_tokens, 0)
    return used


def _detectable(dataset: str, sizes: Sequence[int]) -> Iterator[str]:
    if (difference := planned(sizes)) is not None:
        yield (
            f"  {dataset}: {counted(sum(sizes), 'question')} in {counted(len(sizes), 'history')}; "
            f"detectable paired difference at {POWER:.0%} power: {detectable(difference[0])} ({difference[1]})"
        )


def _offline(run: Run, engine: Metered, folder: Path) -> Run:
    gateway = None
    if run.services.gateway is not None:
        from memsys.llm.gateway.chat import EngineUpstream
        from memsys.llm.gateway.server import Gateway

        gateway = Gateway(EngineUpstream(engine), HashingEmbedder(), None, "live")
    services = replace(
        run.services,
        llm=engine,
        reader=engine,
        probe=replace(engine, role="probe"),
        embedder=HashingEmbedder(),
        gauges={},
        gateway=gateway,
    )
    folder = folder / run.dataset / run.folder.name
    return replace(run, services=services, folder=folder, build=_quick(run.build), rehearse=no_rehearsal)


def _quick(build: Callable[..., MemorySystem]) -> Callable[..., MemorySystem]:
    """The build with the settings for plans of its memory, or of its wrapped memory."""
    if not isinstance(build, partial):
        return build
    if "inner" in build.keywords:
        return partial(build.func, *build.args, **{**build.keywords, "inner": _quick(build.keywords["inner"])})
    quick = getattr(build.func, "PLANNED_WITH", {})
    if not quick:
        return build
    return partial(
        build.func, *build.args, **{**build.keywords, "settings": replace(build.keywords["settings"], **quick)}
    )


def _samples(runs: Iterable[Run], offline: Callable[[Run], Run], *, whole: bool = False) -> list[Sample]:
    """The sample of each run; `whole` builds the whole history whatever its length."""
    places: dict[int, list[list[Place]]] = {}
    samples = []
    beginnings: dict[tuple[int, str, int], Case] = {}
    for run in runs:
        if id(run.cases) not in places:  # runs on one data set hold the same cases
            places[id(run.cases)] = [
                [(case.id, question.id, question.after) for question, _ in case.questions] for case in run.cases
            ]
        sample = _sample(run, offline(run), places[id(run.cases)])
        cuts = sample.questions and not whole and run.control is None
        samples.append(_cut(sample, beginnings) if cuts else sample)
    return samples


def _cut(sample: Sample, beginnings: dict[tuple[int, str, int], Case]) -> Sample:
    """The sample over a prefix of its history, and over half of the prefix, if the history is long. `beginnings` caches shared prefixes."""

    def beginning(turns: int) -> Case:
        key = id(sample.planned.cases), case.id, turns
        if key not in beginnings:
            beginnings[key] = beginning_of(case, turns)
        return beginnings[key]

    (case,), (size,) = sample.run.cases, sample.run.sizes
    turns = _affordable(case, 2 if getattr(innermost(sample.run.build), "OFFLINE", False) else 1)
    if turns == (every := len(case.turns)):
        return sample
    longer = every / turns
    run = replace(sample.run, cases=[beginning(turns)], sizes=[max(1, round(size / longer))])
    half = replace(
        run,
        cases=[beginning(-(-turns // 2))],
        shared=f"{run.shared}-half" if run.shared else "",
        folder=run.folder.with_name(f"{run.folder.name}-half"),
    )
    return replace(
        sample,
        run=run,
        half=half,
        longer=longer,
        write_factor=sample.write_factor * longer,
        consolidate_factor=sample.consolidate_factor * longer,
    )


def _affordable(case: Case, part: int) -> int:
    """Number of turns that a sample builds: at most a part of `TURNS` and of `CHARACTERS`, at least one."""
    characters = 0
    for number, turn in enumerate(case.turns[: TURNS // part]):
        characters += len(turn.text)
        if characters > CHARACTERS // part:
            return max(number, 1)
    return min(len(case.turns), TURNS // part)


def _sample(planned: Run, run: Run, places: Sequence[Sequence[Place]]) -> Sample:
    """Cut a run down to its history of median size and a few of that history's questions; answered ones are left out."""
    every_question = [[place for place in history if run.questions(*place[:2])] for history in places]
    asked = [_open(planned, history) for history in every_question]
    by_size = sorted((index for index in range(len(asked)) if asked[index]), key=lambda index: run.sizes[index])
    if not by_size:  # the run is complete
        return Sample(planned, run, 0, 0.0, 0.0, 0.0, tuple(map(len, every_question)))
    median = by_size[len(by_size) // 2]
    history = asked[median]
    rebuilt = len({after for *_, after in history}) > 1 and build_memory(run, run.cases[median]).OFFLINE
    count = min(BUILT if rebuilt else SAMPLED, len(history))
    chosen = [history[(2 * number + 1) * len(history) // (2 * count)] for number in range(count)]
    every = run.rebuild_every if count == len(history) else 1  # each sampled question stands for several rebuilds
    builds = [size * _builds(each, run.rebuild_every) for size, each in zip(run.sizes, asked, strict=True)]
    unwritten = []  # a build under way is repeated from the cache, and asks for the units that no earlier command wrote
    for index in by_size:
        lines = read_efforts(planned.case_folder(places[index][0][0]))
        written = len({line["subject"] for line in lines if line["phase"] == "write"})
        unwritten.append(max(0, run.sizes[index] - written))
    return Sample(
        planned,
        replace(
            run,
            cases=[run.cases[median]],
            sizes=[run.sizes[median]],
            rebuild_every=every,
            questions=ChosenQuestions(frozenset(place[:2] for place in chosen)),
        ),
        questions=len(chosen),
        write_factor=sum(unwritten) / run.sizes[median],
        consolidate_factor=sum(builds) / (run.sizes[median] * _builds(chosen, every)),
        question_factor=sum(map(len, asked)) / len(chosen),
        by_history=tuple(map(len, every_question)),
    )


def _open(run: Run, history: Sequence[Place]) -> list[Place]:
    """The questions of a history that no earlier command answered."""
    lines = read_predictions(run.case_folder(history[0][0])) if history else {}
    return [
        place for place in history if place[1] not in lines or lines[place[1]].outcome not in ("answered", "recalled")
    ]


@dataclass(frozen=True, slots=True)
class ChosenQuestions:
    """Decides whether a question is asked. Two objects with the same ids are equal, so that runs can share a build."""

    ids: frozenset[tuple[str, str]]

    def __call__(self, case_id: str, question_id: str) -> bool:
        return (case_id, question_id) in self.ids


def _builds(places: Sequence[Place], every: int) -> int:
    """Number of builds of an offline memory for these questions."""
    return math.ceil(len({after for *_, after in places}) / every)

"""Before the first paid call: every endpoint must answer, accept the key and serve the model; then the costs are planned and agreed to.

After an experiment the plan stands next to the usage. In the paper profile the doctor examines each model as well (`scripts.setup.probes`).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from eval.files.store import RunError
from eval.report.counted import counted
from eval.running.run import Run
from memsys.llm import network
from memsys.llm.endpoint import Endpoint
from memsys.llm.pricing import ModelSettings, SpendingCapReached
from memsys.tokens import count_tokens
from scripts.assembly.models import Model, Models
from scripts.assembly.plan import Plan, at_pace, pace, plan, total_usd
from scripts.assembly.steps import judging
from scripts.settings.schema import Settings
from scripts.settings.types import how_to_give
from scripts.setup.causes import WEB_PAGE, remedy
from scripts.setup.printing import agrees
from scripts.setup.probe_calls import EndpointProbe
from scripts.setup.probes import Examination, ask, examine, examine_embedder, table
from scripts.setup.progress import progress_line


def ask_without_plan(cfg: Settings, models: Models) -> None:
    """Ask before a command that plans nothing makes its first call, if a model has a price; `yes=true` or a cap agrees.

    Raises:
        RunError: the answer is no, or there is no terminal.
    """
    names = models.paid_names
    if cfg.replay or cfg.yes or cfg.max_usd is not None or not names:
        return
    costs = f"{', '.join(names)} cost{'' if len(names) > 1 else 's'} money, and this command does not estimate how much"
    if not sys.stdin.isatty():
        raise RunError(f"{costs}; set a cap with max_usd=DOLLARS, or agree with yes=true (make … MAX_USD=, YES=1)")
    if not agrees(f"{costs}. Spend without a cap?"):
        raise RunError("the costs were declined; max_usd=DOLLARS sets a cap")


def check_endpoint(cfg: Settings, models: Models) -> None:
    """Refuse a base URL that no model uses: stand-ins would answer in its place. A judge that is built later may use it.

    Raises:
        RunError: no model uses the endpoint that the settings name.
    """
    if cfg.endpoint.base_url is not None and not models.endpoints:
        raise RunError(
            f"endpoint.base_url={cfg.endpoint.base_url} is not used, because no model is named and stand-ins would answer; "
            "add models.reader=NAME (make … MODEL=NAME names the model of all roles), or leave it out"
        )


def agreed(
    cfg: Settings, models: Models, runs: Sequence[Run], judges: Mapping[str, list[str]]
) -> tuple[bool, Plan | None]:
    """Plan the remaining work of these runs, print the plan, and ask whether to spend it.

    Returns whether the work may begin, and the plan. There is no plan in a replay, nor where nothing is paid for and no model runs on
    this machine (except with profile=paper). The minutes of a model on this machine are printed without a question.

    Args:
        judges: names of the judges by data set.

    Raises:
        RunError: no model uses the endpoint that the settings name.
    """
    for name in dict.fromkeys(name for names in judges.values() for name in names):
        judging(cfg, models, name)  # a judge's own model may have a price
    check_endpoint(cfg, models)
    local = models.memory.endpoint if cfg.profile_name == "local" else None
    if cfg.replay or not (cfg.profile_name == "paper" or local is not None or models.paid_names):
        return True, None
    window = cfg.local.window if local is not None and cfg.local.model is not None else None
    planned = plan(cfg, models, runs, judges, window)
    if local is not None:
        speed = pace(local.base_url, models.memory.name)
        planned = at_pace(planned, speed, cfg.endpoint.max_output_tokens or 512)
    if cfg.profile_name == "paper" or (
        models.paid_names and planned.usd != 0.0
    ):  # None: a price of another model is unknown
        return confirmed(cfg, replace(planned, spent=models.purse.spent)), planned
    print("\n".join([planned.duration.text, *planned.failures]), file=sys.stderr)
    return True, planned


@dataclass(frozen=True, slots=True)
class Meter:
    """Totals of all endpoints at one moment."""

    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float


def meter(models: Models) -> Meter:
    """The current totals, without calls answered by the cache, which cost nothing."""
    traffic = models.traffic()
    return Meter(
        sum(each.finished for each in traffic),
        sum(each.tokens_in for each in traffic),
        sum(each.tokens_out for each in traffic),
        models.purse.spent,
        time.monotonic(),
    )


def side_by_side(plan: Plan, before: Meter, after: Meter) -> str:
    """A plan and the usage between two moments, figure by figure."""
    shares = plan.shares
    usd = "unknown" if plan.usd is None else f"{plan.usd:.2f}"
    rows = [
        ("calls", str(sum(share.calls for share in shares)), str(after.calls - before.calls)),
        ("tokens in", str(sum(share.tokens_in for share in shares)), str(after.tokens_in - before.tokens_in)),
        ("tokens out", str(sum(share.tokens_out for share in shares)), str(after.tokens_out - before.tokens_out)),
        ("USD", usd, "unknown" if plan.usd is None else f"{after.usd - before.usd:.2f}"),
        ("minutes", plan.duration.minutes, f"{(after.seconds - before.seconds) / 60:.1f}"),
    ]
    lines = [f"  {name:<12}{estimated:>14}{used:>14}" for name, estimated, used in rows]
    head = f"  {'':<12}{'estimated':>14}{'actual':>14}"
    return "\n".join(["Plan and outcome (what the cache answered is not counted):", head, *lines])


def plan_text(plan: Plan) -> str:
    lines = ["Plan (estimated from a sample of the same runs with the offline engines):"]
    for share in plan.shares:
        price = "unknown price" if share.usd is None else f"{share.usd:.2f} USD"
        lines.append(
            f"  {share.role:<9}{share.model:<32}{share.calls:>9} calls {share.tokens_in:>12} tokens in {share.tokens_out:>10} out  {price}"
        )
    unknown = dict.fromkeys(share.model for share in plan.shares if share.usd is None)
    lines += [f"  the price of {model} is not known; give it with {how_to_give(model)}" for model in unknown]
    total = "unknown" if plan.usd is None else f"{plan.usd:.2f} USD"
    lines.append(f"  total {total}, {plan.duration.text}")
    if (batched := plan.usd_in_batches) and batched != plan.usd:
        lines.append(
            f"  or {batched:.2f} USD with endpoint.mode=batch: answers within a day of the build, judgements within a day of the answers"
        )
    if plan.later:
        part = "an unknown part" if (usd := total_usd(plan.later)) is None else f"{usd:.2f} USD"
        lines.append(
            f"  of it {part} for second and further builds; build.published=1 leaves those of published rows out"
        )
    return "\n".join([*lines, *plan.failures, *plan.detectable, *plan.open])


def confirmed(cfg: Settings, plan: Plan) -> bool:
    """Print the plan and ask whether to spend it. `yes=true` agrees; without a terminal the answer is no."""
    print(plan_text(plan), flush=True)  # before the line on standard error that mentions it
    if cfg.max_usd is not None and plan.usd is None:
        print("error: max_usd is set, but a price is unknown; the plan above says how to give it", file=sys.stderr)
        return False
    if cfg.max_usd is not None and plan.usd is not None and plan.usd > cfg.max_usd - plan.spent:
        already = f", of which {plan.spent:.4f} are spent" if plan.spent else ""
        print(f"note: the estimate exceeds max_usd={cfg.max_usd}{already}; the run will stop there")
    if cfg.yes:
        return True
    if not sys.stdin.isatty():
        print("error: not asked, because there is no terminal; repeat with yes=true (make … YES=1)", file=sys.stderr)
        return False
    return agrees("Spend this?")


ATTEMPTS = 3
"""Attempts at an endpoint that answers but is busy; after that the run itself must wait for it."""
PATIENCE = 60.0
"""Timeout of a reply in seconds; a server may have to load the model first."""
WINDOW = 8000
"""Tokens of the longest prompt that the doctor sends before a paper's run."""
SENT = ("token_limit_field", "send_temperature", "reasoning_effort", "extra_body", "json_output")
"""Settings that change the content of a request."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model at an endpoint, with the roles it fills."""

    roles: tuple[str, ...]
    endpoint: Endpoint
    settings: ModelSettings

    @property
    def name(self) -> str:
        """Roles, model and URL, for messages."""
        return f"{', '.join(self.roles)}: {self.settings.model} at {self.endpoint.base_url}"

    @property
    def chat(self) -> bool:
        """Whether it is a chat model; else it is the embedder."""
        return self.roles != ("embedder",)


def prepared(cfg: Settings, models: Models, meanwhile: Callable[[], object] = lambda: None) -> Models:
    """Return the models once every endpoint has answered; in the paper profile their settings include the doctor's findings.

    Nothing is sent when replaying, or with `endpoint.probe=false`. All endpoints are asked at once.

    Args:
        meanwhile: work to do while the replies are awaited, for speed alone: it is not called where nothing is sent.

    Raises:
        RunError: there is a spending cap and a model without a price; an endpoint does not answer, refuses the key, or does not serve
            the model; in the paper profile also when it refuses what the model's settings send, or truncates prompts silently.
    """
    every = _served(models)
    check_prices(cfg, models)
    if cfg.replay or not cfg.endpoint.probe or not every:
        return models
    for served in every:
        url, key_env = served.endpoint.base_url, served.endpoint.key_env
        if not os.environ.get(key_env) and not network.is_local(url):
            raise _refusal(served, f"no key for {url} in the environment variable {key_env}")
    try:
        if cfg.profile_name == "paper":
            return _examined(models, every, cfg.endpoint.timeout)
        with (
            progress_line("asking the endpoints", len(every)) as line,
            ThreadPoolExecutor(len(every), "asking") as pool,
        ):
            # Made here, as they import the client: in the pool's threads the import would compete with `meanwhile`.
            lines = [_line(served, cfg.endpoint.timeout) for served in every]
            checks = [pool.submit(_check, served, line) for served, line in zip(every, lines, strict=True)]
            meanwhile()
            count_tokens(" ")  # loads the vocabulary, which the first prompt needs
            for check in checks:
                check.result()
                line.step()
    except SpendingCapReached as error:  # the plan and the run report the cap for their own calls
        print(f"note: the endpoints were not asked beforehand: {error}", file=sys.stderr)
    return models


def check_prices(cfg: Settings, models: Models) -> None:
    """Refuse models without a price where there is a spending cap, which could not hold. Commands do it before they load any data.

    Raises:
        RunError: names every model and the line to add.
    """
    if cfg.max_usd is None or cfg.replay:
        return
    unpriced = [each for each in _served(models) if each.settings.cost(1, int(each.chat)) is None]
    if unpriced:
        names = list(dict.fromkeys(each.settings.model for each in unpriced))
        named = ", ".join(f"{each.settings.model} ({', '.join(each.roles)})" for each in unpriced)
        raise RunError(
            f"max_usd={cfg.max_usd:g} needs the price of every model, and there is none for {named}: add {how_to_give(*names)}"
        )


def _served(models: Models) -> list[ServedModel]:
    """Models at endpoints, each once with all its roles: chat models, also those of further judges that are built, then the embedder."""
    found: dict[tuple[str, str, str], ServedModel] = {}
    filled: dict[str, Model] = {role: getattr(models, role) for role in ("memory", "reader", "judge", "probe")}
    own = {f"judge {model.name}": model for model in models.by_name.values() if model not in filled.values()}
    for role, model in {**filled, **own}.items():
        if model.endpoint is not None and model.prices is not None:
            key = (model.endpoint.base_url, model.endpoint.key_env, repr(model.prices))
            before = found[key].roles if key in found else ()
            found[key] = ServedModel((*before, role), model.endpoint, model.prices)
    served, embedder = list(found.values()), models.embedder
    if embedder.endpoint is not None and embedder.prices is not None:
        served.append(ServedModel(("embedder",), embedder.endpoint, embedder.prices))
    return served


def _line(served: ServedModel, timeout: float) -> EndpointProbe:
    endpoint = served.endpoint
    wait = min(timeout, PATIENCE)
    return EndpointProbe(
        endpoint.base_url, endpoint.key_env, timeout=wait, settings=served.settings, purse=endpoint.purse
    )


def _check(served: ServedModel, line: EndpointProbe) -> None:
    """Send one short request; repeat it while the server is busy. One that answers each with a web page is no model's."""
    settings, pages = served.settings, 0
    with line:
        for _ in range(ATTEMPTS):
            if served.chat:
                heard = ask(line, settings, "Reply with the word ready.", 16)
            else:
                heard = line.embed({"model": settings.model, "input": ["ready"], **settings.extra_body})
            pages += re.search(WEB_PAGE, heard.error) is not None
            if not heard.busy:
                break
    if heard.busy and pages < ATTEMPTS:
        print(f"note: {served.name} answers, but is busy or failing: {heard.error}", file=sys.stderr)
    elif not heard.ok:
        raise _refusal(served, heard.error)
    else:
        # The longest of an endpoint's models: a short request is answered faster than most requests.
        served.endpoint.latency = max(served.endpoint.latency or 0.0, heard.seconds)


def _refusal(served: ServedModel, reason: str) -> RunError:
    """The error with its remedy, also where the request explains the failure better than the error does."""
    key_env, cure = served.endpoint.key_env, remedy(reason)
    if not served.chat and re.search(r"HTTP (40[45]|501)\b", reason):
        cure = (
            "this server makes no embeddings, or not with this model: name one that does (make … EMBEDDER_BASE_URL=), take a model of this "
            "machine (LOCAL_EMBEDDER=minilm), or leave EMBEDDER out, so that a hashing stand-in takes its place"
        )
    elif re.search(r"HTTP 40[13]\b", reason) and not os.environ.get(key_env):
        cure = f"the environment variable {key_env} is not set: export it, or name another one (make … KEY_ENV=)"
    return RunError(
        f"{served.name}: {reason}\n  remedy: {cure}\n"
        "  (asked before anything was planned or built; replay=true answers from the cache alone, endpoint.probe=false does not ask)"
    )


def _examined(models: Models, every: list[ServedModel], timeout: float) -> Models:
    """Run the doctor on every model, print its tables on standard error, and return the models with its findings.

    Raises:
        RunError: a model is unfit; the message lists settings that fit, where the doctor knows some.
    """
    learned: dict[str, ModelSettings] = {}
    calls, before = 0, models.purse.spent
    for served in every:
        with _line(served, timeout) as line:
            if served.chat:
                examination = examine(line, served.settings, window=WINDOW, brief=True)
                served.endpoint.latency = max(served.endpoint.latency or 0.0, line.seconds / max(1, line.calls))
            else:
                examination = Examination(served.settings, examine_embedder(line, served.settings))
        calls += line.calls
        print(f"{served.name} ({counted(line.calls, 'call')})\n{table(examination.findings)}", file=sys.stderr)
        if examination.stops:
            known, better = served.settings, examination.settings
            fitting = {name: getattr(better, name) for name in SENT if getattr(known, name) != getattr(better, name)}
            faults = "; ".join(f"{stop.asked}: {stop.found} ({stop.means})" for stop in examination.stops)
            advice = f"\n  settings that fit, for conf/llm: {fitting}" if fitting else ""
            raise RunError(f"{served.name} cannot be used: {faults}{advice}")
        facts = {name: getattr(examination.settings, name) for name in ("logprobs", "context_tokens")}
        learned |= dict.fromkeys(served.roles, replace(served.settings, **facts))
    print(f"check-up: {counted(calls, 'call')}, {models.purse.spent - before:.4f} USD at known prices", file=sys.stderr)
    roles = {role: getattr(models, role) for role in learned if hasattr(models, role)}  # not a judge's own model
    return replace(models, **{role: replace(model, prices=learned[role]) for role, model in roles.items()})

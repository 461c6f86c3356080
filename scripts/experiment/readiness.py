"""Before anything is planned or built: does each endpoint answer, take the key and serve the model? In the paper profile, the doctor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from eval.store import RunError
from memsys.llm.endpoint import Endpoint
from memsys.llm.pricing import ModelSettings, SpendingCapReached
from scripts.checkup.calls import Heard, Line
from scripts.checkup.embedding import examine_embedder
from scripts.checkup.probes import ask, examine
from scripts.checkup.report import table
from scripts.experiment.assemble import Bench, Model
from scripts.experiment.causes import remedy
from scripts.experiment.progress import progress_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

ATTEMPTS = 3
"""At an endpoint that is there but busy: whether it gets better is the run's own affair."""
PATIENCE = 60.0
"""Seconds that a reply may take; a model that is being loaded takes some."""
WINDOW = 8000
"""Tokens of the longest prompt that is sent before a paper's run."""
SENT = ("token_limit_field", "send_temperature", "reasoning_effort", "extra_body", "json_output")
"""Settings that requests depend on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model at an endpoint, and the roles it fills."""

    roles: tuple[str, ...]
    endpoint: Endpoint
    settings: ModelSettings

    @property
    def name(self) -> str:
        return f"{', '.join(self.roles)}: {self.settings.model} at {self.endpoint.base_url}"


def prepared(cfg: DictConfig, built: Bench) -> Bench:
    """The bench, once every endpoint has answered; what the doctor found out is in its models' settings.

    Nothing is asked when replaying, or with `endpoint.probe=false`.

    Raises:
        RunError: an endpoint is not there, refuses the key, or does not serve the model; in the paper profile also when it does not take
            what the model's settings send, or cuts prompts without a word.
    """
    asked = list(_models(built))
    if cfg.replay or not cfg.endpoint.probe or not (asked or built.embedder_endpoint):
        return built
    for one in [*asked, *_embedders(built)]:
        _check_key(one)
    try:
        if cfg.profile_name == "paper":
            return _examined(built, asked, cfg.endpoint.timeout)
        _check_all(built, asked, cfg.endpoint.timeout)
    except SpendingCapReached as error:  # the plan and the run say the same of their own calls
        print(f"note: the endpoints were not asked beforehand: {error}", file=sys.stderr)
    return built


def _check_all(built: Bench, asked: list[Asked], timeout: float) -> None:
    with progress_line("asking the endpoints", len(asked) + bool(built.embedder_endpoint)) as line:
        for one in asked:
            _check(one, chat=True, timeout=timeout)
            line.step()
        for one in _embedders(built):
            _check(one, chat=False, timeout=timeout)
            line.step()


def _models(built: Bench) -> Iterator[Asked]:
    """Chat models at endpoints, each once."""
    roles: dict[tuple[str, str, str], list[str]] = {}
    models: dict[tuple[str, str, str], Model] = {}
    for role in ("memory", "reader", "judge", "probe"):
        model: Model = getattr(built, role)
        if model.endpoint is not None and model.prices is not None:
            key = (model.endpoint.base_url, model.endpoint.key_env, repr(model.prices))
            roles.setdefault(key, []).append(role)
            models[key] = model
    for key, model in models.items():
        assert model.endpoint is not None
        assert model.prices is not None
        yield Asked(tuple(roles[key]), model.endpoint, model.prices)


def _embedders(built: Bench) -> Iterator[Asked]:
    if built.embedder_endpoint is not None and built.embedder_prices is not None:
        yield Asked(("embedder",), built.embedder_endpoint, built.embedder_prices)


def _line(one: Asked, timeout: float) -> Line:
    at = one.endpoint
    return Line(at.base_url, at.key_env, timeout=min(timeout, PATIENCE), settings=one.settings, purse=at.purse)


def _check_key(one: Asked) -> None:
    host = urlsplit(one.endpoint.base_url).hostname
    if not os.environ.get(one.endpoint.key_env) and host not in ("127.0.0.1", "localhost", "::1"):
        raise _refusal(one, f"no key for {one.endpoint.base_url} in the environment variable {one.endpoint.key_env}")


def _check(one: Asked, *, chat: bool, timeout: float) -> None:
    """One short question, tried again while the server is merely busy."""
    with _line(one, timeout) as line:
        for _ in range(ATTEMPTS):
            heard = _short(line, one.settings, chat)
            if not heard.busy:
                break
    if heard.busy:
        print(f"note: {one.name} is there but busy or failing: {heard.error}", file=sys.stderr)
    elif not heard.ok:
        raise _refusal(one, heard.error)


def _short(line: Line, settings: ModelSettings, chat: bool) -> Heard:
    if chat:
        return ask(line, settings, "Reply with the word ready.", 16)
    return line.embed({"model": settings.model, "input": ["ready"], **settings.extra_body})


def _refusal(one: Asked, why: str) -> RunError:
    return RunError(
        f"{one.name}: {why}\n  remedy: {remedy(why)}\n"
        "  (asked before anything was planned or built; replay=true answers from the cache alone, endpoint.probe=false does not ask)"
    )


def _examined(built: Bench, asked: list[Asked], timeout: float) -> Bench:
    """The doctor on every model, its tables on standard error, and what it learned in the models' settings."""
    learned: dict[str, ModelSettings] = {}
    for one in asked:
        with _line(one, timeout) as line:
            examination = examine(line, one.settings, window=WINDOW)
        print(f"{one.name} ({line.calls} calls)\n{table(examination.findings)}", file=sys.stderr)
        if examination.stops:
            wanted = _differences(one.settings, examination.settings)
            said = "; ".join(f"{each.asked}: {each.found} ({each.means})" for each in examination.stops)
            advice = f"\n  settings that fit, for conf/llm: {wanted}" if wanted else ""
            raise RunError(f"{one.name} will not do: {said}{advice}")
        facts = {name: getattr(examination.settings, name) for name in ("logprobs", "context_tokens")}
        learned |= dict.fromkeys(one.roles, replace(one.settings, **facts))
    for one in _embedders(built):
        with _line(one, timeout) as line:
            findings = examine_embedder(line, one.settings)
        print(f"{one.name} ({line.calls} calls)\n{table(findings)}", file=sys.stderr)
        if stops := [each for each in findings if each.level == "stop"]:
            raise RunError(f"{one.name} will not do: {stops[0].found} ({stops[0].means})")
    return replace(built, **{role: replace(getattr(built, role), prices=facts) for role, facts in learned.items()})


def _differences(before: ModelSettings, after: ModelSettings) -> Mapping[str, Any]:
    return {name: getattr(after, name) for name in SENT if getattr(before, name) != getattr(after, name)}

"""The settings `local.*`: real models on this machine instead of an endpoint, and an estimate of their minutes."""

from __future__ import annotations

import atexit
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from data_loaders.source import file_sha256
from eval.report.counted import counted
from memsys.llm.llama import LlamaServer
from memsys.llm.pricing import ModelSettings
from scripts.assembly.plan import Plan
from scripts.settings.prices import NOTHING
from scripts.settings.schema import Settings
from scripts.setup.local_files import model_file
from scripts.setup.probe_calls import EndpointProbe
from scripts.setup.probes import ask

S = TypeVar("S", bound=Settings)


def with_local_models(cfg: S) -> S:
    """Start the models of `local.model` and `local.embedder`; return the settings with these models instead of an endpoint's.

    Raises:
        RunError: a model is missing.
        EndOfRun: llama.cpp cannot load it.
        ImportError: the extra is not installed.
    """
    if cfg.local.model is not None:
        cfg = _with_chat_model(cfg, model_file(cfg.local.model))
    if cfg.local.embedder is not None:
        cfg = _with_embedder(cfg, model_file(cfg.local.embedder))
    return cfg


def _with_chat_model(cfg: S, file: Path) -> S:
    url = "http://127.0.0.1:9/v1"  # a replay sends nothing
    if not cfg.replay:
        url = _served(file, cfg.local.window, cfg.local.slots, cfg.local.threads, False).base_url
    label = f"local {file_sha256(file)[:12]}, window {cfg.local.window}"
    roles = {role: getattr(cfg.models, role) or file.stem for role in ("memory", "reader", "judge")}
    endpoint = {"base_url": url, "label": label, "in_flight": cfg.local.slots}
    return cfg.changed(endpoint=endpoint, models=roles, prices={**cfg.prices, file.stem: NOTHING})


def _with_embedder(cfg: S, place: Path) -> S:
    if place.is_dir():  # a sentence-transformers model, which `build_models` loads
        return cfg.changed(models={"embedder": "minilm"}, local={"embedder": str(place)})
    if not cfg.replay:
        url = _served(place, cfg.local.window, 1, cfg.local.threads, True).base_url
        cfg = cfg.changed(endpoints={"embedder": {"base_url": url}})
    return cfg.changed(models={"embedder": place.stem}, prices={**cfg.prices, place.stem: NOTHING})


@cache
def _served(file: Path, window: int, slots: int, threads: int | None, embeds: bool) -> LlamaServer:
    """The server of a model with these settings; a process has one server per setting."""
    server = LlamaServer(file, window=window, slots=slots, threads=threads, embeds=embeds)
    atexit.register(server.close)
    return server


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a local model."""

    prompt_tokens_a_second: float
    reply_tokens_a_second: float


def pace(base_url: str, model: str) -> Pace:
    """Measure a model with two calls: a long prompt with a reply of one token, and a short prompt with a longer reply."""
    settings = ModelSettings(model)
    with EndpointProbe(base_url, "", settings=settings) as line:
        long = ask(line, settings, "The weather was fine that day. " * 60, 1)
        short = ask(line, settings, "Count from 1 to 60, in figures, with spaces between them.", 32)
    return Pace(
        (long.tokens("prompt_tokens") or 400) / max(long.seconds, 1e-3),
        (short.tokens("completion_tokens") or 32) / max(short.seconds, 1e-3),
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
        """The estimate with its reason."""
        return (
            f"Local model: {counted(self.calls, 'call')} with {self.tokens_in} prompt tokens, "
            f"read at {self.pace.prompt_tokens_a_second:.0f} a "
            f"second and written at {self.pace.reply_tokens_a_second:.0f} a second: about {self.minutes} minutes"
        )


def at_pace(plan: Plan, pace: Pace, most_reply_tokens: int) -> Plan:
    """Return the plan with the duration for a local model of this pace.

    Args:
        most_reply_tokens: the limit of a reply.
    """
    asked = [share for share in plan.shares if share.role != "embedder"]
    calls, tokens_in = sum(share.calls for share in asked), sum(share.tokens_in for share in asked)
    tokens_out = sum(share.tokens_out for share in asked)
    duration = LocalDuration(pace, calls, tokens_in, tokens_out, max(tokens_out, calls * most_reply_tokens))
    return replace(plan, duration=duration)

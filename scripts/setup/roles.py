"""Which model fills each role (the user's, the paper's or an offline engine), and at which endpoint with which key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsys.llm.batching.endpoint import BatchEndpoint, BatchSettings
from memsys.llm.batching.journal import Journal
from memsys.llm.endpoint import Endpoint, EndpointLimits
from memsys.llm.pricing import ModelSettings, Purse

if TYPE_CHECKING:
    from scripts.settings.schema import Settings

OPENAI = "https://api.openai.com/v1"
STAND_IN = {"memory": "extractive", "reader": "extractive", "judge": "extractive", "embedder": "hashing"}
"""Offline engines by role; used where `models.<role>` is null and no paper sets it."""


def chosen_models(cfg: Settings, papers_models: Mapping[str, str] | None = None) -> dict[str, str]:
    """The model of each role: the user's, else in the paper profile that of `papers_models`, else the offline engine."""
    paper = papers_models if papers_models is not None and cfg.profile_name == "paper" else {}
    own = dict(cfg.models)
    return {role: own[role] or paper.get(role) or engine for role, engine in STAND_IN.items()}


def other_models(cfg: Settings, backbone: Mapping[str, Any]) -> list[str]:
    """Roles that are not filled by the paper's model, with both names.

    A probe that is not named is the reader, for us and for the paper.
    """
    ours = {**dict(cfg.models), "probe": cfg.models.probe or cfg.models.reader}
    theirs = {**backbone["models"], "probe": backbone["models"].get("probe", backbone["models"]["reader"])}
    return [f"{role} {ours[role]} (the paper's: {model})" for role, model in theirs.items() if ours[role] != model]


class Endpoints:
    """Endpoints of an experiment. Roles at the same URL with the same key share one."""

    def __init__(self, cfg: Settings, purse: Purse, cache: Path) -> None:
        self._cfg, self.purse, self._cache = cfg, purse, cache
        self.batched: dict[Endpoint, BatchEndpoint] = {}
        self.prices = cfg.prices
        self.built: dict[tuple[str, str], Endpoint] = {}

    def url(self, option: Mapping[str, Any], role: str) -> str:
        """URL of a role's model: the role's own endpoint, else that of the model's file, else the common one."""
        common = self._cfg.endpoint.base_url
        return str(getattr(self._cfg.endpoints, role).base_url or option.get("base_url") or common or OPENAI)

    def key_env(self, option: Mapping[str, Any], role: str) -> str:
        """The environment variable that holds the key of a role's model."""
        return str(getattr(self._cfg.endpoints, role).key_env or option.get("key_env") or self._cfg.endpoint.key_env)

    def title(self, name: str, option: Mapping[str, Any], role: str) -> str:
        """A model's name, with its URL and key variable where they are not the common ones: one name at two endpoints is two models."""
        common = (self._cfg.endpoint.base_url or OPENAI, self._cfg.endpoint.key_env)
        url, key_env = self.url(option, role), self.key_env(option, role)
        return name if option["engine"] != "http" or (url, key_env) == common else f"{name} at {url} with {key_env}"

    def endpoint(self, option: Mapping[str, Any], role: str) -> Endpoint:
        """The endpoint of a role's model; built on first use."""
        cfg, url, key_env = self._cfg.endpoint, self.url(option, role), self.key_env(option, role)
        if (url, key_env) not in self.built:
            names = ("timeout", "retries", "backoff", "patience", "max_reply_mb", "rpm", "tpm")
            stated = {name: getattr(cfg, name) for name in names}
            limits = EndpointLimits(in_flight=option.get("in_flight") or cfg.in_flight, **stated)
            label = cfg.label if url == cfg.base_url and cfg.label else url
            self.built[url, key_env] = Endpoint(url, limits, label=label, key_env=key_env, purse=self.purse)
        return self.built[url, key_env]

    def batches(self, endpoint: Endpoint) -> BatchEndpoint | None:
        """The batch API of an endpoint, built on first use; None in live mode."""
        mode = self._cfg.endpoint.mode
        if mode == "live":
            return None
        if endpoint not in self.batched:
            settings = BatchSettings(**dict(self._cfg.endpoint.batch), collect=mode == "collect")
            self.batched[endpoint] = BatchEndpoint(endpoint, Journal(self._cache), settings)
        return self.batched[endpoint]

    def settings(self, name: str, option: Mapping[str, Any]) -> ModelSettings:
        """A model's settings, with the prices that the user set for its file or its name."""
        known = option["settings"]
        return ModelSettings(**{**known, **self.prices.get(known["model"], {}), **self.prices.get(name, {})})

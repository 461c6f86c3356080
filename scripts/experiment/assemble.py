"""Configuration to objects, once: models by role, data, and the runs of an experiment. Hydra ends here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hydra.utils import get_class, get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from data_loaders.lazy import LazyCases, as_lazy
from data_loaders.source import Source, locate
from data_loaders.units import lost_evidence, make_units
from eval.costs import Price
from eval.gold_evidence import gold_evidence
from eval.judge import Judge
from eval.metrics.lexical import splitter
from eval.provenance import ROOT, identity, source_digest, surroundings
from eval.reader import Reader
from eval.rehearsal import rehearse
from eval.run import Run, Services, declared_prompts, needs
from eval.score import Judging, Metric
from eval.store import RunError
from memsys.embed import Embedder, HashingEmbedder
from memsys.interface import MemorySystem
from memsys.lean import collect_rarely
from memsys.llm.cache import CachedEmbedder, CachedLLM
from memsys.llm.client import Client, HttpEmbedder
from memsys.llm.endpoint import Endpoint
from memsys.llm.meter import Metered
from memsys.llm.network import forbid_network
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import KNOWLEDGE, ModelSettings, Purse
from memsys.llm.replies import POLICY
from memsys.llm.store import Store
from memsys.llm.traffic import Traffic
from memsys.prompts import Prompts
from memsys.tokens import count_tokens
from scripts.experiment.roles import Places, chosen_models
from scripts.experiment.source_code import sources, used_distributions
from scripts.settings.checking import checked_call, checked_option, checked_unit, nearest

CONF = ROOT / "conf"
KEPT_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class Model:
    """A model in its role."""

    name: str
    llm: Metered
    settings: Mapping[str, Any]
    """What identifies it: settings, endpoint label, or the source of the offline engine."""
    prices: ModelSettings | None
    """None for an offline engine."""
    endpoint: Endpoint | None = None
    """None for an offline engine."""

    @property
    def stand_in(self) -> bool:
        return self.prices is None

    @property
    def identity(self) -> str:
        return identity({"model": self.settings})


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that is built once for an experiment."""

    memory: Model
    reader: Model
    judge: Model
    probe: Model
    embedder: Embedder
    embedder_name: str
    embedder_settings: Mapping[str, Any]
    embedder_prices: ModelSettings | None
    embedder_stand_in: bool
    prompts: Prompts
    purse: Purse
    results: Path
    model: Callable[[str], Model]
    """Any further model by name, built once; a second judge, for instance."""
    models: Mapping[str, Model]
    """Those built so far, by name."""
    embedder_endpoint: Endpoint | None
    """None for one that runs here."""
    endpoints: Mapping[tuple[str, str], Endpoint]
    """Those built so far, by URL and the variable that holds the key."""

    def traffic(self) -> list[Traffic]:
        """What is on its way at each endpoint now, for the progress line."""
        return [endpoint.snapshot() for endpoint in self.endpoints.values()]

    @property
    def services(self) -> Services:
        probe = self.probe.llm.in_role("probe")  # whichever model it is, its tokens have its own price
        return Services(self.memory.llm, self.reader.llm, probe, self.embedder, self.prompts)

    @property
    def prices(self) -> dict[str, Price]:
        """What tokens cost: by role, and by a model's identity for judges; offline engines have no price."""
        roles = {"memory": self.memory, "reader": self.reader, "probe": self.probe}
        roles |= {one.identity: one for one in self.models.values()}
        known = {name: model.prices for name, model in roles.items()} | {"embedder": self.embedder_prices}
        return {name: prices.cost for name, prices in known.items() if prices is not None}

    @property
    def stand_ins(self) -> list[str]:
        """Roles filled by an offline engine."""
        roles = {"memory": self.memory, "reader": self.reader, "judge": self.judge}
        if self.probe is not self.reader:
            roles["probe"] = self.probe
        known = {id(model) for model in roles.values()}
        roles |= {f"judge {name}": model for name, model in self.models.items() if id(model) not in known}
        found = [role for role, model in roles.items() if model.stand_in]
        return [*found, "embedder"] if self.embedder_stand_in else found


@dataclass(frozen=True, slots=True)
class Data:
    """A data set, ready to be run."""

    name: str
    title: str
    cases: LazyCases
    source: Source
    settings: Mapping[str, Any]
    """What identifies it."""
    config: Mapping[str, Any]
    note: str = ""
    """What its loader wants said in captions."""


def options(group: str) -> list[str]:
    """Names of the files of a configuration group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def load_option(group: str, name: str) -> dict[str, Any]:
    """One file of a configuration group.

    Raises:
        RunError: there is no such file; the message lists those that exist. Or a value that its schema refuses.
    """
    path = CONF / group / f"{name}.yaml"
    if "/" in name or not path.is_file():
        known = options(group)
        raise RunError(f"no {group} called {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return deepcopy(_option(group, path))


@cache
def _option(group: str, path: Path) -> dict[str, Any]:
    return checked_option(group, _values(path), path.relative_to(CONF.parent))


@cache
def _values(path: Path) -> dict[str, Any]:
    """A file of values, parsed once: a table of sweeps asks for the same few hundreds of times."""
    return dict(OmegaConf.to_container(OmegaConf.load(path), resolve=True))  # type: ignore[arg-type]


_surroundings = cache(surroundings)


def bench(cfg: DictConfig) -> Bench:
    """Build models, cache and embedder from the configuration, each once."""
    forbid_network(not cfg.network)
    collect_rarely()
    results = Path(cfg.results)
    store = Store(Path(cfg.cache) if cfg.cache else results / "cache.sqlite")
    places = Places(cfg, Purse(cfg.max_usd))
    models: dict[str, Model] = {}

    def model(name: str, role: str = "judge") -> Model:
        option = _option_or_any("llm", name, cfg, role)
        key = places.title(name, option, role)
        if key not in models:
            models[key] = _model(cfg, name, option, places, role, store)
        return models[key]

    names = chosen_models(cfg)
    embedder, embedder_settings, embedder_prices, embedding = _embedder(cfg, names["embedder"], store, places)
    reader_model = model(names["reader"], "reader")
    own_probe = cfg.models.probe or cfg.endpoints.probe.base_url or cfg.endpoints.probe.key_env
    return Bench(
        memory=model(names["memory"], "memory"),
        reader=reader_model,
        judge=model(names["judge"], "judge"),
        probe=model(cfg.models.probe or names["reader"], "probe") if own_probe else reader_model,
        embedder=embedder,
        embedder_name=str(embedder_settings.get("model", names["embedder"])),
        embedder_settings=embedder_settings,
        embedder_prices=embedder_prices,
        embedder_stand_in=names["embedder"] == "hashing",
        embedder_endpoint=embedding,
        prompts=Prompts(cfg.prompts_dir),
        purse=places.purse,
        results=results,
        model=model,
        models=models,
        endpoints=places.built,
    )


def _model(cfg: DictConfig, name: str, option: Mapping[str, Any], places: Places, role: str, store: Store) -> Model:
    if option["engine"] == "extractive":
        engine = {key: value for key, value in option.items() if key != "engine"}
        settings = {"engine": "extractive", "source": source_digest(["memsys.llm.offline.extractive"]), **engine}
        return Model(name, Metered(ExtractiveLLM(**engine)), settings, None)
    if (most := cfg.endpoint.max_output_tokens) is not None:
        option = {**option, "settings": {**option["settings"], "max_output_tokens": most}}
    known, at = places.settings(name, option), places.endpoint(option, role)
    client = None if cfg.replay else Client(at, known)
    identifying = {key: value for key, value in option["settings"].items() if key not in KNOWLEDGE}
    settings = {"endpoint": at.label, **identifying}
    return Model(known.model, Metered(CachedLLM(client, store, known, at.label)), settings, known, at)


def _option_or_any(group: str, name: str, cfg: DictConfig, role: str) -> dict[str, Any]:
    """A file of the group, or any model of that name when there is an endpoint of one's own to ask for it."""
    if name in options(group):
        return load_option(group, name)
    if cfg.endpoints[role].base_url is None and cfg.endpoint.base_url is None:
        raise RunError(
            f"no {group} called {name!r} (there are: {', '.join(options(group))}), and no endpoint.base_url to ask for it"
        )
    return {"engine": "http", "settings": {"model": name}}


def _embedder(
    cfg: DictConfig, name: str, store: Store, places: Places
) -> tuple[Embedder, dict[str, Any], ModelSettings | None, Endpoint | None]:
    option = _option_or_any("embedder", name, cfg, "embedder")
    if option["engine"] == "hashing":
        settings = {**option, "source": source_digest(["memsys.embed"])}
        return HashingEmbedder(option["dimension"]), {**settings, "model": "hashing"}, None, None
    if option["engine"] == "local":
        from memsys.local_embedder import LocalEmbedder

        local = None if cfg.replay else LocalEmbedder(option["model"])
        if local is not None:
            local.fetch(["warm"])  # a first call is several times as long as any other, and is timed for nobody
        return CachedEmbedder(local, store, option["model"], "local"), option, None, None
    known, at = places.settings(name, option), places.endpoint(option, "embedder")
    prefix = option.get("query_prefix", "")
    inner = None if cfg.replay else HttpEmbedder(at, known, batch=option.get("batch", 128), query_prefix=prefix)
    settings = {
        "endpoint": at.label,
        "model": known.model,
        "query_prefix": prefix,
        "max_input_tokens": known.max_input_tokens,
    }
    return CachedEmbedder(inner, store, known.model, at.label, query_differs=bool(prefix)), settings, known, at


def check_data_root(cfg: DictConfig) -> Path | None:
    """The folder of raw files that the user named; None when none was.

    Raises:
        RunError: there is no such folder.
    """
    named = cfg.data.root or (os.environ.get("MEMSYS_DATA") if cfg.data.source == "real" else None)
    if named and not Path(named).expanduser().is_dir():
        where = "data.root (make … DATA=)" if cfg.data.root else "the environment variable MEMSYS_DATA"
        raise RunError(f"{where}: no folder {named}; name the one that holds the data sets' folders, or make it first")
    return Path(cfg.data.root).expanduser() if cfg.data.root else None


def data(cfg: DictConfig, config: Mapping[str, Any]) -> Data:
    """Find, verify, load and cut a data set.

    Raises:
        DataError: it is not there or not what the manifest knows; the message says how to get it.
    """
    root = check_data_root(cfg)
    located = locate(config, real=cfg.data.source == "real", root=root, unpinned=cfg.data.unpinned)
    loading = checked_call(f"dataset {config['name']}: load", {**config["load"], **located.choices})
    source, load = located.source, {name: value for name, value in loading.items() if name != "_partial_"}
    cases = as_lazy(instantiate({**load, "_partial_": True})(source.path))
    settings = {
        "load": {name: str(value) for name, value in load.items()},
        "sha256": [source.sha256, *(each.sha256 for each in located.beside)],
        "transform": cfg.data.transform,
        "size": cfg.data.size,
        "max_cases": cfg.data.max_cases,
        "seed": cfg.data.seed,
    }
    kept = _kept(_cut(cfg, cases), source.path)
    note = instantiate({**config["caption"], "_partial_": True})(source.path) if "caption" in config else ""
    return Data(config["name"], config["title"], kept, source, settings, config, note)


def _kept(cases: LazyCases, path: Path) -> LazyCases:
    """Small sets are parsed once and kept; of large ones a case is parsed whenever it is taken."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if sum(file.stat().st_size for file in files) > KEPT_BYTES:
        return cases
    return LazyCases(cases.ids, cases.sizes, lru_cache(maxsize=None)(cases.__getitem__))


def _cut(cfg: DictConfig, cases: LazyCases) -> LazyCases:
    from data_loaders.transforms import oracle, permute_all, subset

    if cfg.data.size != "all":
        n_cases = min(len(cases), cfg.data.max_cases or 2)
        cases = subset(cases, n_cases=n_cases, n_questions=-(-int(cfg.data.size) // n_cases), seed=cfg.data.seed)
    elif cfg.data.max_cases is not None:
        cases = subset(cases, n_cases=cfg.data.max_cases, seed=cfg.data.seed)
    if cfg.data.transform == "oracle":
        return oracle(cases)
    if cfg.data.transform in ("permute", "permute_between_questions"):
        return permute_all(cases, seed=cfg.data.seed, across_questions=cfg.data.transform == "permute")
    if cfg.data.transform != "none":
        known = "none, oracle, permute or permute_between_questions"
        raise RunError(f"data.transform must be {known}, found {cfg.data.transform!r}")
    return cases


def reader(name: str) -> Reader:
    """A reader by the name of its file."""
    return Reader(**load_option("reader", name))


def judging(cfg: DictConfig, built: Bench, name: str) -> Judging:
    """A judge by the name of its file; `mem0@gpt-4o-mini` puts another model behind it than `models.judge`."""
    file, _, other = name.partition("@")
    model = built.model(other) if other else built.judge
    judge = Judge(**load_option("judge", file))
    return Judging(judge, model.llm, model.identity, built.prompts, cfg.judge.repeats)


def metrics(names: Sequence[str]) -> list[Metric]:
    """Lexical metrics by name.

    Raises:
        RunError: an unknown name.
    """
    known = _values(CONF / "metrics.yaml")
    if unknown := [name for name in names if name not in known]:
        near = nearest(unknown[0], known)
        raise RunError(f"no metric called {', '.join(unknown)}{near}; there are: {', '.join(sorted(known))}")
    return [_metric(name, dict(known[name])) for name in names]


def _metric(name: str, option: dict[str, Any]) -> Metric:
    option.pop("title", None)
    more: dict[str, str] = {}
    if "sentences" in option:
        try:
            option["sentences"], more = splitter(option["sentences"]), {"nltk": version("nltk")}
        except ValueError as error:
            raise RunError(f"metric {name}: {error}") from error
    option = checked_call(f"metric {name}", {"_target_": option.pop("target", ""), **option})
    target = option.pop("_target_")
    return Metric(name, partial(get_method(target), **option), {**option, **more})


def memory_run(
    cfg: DictConfig,
    built: Bench,
    dataset: Data,
    memory: Mapping[str, Any],
    reading: Reader,
    *,
    unit: Mapping[str, Any] | None = None,
    replicate: int = 0,
) -> Run:
    """One memory on one data set.

    Raises:
        RunError: a setting of the memory is refused, or a service it needs is missing.
    """
    memory = checked_option("memory", memory)
    memory = {**memory, "build": checked_call(f"memory {memory['name']}", memory["build"])}
    targets: list[type[MemorySystem]] = [get_class(name) for name in _targets(memory["build"])]
    build = instantiate(dict(memory["build"]), _convert_="all")
    unit = unit or next((target.UNIT for target in targets if target.UNIT), None) or dataset.config["unit"]
    checked_unit(unit, f"memory {memory['name']} on {dataset.name}")
    offline = any(target.OFFLINE for target in targets)
    asks = needs(_innermost(build))
    described = {name: value for name, value in memory.items() if name not in ("name", "title")}
    parts = {
        "memory": described,
        "unit": dict(unit),
        "dataset": {"name": dataset.name, **dataset.settings},
        "reader": {name: getattr(reading, name) for name in reading.__slots__},
        "models": {
            "reader": built.reader.settings,
            **({"memory": built.memory.settings} if "llm" in asks else {}),
            **({"probe": built.probe.settings} if "probe" in asks else {}),
            **({"embedder": built.embedder_settings} if "embedder" in asks else {}),
        },
        "replies": POLICY,
        "prompts": built.prompts.digest([*(name for target in targets for name in target.PROMPTS), reading.prompt]),
        "source": sources(memory["build"], dataset.config["load"]["_target_"]),
        "distributions": used_distributions(memory["build"], dataset.config["load"]["_target_"]),
        "seed": [cfg.build.seed, replicate],
        "rebuild_every": cfg.build.rebuild_every if offline else 1,
    }
    folder = built.results / "runs" / dataset.name / f"{memory['name']}-{identity(parts)}"
    built_alike = {**parts, "memory": _without(described, targets[0].READ_KNOBS)}
    changes = _innermost(build).keywords.get("mutate_on_read", False)
    _check_logprobs(_built_once(build, memory["name"], built), memory["name"], built.probe, "probe" in asks)
    return Run(
        name=memory["name"],
        folder=folder,
        cases=dataset.cases,
        sizes=dataset.cases.sizes,
        build=build,
        reader=reading,
        unit=dict(unit),
        services=built.services,
        seed=cfg.build.seed,
        replicate=replicate,
        rebuild_every=cfg.build.rebuild_every,
        shared="" if changes else identity(built_alike),
        rehearse=partial(rehearse, build, dict(unit), built.prompts),
        control=partial(gold_evidence, unit=dict(unit)) if memory.get("gold_evidence") else None,
        vectors=bool(cfg.nodes.vectors),
        record={
            **parts,
            "name": memory["name"],
            "cases": len(dataset.cases),
            "prompts_dir": cfg.prompts_dir,
            "data_status": dataset.source.status,
            "made_with": _surroundings(),
        },
    )


def _without(memory: Mapping[str, Any], knobs: Sequence[str]) -> dict[str, Any]:
    """A memory's configuration less the settings that reading alone looks at."""
    return {**memory, "build": {name: value for name, value in memory["build"].items() if name not in knobs}}


def _targets(build: Mapping[str, Any]) -> list[str]:
    """Classes of a memory's configuration: its own, and that of the memory it wraps (`inner`), if any."""
    return [build["_target_"], *(_targets(build["inner"]) if "inner" in build else [])]


def _innermost(build: Any) -> Any:
    """The memory inside wrappers: its services are those that are used."""
    while "inner" in build.keywords:
        build = build.keywords["inner"]
    return build


def _built_once(build: Any, name: str, built: Bench) -> MemorySystem:
    """Build once and throw away: a wrong setting is refused before the first token is bought."""
    import numpy as np

    offered = {
        "llm": built.memory.llm,
        "probe": built.probe.llm,
        "embedder": built.embedder,
        "prompts": built.prompts.only(declared_prompts(build)),
        "rng": np.random.default_rng(0),
    }
    try:
        memory: MemorySystem = build(**{service: offered[service] for service in needs(build) if service in offered})
    except (TypeError, ValueError) as error:
        raise RunError(f"memory {name}: {error}") from error
    return memory


def _check_logprobs(memory: MemorySystem, name: str, probe: Model, probes: bool) -> None:
    """Refuse a memory that reads log-probabilities where the probe's settings, or the doctor, say that there are none."""
    innermost: MemorySystem = getattr(memory, "inner", memory)
    if probes and innermost.asks_logprobs and probe.prices is not None and probe.prices.logprobs is False:
        raise RunError(
            f"memory {name} reads log-probabilities, and the probe {probe.name} gives none; choose one that does with "
            "models.probe=… (endpoints.probe.base_url=… when another server has it)"
        )


def metric_title(name: str) -> str:
    """How tables print a metric: the implementation is part of the name."""
    if name.startswith("judge_"):
        file, _, model = name.removeprefix("judge_").partition("@")
        return f"{load_option('judge', file)['title']}{f' by {model}' if model else ''}"
    option = _values(CONF / "metrics.yaml")[name]
    by_punkt = option.get("sentences") in ("auto", "punkt") and splitter() == "punkt"
    return str(option.get("title", name)) + (", sentences by punkt" if by_punkt else "")


def caption(cfg: DictConfig, built: Bench, used: Sequence[tuple[Data, Reader, Mapping[str, Any]]]) -> tuple[str, ...]:
    """What a table must say of itself: models by role, data with their status, units with what they dropped, readers, engine."""
    lines = []
    if built.stand_ins:
        lines.append(
            f"STAND-IN: {', '.join(built.stand_ins)} filled by offline engines without a model. "
            "These numbers test the machinery; they say nothing about models and are never compared with published ones."
        )
    probe = "" if built.probe.name == built.reader.name else f", probe {built.probe.name}"
    models = f"memory {built.memory.name}, reader {built.reader.name}, judge {built.judge.name}{probe}"
    lines.append(f"Models: {models}; embedder {built.embedder_name}.")
    if cfg.build.rebuild_every > 1:
        lines.append(
            f"Offline memories are rebuilt at every {cfg.build.rebuild_every}th question point only; units since the last build are shown "
            "raw. The costs below are those of this schedule."
        )
    lines += [_data_line(cfg, dataset, reading, unit) for dataset, reading, unit in used]
    lines.append(
        "Cells: mean [95 % by question] {95 % by case} · scored/unscored/errored/not reached. "
        f"Judged {cfg.judge.repeats}x, built {cfg.build.replicates}x (± standard deviation where more than once)."
    )
    return tuple(lines)


def _data_line(cfg: DictConfig, dataset: Data, reading: Reader, unit: Mapping[str, Any]) -> str:
    turns = dropped = lost = questions = notes = 0
    for case in dataset.cases:
        made = make_units(case.sessions, count=count_tokens, **unit)
        turns += len(case.turns)
        dropped += len(made.dropped)
        questions += len(case.questions)
        lost += len(lost_evidence(case, made.dropped))
        notes += len(case.notes)
    rule = ", ".join(f"{name} {value}" if name != "rule" else str(value) for name, value in unit.items())
    cut = "" if cfg.data.transform == "none" else f", transform {cfg.data.transform}"
    return (
        f"{dataset.title}: {dataset.source.status} data (sha256 {dataset.source.sha256[:12]}), "
        f"{dataset.note + '; ' if dataset.note else ''}"
        f"{len(dataset.cases)} histories, {questions} questions"
        f"{cut}; default unit {rule} drops {dropped} of {turns} turns ({lost} questions lose evidence); "
        f"{notes} loader notes; reader {reading.name}."
    )

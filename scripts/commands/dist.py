"""Build wheel and sdist from a commit, the same bytes each time: `python -m scripts dist [--to dist]`; RELEASING.md says when.

Only files of the commit HEAD are built, so no untracked file is shipped. All times are the commit's.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import file_sha256
from eval.files.provenance import ROOT
from eval.files.store import RunError
from scripts.setup.arguments import verb_parser

GROUP = "develop"
CHECKOUT = True

MEGABYTES = 5
"""Size limit of the wheel: a larger wheel has a file that does not belong in it."""
BUILD = "import os, sys; os.umask(0o022); from setuptools import build_meta; {step}(sys.argv[1])"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("dist", __doc__)
    parser.add_argument("--to", type=Path, default=Path("dist"), help="folder for both files (default: dist)")
    for path in build(ROOT, parser.parse_args(arguments).to):
        print(f"{path}\t{path.stat().st_size / 1e6:.2f} MB\tsha256 {file_sha256(path)}")
    return 0


def build(root: Path, to: Path) -> tuple[Path, Path]:
    """Build the sdist of a repository's HEAD, and the wheel from that sdist; returns the paths of wheel and sdist.

    The bytes depend on the commit and the versions of setuptools and zlib, not on the machine's clock, user, umask or folders.

    Raises:
        RunError: there is no commit, its tag names another version, or a build failed.
    """
    when = _git(root, "log", "-1", "--format=%ct").decode().strip()
    source = _git(root, "archive", "--format=tar", "HEAD")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkout, unpacked, out = (Path(folder) / name for name in ("checkout", "unpacked", "out"))
        out.mkdir()
        with tarfile.open(fileobj=io.BytesIO(source)) as tar:
            tar.extractall(checkout, filter="data")
        version = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        tags = _git(root, "tag", "--points-at", "HEAD").decode().split()
        named = [tag for tag in tags if re.fullmatch(r"v\d.*", tag)]
        if named and f"v{version}" not in named:
            raise RunError(f"the tag is {named[0]}, and pyproject.toml says version {version}")
        _run("build_meta.build_sdist", checkout, out, when)
        (made,) = out.glob("*.tar.gz")
        sdist = to / made.name
        sdist.write_bytes(_normal(made.read_bytes(), int(when)))
        with tarfile.open(sdist) as tar:
            tar.extractall(unpacked, filter="data")
        _run("build_meta.build_wheel", unpacked / sdist.name.removesuffix(".tar.gz"), out, when)
        (made,) = out.glob("*.whl")
        if made.stat().st_size >= MEGABYTES * 1e6:
            raise RunError(f"{made.name} has {made.stat().st_size / 1e6:.1f} MB; it must be below {MEGABYTES}")
        wheel = to / made.name
        wheel.write_bytes(made.read_bytes())
    return wheel, sdist


def _normal(sdist: bytes, when: int) -> bytes:
    """An sdist with sorted members, one time, no owner and plain modes: setuptools writes the machine's."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=when) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted((member for member in old if member.isfile()), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, when, 0o644
            new.addfile(plain, old.extractfile(member))
    return packed.getvalue()


def _run(step: str, folder: Path, out: Path, when: str) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": when, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", BUILD.format(step=step), str(out)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{step} failed:\n{done.stderr[-1500:]}")


def _git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise RunError(f"a release is built from a commit: git {arguments[0]}: {done.stderr.decode().strip()}")
    return done.stdout

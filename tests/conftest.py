"""No network, no keys: what a test needs beyond this machine's own ports it does not get."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import scripts  # noqa: F401  # before numpy: matrix products keep to one core, as in every command

ROOT = Path(__file__).resolve().parents[1]
LOCAL = {None, "", "localhost", "127.0.0.1", "::1"}
SECRETS = ("_API_KEY", "_BASE_URL", "_API_BASE", "_ACCESS_TOKEN", "HF_TOKEN", "_PROXY", "_proxy")


class NetworkUsed(RuntimeError):
    """A test reached beyond this machine; not an OSError, so that no retry hides it."""


def _refuse_the_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"socket.connect", "socket.sendto"}:
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a Unix socket's address is a path
    elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = arguments[0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else host
    if name not in LOCAL:
        raise NetworkUsed(f"{event} {name}: tests run offline")


# Before any test module is imported; an audit hook cannot be taken away again.
sys.addaudithook(_refuse_the_network)
for variable in [name for name in os.environ if name.endswith(SECRETS)]:
    del os.environ[variable]
os.environ |= {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}
os.environ.pop(
    "COLUMNS", None
)  # pytest-xdist sets it: what a command prints into a pipe would be narrower than a user's
os.environ["MEMSYS_NAMESPACES"] = tempfile.mkdtemp(prefix="memsys-namespaces-")
atexit.register(shutil.rmtree, os.environ["MEMSYS_NAMESPACES"], ignore_errors=True)

# A busy machine is no failing test: time decides nothing here.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


MARKED = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(\w+)", re.MULTILINE)
"""The first mark of a module, which all its tests have."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether `-m "not slow and not data"` leaves out all tests of a module: then it is not even imported, which saves many seconds."""
    wanted = str(config.option.markexpr)
    if collection_path.suffix != ".py" or " or " in wanted or "(" in wanted:
        return None
    mark = MARKED.search(collection_path.read_text(encoding="utf-8"))
    return True if mark is not None and mark[1] in re.findall(r"\bnot (\w+)", wanted) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: looking through them for garbage again and again takes a third of the collecting time."""
    gc.disable()
    collected = yield
    if "hydra" in sys.modules:
        _parse_files_of_settings_once()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as commands with many calls do
    gc.enable()
    return collected


def _parse_files_of_settings_once() -> None:
    """Hydra parses and merges every file again at each composition, which takes most of it; the same texts give the same settings here."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository
    from hydra.core.object_type import ObjectType

    read, merge = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list
    parsed, merged = dict[Any, bytes](), dict[Any, bytes]()

    def text_of(repository: Any, config_path: str) -> tuple[str, str, bytes] | None:
        source = repository._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        of_file = source.scheme() == "file"
        text = Path(source.path, source._normalize_file_name(config_path)).read_bytes() if of_file else b""
        return source.full_path(), config_path, text

    def load_config(repository: ConfigRepository, config_path: str) -> Any:
        if (key := text_of(repository, config_path)) is None:
            return None
        if key not in parsed:
            parsed[key] = pickle.dumps(read(repository, config_path))
        return pickle.loads(parsed[key])  # a copy: settings of the command line are set in it

    def merge_files(loader: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        paths = [each.config_path for each in defaults if each.config_path is not None]
        key = (repr(defaults), *(text_of(repo.delegate, path) for path in paths))
        if key not in merged:
            merged[key] = pickle.dumps(merge(loader, defaults, repo))
        return pickle.loads(merged[key])

    ConfigRepository.load_config = load_config
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_files


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a long time limit run first: one that began last would run alone at the end."""

    def limit(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0]) if mark is not None and mark.args else 0.0

    items.sort(key=limit, reverse=True)


def _forget_a_stop() -> None:
    if (stopping := sys.modules.get("memsys.llm.stopping")) is not None and stopping.requested():
        stopping.forget()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of every scope: one of a module that runs a command must not find a stop of another test."""
    _forget_a_stop()


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command with `network=false` forbids it to the process, and an error ends its calls; the next test begins without."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = (
        handlers,
        level,
    )  # a command logs to its own standard error, which is gone
    _forget_a_stop()
    if (network := sys.modules.get("memsys.llm.network")) is not None:
        network.forbid_network(False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


class DataFolder(type(Path())):  # type: ignore[misc]  # the class of paths of this system
    """A folder of real data: a path below it that is not there skips the test, because nobody must hold every data set."""

    def __truediv__(self, name: Any) -> Any:
        path = super().__truediv__(name)
        if not path.exists():
            pytest.skip(f"no real data at {path}")
        return path


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets: MEMSYS_DATA, or `shared/data` beside the repository."""
    folder = DataFolder(os.environ.get("MEMSYS_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set MEMSYS_DATA to the folder that holds them")
    return folder


@pytest.fixture(scope="session")
def claims_root(data_root: Path) -> Path:
    """The folder with the real data sets, where the published answers and the questions that they belong to are there."""
    for name in ("third_party_answers/collected", "locomo/locomo10.json", "longmemeval/longmemeval_questions_500.json"):
        assert data_root / name
    return Path(data_root)  # a plain folder: the product looks for files that are compressed, too

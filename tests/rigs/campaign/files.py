"""Mutated files: raw data that loaders read, and the files of a finished run, including its cache."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_loaders.schema import DataError
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from scripts.mock.endpoint import Mock, application, serving
from tests.rigs.campaign.mutations import BROKEN_BYTES, mutated
from tests.rigs.campaign.trial import (
    QUESTIONS,
    ROOT,
    Outcome,
    broken_promises,
    differing,
    history,
    run_here,
    settings,
)
from tests.rigs.campaign.trial import results as left_by

SETS = (
    *("locomo", "locomo_audited", "longmemeval_s", "longmemeval_mab", "msc", "msc_e", "dmr", "multihop_rag", "perltqa"),
    *("quality_choice", "realmem", "personamem", "factconsolidation", "jsonl", "beam_1m", "gatemem"),
    *("longmemeval_v2", "halumem", "personamem_v2"),
)
BYTES = 0.2
"""Share of mutations that change bytes; the others change values and leave readable files."""


def _broken(raw: bytes, dice: random.Random) -> bytes:
    """A file's bytes after one mutation of the bytes, or after one to three mutations of its values."""
    try:
        lines = [json.loads(line) for line in raw.splitlines() if line.strip()]
        one = False
    except ValueError:
        try:
            lines, one = json.loads(raw), True
        except ValueError:
            return _scratched(raw, dice)
    if dice.random() < BYTES:
        return _bytes_changed(raw, dice)
    changed = mutated(json.dumps(lines), dice.getrandbits(64))
    if one or not isinstance(changed, list):
        return json.dumps(changed).encode()
    return b"".join(json.dumps(line).encode() + b"\n" for line in changed)


def _bytes_changed(raw: bytes, dice: random.Random) -> bytes:
    ways = list(BROKEN_BYTES.values())
    place = dice.randrange(len(ways) + 1)
    return ways[place](raw) if place < len(ways) else _scratched(raw, dice)


def _scratched(raw: bytes, dice: random.Random) -> bytes:
    """Change some bytes, or cut off the end."""
    if dice.random() < 0.3:
        return raw[: dice.randrange(len(raw) + 1)]
    changed = bytearray(raw)
    for _ in range(dice.choice((1, 16, 512))):
        if changed:
            changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def mutate_data(count: int, folder: Path, seed: int) -> Outcome:
    """Load broken copies of the shipped samples: a loader must accept them or say what is wrong with them."""
    from hydra.utils import instantiate

    from scripts.setup.options import load_option

    outcome, dice = Outcome("mutated files"), random.Random(seed)
    for number in range(count):
        option = load_option("dataset", SETS[number % len(SETS)])
        sample, copied = ROOT / "data_loaders" / "samples" / option["sample"], folder / option["sample"]
        if not copied.exists():
            (shutil.copytree if sample.is_dir() else shutil.copy)(sample, copied)
        path = dice.choice(sorted(file for file in copied.rglob("*") if file.is_file()) or [copied])
        raw = path.read_bytes()
        path.write_bytes(_broken(raw, dice))
        try:
            cases = instantiate(option["load"])(copied)
            for index in range(len(cases)):
                cases[index].turns  # noqa: B018  # every case is parsed
        except DataError as error:
            if not str(error):
                outcome.defects.append(f"data files, seed {seed}, mutation {number} of {path.name}: no message")
        except Exception as error:
            outcome.defects.append(f"data files, seed {seed}, mutation {number} of {path.name}: {error!r}"[:500])
        path.write_bytes(raw)
        outcome.tried["data files"] += 1
    return outcome


def mutate_runs(memory: str, count: int, folder: Path, seed: int) -> Outcome:
    """Break copies of a finished run's files: the next run must succeed, or name the file; without that file all results are as before."""
    from scripts.setup.launch import composed

    outcome, dice, results = Outcome("mutated files"), random.Random(f"{seed} {memory}"), folder / "run"
    with serving(application(Mock())) as url:
        cfg = composed("config", settings(memory, url, results, data=history(folder / "data")))
        run_here(cfg)
        run_here(cfg)  # the cache is complete in its one file once no process has it open
        undisturbed = left_by(results)
        kept = {path: path.read_bytes() for path in sorted(results.rglob("*")) if path.is_file()}
        paths = [path for path in kept if kept[path] and not path.name.endswith(("-wal", "-shm"))]
        for number in range(count):
            path = paths[number % len(paths)]
            path.write_bytes(_broken(kept[path], dice))
            where = f"{memory}, seed {seed}, mutation {number} of {path.name}"
            outcome.defects += [f"{where}: {defect}" for defect in _after(cfg, path, results, undisturbed)]
            outcome.tried["run files"] += 1
            shutil.rmtree(results)
            for each, raw in kept.items():
                each.parent.mkdir(parents=True, exist_ok=True)
                each.write_bytes(raw)
    return outcome


def _after(cfg: Any, path: Path, results: Path, undisturbed: dict[str, bytes]) -> Iterator[str]:
    """Broken guarantees of the tools and of the run after a file was broken."""
    yield from _looked_at(next(results.glob("runs/*/*")))
    try:
        ended = run_here(cfg)
    except TimeoutError as error:
        yield str(error)
        return
    yield from broken_promises(ended, results, QUESTIONS)
    if ended.code != 2:
        return
    if not deleted(path, results, ended.err):
        yield f"the message names neither the file nor a folder to delete: {ended.err.strip()[-200:]}"
        return
    again = run_here(cfg)
    if again.code or differing(left_by(results), undisturbed):
        yield f"once deleted: exit {again.code}, {differing(left_by(results), undisturbed)} differ: {again.err[-200:]}"


def deleted(path: Path, results: Path, message: str) -> bool:
    """Delete the path that a message names, the broken file or the folder of its run; False when it names neither."""
    if path.name in message:
        path.unlink(missing_ok=True)
        return True
    for folder in path.parents:
        if results in folder.parents and re.search(rf"delete {re.escape(str(folder))}(?!\S)", message):
            shutil.rmtree(folder)
            return True
    return False


def _looked_at(run_folder: Path) -> Iterator[str]:
    """Read the structure and the record."""
    from scripts.assembly.run_folders import trees_of

    try:
        trees_of(run_folder, RunFolder(run_folder).record())
    except RunError:
        pass
    except Exception as error:
        yield f"a look at the structure: {error!r}"[:400]

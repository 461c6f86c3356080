"""Speed against the shipped mock endpoint, as ratios of one run: `python -m scripts.bench [--only NAME …]`.

Each line is a measurement, its bound, and whether it holds. Absolute times depend on the machine; what is promised are ratios,
calls and memory.
`kill` kills a run twenty times at random moments and lets the mock's own counter tell what was asked twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.commands.bench_gateway import gateway
from scripts.commands.measured import ROOT, Measured, mock, stats


def _services(url: str, cache: Path, in_flight: int = 64) -> tuple[Any, Any, Any]:
    from memsys.lean import collect_rarely
    from memsys.llm.cache import CachedEmbedder, CachedLLM
    from memsys.llm.client import Client, HttpEmbedder
    from memsys.llm.endpoint import Endpoint
    from memsys.llm.meter import Metered
    from memsys.llm.pricing import ModelSettings
    from memsys.llm.store import Store

    collect_rarely()  # as `scripts.experiment.models.build_models` does
    store, settings = Store(cache), ModelSettings("mock")
    endpoint = Endpoint(url, label="mock", in_flight=in_flight, retries=12, backoff=0.05)
    llm = Metered(CachedLLM(Client(endpoint, settings), store, settings, "mock"))
    return llm, CachedEmbedder(HttpEmbedder(endpoint, settings), store, "mock", "mock"), endpoint


def _run(url: str, folder: Path, cases: Sequence[Any], build: Any, in_flight: int = 64) -> Any:
    from data_loaders.lazy import as_lazy
    from eval.reader import Reader
    from eval.run import Run, Services
    from memsys.prompts import Prompts

    llm, embedder, _ = _services(url, folder / "cache.sqlite", in_flight)
    lazy = as_lazy(cases)
    services = Services(llm, llm, llm, embedder, Prompts())
    reader = Reader("bench", "bench", "reader/segtree", None, 64, 0.0)
    return Run("bench", folder / "run", lazy, lazy.sizes, build, reader, {"rule": "ab_pair"}, services)


def _cases(histories: int, questions: int, turns: int = 60) -> list[Any]:
    """Synthetic histories, about as wordy as LoCoMo's."""
    from data_loaders.schema import Case, Gold, Question, Session, Turn

    words = [f"{start}{end}" for start in "balfromkitesduv" for end in ("alan", "ering", "oth", "umi", "ester", "ivo")]
    rng = random.Random(7)

    def said(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count))

    cases = []
    for history in range(histories):
        sessions = [
            Session(
                f"s{s}",
                tuple(Turn(f"s{s}:{t}", "AB"[t % 2], said(22), ("user", "assistant")[t % 2]) for t in range(20)),
            )
            for s in range(turns // 20)
        ]
        asked = [(Question(f"q{q}", f"Did {said(8)}?"), Gold((said(4),), category="x")) for q in range(questions)]
        cases.append(Case(f"case-{history}", ("A", "B"), tuple(sessions), tuple(asked), f"case-{history}"))
    return cases


def answer_and_judge() -> list[Measured]:
    """1,540 questions, answered and judged at 200 ms, 64 in flight, against the ideal; one question before loads what is loaded once."""
    from functools import partial

    from eval.judge import Judge
    from eval.loop import run_all
    from eval.score import Judging, score_judge
    from memsys.prompts import Prompts
    from memsys.systems.controls import Recency
    from scripts.experiment.options import load_option

    judge = Judge(**load_option("judge", "segtree"))

    def seconds(url: str, folder: Path, cases: Sequence[Any]) -> float:
        run = _run(url, folder, cases, partial(Recency, k=10))
        started = time.perf_counter()
        run_all([run], threads=8)
        score_judge(run, Judging(judge, run.services.reader, "mock", Prompts()))
        return time.perf_counter() - started

    with mock("--latency", "0.2") as url, tempfile.TemporaryDirectory() as folder:
        seconds(url, Path(folder) / "warm", _cases(1, 1))
        before = stats(url)["answered"]
        taken = seconds(url, Path(folder) / "timed", _cases(10, 154))
        calls = stats(url)["answered"] - before
    ratio = calls * 0.2 / 64 / taken
    return [
        Measured(
            "answer + judge, 1,540 questions after a warm-up of one, 200 ms, 64 in flight: ideal ÷ measured",
            f"{ratio:.3f} ({taken:.1f} s, {calls} calls)",
            "≥ 0.90",
            ratio >= 0.9,
        )
    ]


def client_cpu() -> list[Measured]:
    """CPU of one call through meter, cache and client, at no latency; beside it a bare POST of the same body with the same library."""
    from memsys.llm.client import chat_body
    from memsys.llm.meter import metering
    from memsys.llm.pricing import ModelSettings
    from memsys.llm.protocol import Request

    with mock() as url, tempfile.TemporaryDirectory() as folder:
        llm, _, endpoint = _services(url, Path(folder) / "cache.sqlite")
        llm.submit(Request((("user", "warm up"),), "bench.call")).result()
        requests = [Request((("user", f"question {number} " + "word " * 300),), "bench.call") for number in range(3000)]
        started = time.process_time()
        with metering():
            for future in [llm.submit(request) for request in requests]:
                future.result()
        milliseconds = (time.process_time() - started) / len(requests) * 1000
        endpoint.close()
        bodies = [json.dumps(chat_body(ModelSettings("mock"), request)).encode() for request in requests]
        bare = _bare_posts(url, bodies) / len(bodies) * 1000
    return [
        Measured(
            "client CPU a call ÷ that of a bare aiohttp POST of the same body",
            f"{milliseconds / bare:.2f} ({bare:.3f} ms)",
            "≤ 3",
            milliseconds <= 3 * bare,
        ),
        Measured(
            "client CPU a call, through cache and meter", f"{milliseconds:.3f} ms", "≤ 0.6 ms", milliseconds <= 0.6
        ),
    ]


def _bare_posts(url: str, bodies: Sequence[bytes]) -> float:
    """CPU seconds of posting these bodies, 64 in flight, and reading the replies."""
    import asyncio

    import aiohttp

    from memsys.llm.transport import new_event_loop

    async def post_all() -> float:
        gate = asyncio.Semaphore(64)
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64), headers=headers) as session:

            async def post(body: bytes) -> None:
                async with gate, session.post(f"{url}/chat/completions", data=body) as reply:
                    json.loads(await reply.read())

            started = time.process_time()
            await asyncio.gather(*map(post, bodies))
            return time.process_time() - started

    loop = new_event_loop()
    try:
        return loop.run_until_complete(post_all())
    finally:
        loop.close()


def bm25_row() -> list[Measured]:
    """The bm25 row on LoCoMo (real where MEMSYS_DATA has it, else the samples): peak memory cold, seconds and calls warm."""
    from data_loaders.schema import DataError
    from data_loaders.source import find

    try:
        find("locomo/locomo10.json")
        data = ["profile=subset", "data.size=all"]
    except DataError:
        data = ["profile=smoke"]
    with mock() as url, tempfile.TemporaryDirectory() as folder:
        ends = [
            f"endpoint.base_url={url}",
            "endpoint.label=mock",
            "models.memory=mock",
            "models.reader=mock",
            "models.judge=mock",
        ]
        command = [
            sys.executable,
            "-m",
            "scripts.run",
            "memory=bm25",
            *data,
            *ends,
            "network=true",
            f"results={folder}",
        ]
        _, peak = _timed(command)
        before = stats(url)["arrivals"]
        warm = min(_timed(command)[0] for _ in range(3))
        calls = stats(url)["arrivals"] - before
    where = "full LoCoMo" if len(data) == 2 else "the samples (no real LoCoMo here)"
    return [
        Measured(f"peak memory, bm25 row on {where}", f"{peak / 1024:.0f} MB", "≤ 250 MB", peak <= 250 * 1024),
        Measured("provider calls of a warm rerun", str(calls), "0", calls == 0),
        Measured("seconds of a warm rerun, whole process", f"{warm:.2f} s", "≤ 2 s", warm <= 2.0),
    ]


def _timed(command: Sequence[str]) -> tuple[float, int]:
    """Wall seconds and peak memory (KiB) of a command that must succeed."""
    # Byte code is kept, as on a user's machine, also where the environment forbids it: it would be compiled anew each time.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = _wait(process)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said.decode()[-2000:]}")
    return time.perf_counter() - started, usage.ru_maxrss


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int, resource.struct_rusage]:
    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage


BARE = """
import hydra
@hydra.main(version_base="1.3", config_path={path!r}, config_name="config")
def main(cfg): pass
main()
"""


def start_up() -> list[Measured]:
    """`--help` against a script that imports Hydra and nothing else, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE.format(path=str(ROOT / "conf")))
        ours, bare = [], []
        for _ in range(7):
            ours.append(_timed([sys.executable, "-m", "scripts.run", "--help"])[0])
            bare.append(_timed([sys.executable, str(script), "--help"])[0])
    extra = sorted(ours)[3] - sorted(bare)[3]
    return [
        Measured("`scripts.run --help` beyond bare Hydra, medians of 7", f"{extra:.3f} s", "≤ 0.25 s", extra <= 0.25)
    ]


KILLED = """
import sys
from functools import partial
from pathlib import Path
from eval.loop import run_all
from memsys.systems.memtree import MemTree
from scripts.commands.bench import _cases, _run
run_all([_run(sys.argv[1], Path(sys.argv[2]), _cases(3, 20), partial(MemTree), in_flight=8)], threads=3)
"""


def kill(times: int = 20) -> list[Measured]:
    """kill -9 at random moments; then the run is let to end and compared with an undisturbed one."""
    rng = random.Random(11)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with mock("--latency", "0.03") as url:
            whole = _timed([sys.executable, "-c", KILLED, url, one])[0]
            calls = stats(url)["answered"]
        with mock("--latency", "0.03") as url:
            killed = 0
            for _ in range(times):
                process = subprocess.Popen([sys.executable, "-c", KILLED, url, other], cwd=ROOT)
                try:
                    process.wait(timeout=rng.uniform(0.4, 1.2) * whole / 4)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
                process.wait()
            _timed([sys.executable, "-c", KILLED, url, other])
            found = stats(url)
        same = _predictions(Path(one)) == _predictions(Path(other))
    repeated = found["repeated"]
    return [
        Measured(
            f"calls asked twice after {killed} kills, 8 in flight ({calls} calls in all)",
            str(repeated),
            f"≤ {8 * killed}",
            repeated <= 8 * killed,
        ),
        Measured("predictions equal an undisturbed run's", str(same), "True", same and killed > 0),
    ]


def _predictions(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("predictions.jsonl"))}


GROWING = ("segtree_cosine", "similarity_tree", "memtree", "memstream", "timem", "bm25")


class _Instant:
    """A model that answers at once: whatever fits the schema or the labels."""

    def submit(self, request: Any) -> Any:
        from concurrent.futures import Future

        from memsys.llm.protocol import Completion
        from scripts.mock.endpoint import fitting

        future: Any = Future()
        labels = request.fields.get("labels", ())
        text = (
            json.dumps(fitting(dict(request.schema), "7"))
            if request.schema
            else labels[0]
            if labels
            else "one short summary"
        )
        future.set_result(Completion(text, 10, 5))
        return future


def insertion() -> list[Measured]:
    """Own CPU of one more unit at 1,000 and at 10,000 units, models mocked: structure must not cost more than linear."""
    from hydra.utils import instantiate

    from data_loaders.units import make_units
    from eval.run import needs
    from memsys.embed import HashingEmbedder
    from memsys.prompts import Prompts
    from scripts.experiment.options import load_option

    units = make_units(_cases(1, 0, turns=20_000)[0].sessions, "ab_pair").units
    offered = {"llm": _Instant(), "probe": _Instant(), "embedder": HashingEmbedder(64), "prompts": Prompts()}
    measured = []
    for name in GROWING:
        build = instantiate(load_option("memory", name)["build"], _convert_="all")
        memory = build(**{service: offered[service] for service in needs(build) & set(offered)})
        times = []
        for first, last in ((0, 1000), (1000, 9000), (9000, 10_000)):
            started = time.process_time()
            for unit in units[first:last]:
                memory.write(unit)
            times.append((time.process_time() - started) / (last - first) * 1000)
        ratio = times[2] / max(times[0], 1e-6)
        value = f"{times[0]:.3f} ms, {times[2]:.3f} ms: {ratio:.1f}x"
        measured.append(
            Measured(
                f"CPU of one insertion into {name} up to 1,000 and up to 10,000 units", value, "≤ 10x", ratio <= 10
            )
        )
    return measured


BENCHES: dict[str, Callable[[], list[Measured]]] = {
    "answer_and_judge": answer_and_judge,
    "client_cpu": client_cpu,
    "gateway": gateway,
    "bm25_row": bm25_row,
    "start_up": start_up,
    "insertion": insertion,
    "kill": kill,
}


def _loop_seconds() -> float:
    """CPU seconds of a fixed loop: tells a slow machine, or a slow hour of one, from a slow program."""
    started = time.process_time()
    total = 0
    for number in range(3_000_000):
        total += number * number
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(BENCHES), default=list(BENCHES))
    chosen = parser.parse_args().only
    print(f"     a fixed loop of Python takes {_loop_seconds():.2f} s of CPU here and now", flush=True)
    measured = []
    for name in chosen:
        for one in BENCHES[name]():
            measured.append(one)
            print(f"{'ok  ' if one.holds else 'MISS'} {one.what}: {one.value} (bound {one.bound})", flush=True)
    return 0 if all(one.holds for one in measured) else 1

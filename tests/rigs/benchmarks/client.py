"""The CPU time of one call."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.rigs.benchmarks.histories import services
from tests.rigs.benchmarks.measured import Measured, mock


def client_cpu() -> list[Measured]:
    """CPU of one call through meter, cache and client, at no latency.

    The figure is absolute: a bare POST takes 0.10 ms here, so a ratio to it would rise whenever the HTTP library gets faster, although a
    call gets cheaper, too.
    """
    from memsys.llm.meter import metering
    from memsys.llm.protocol import Request

    with mock() as url, tempfile.TemporaryDirectory() as folder:
        llm, _, endpoint = services(url, Path(folder) / "cache.sqlite")
        llm.submit(Request((("user", "warm up"),), "bench.call")).result()
        requests = [Request((("user", f"question {number} " + "word " * 300),), "bench.call") for number in range(3000)]
        started = time.process_time()
        with metering():
            for future in [llm.submit(request) for request in requests]:
                future.result()
        milliseconds = (time.process_time() - started) / len(requests) * 1000
        endpoint.close()
    return [
        Measured(
            "client CPU a call, through cache and meter", f"{milliseconds:.3f} ms", "≤ 0.35 ms", milliseconds <= 0.35
        ),
    ]

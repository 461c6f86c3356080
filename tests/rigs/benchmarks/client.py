"""The CPU time of one call, next to that of a bare POST."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from tests.rigs.benchmarks.histories import services
from tests.rigs.benchmarks.measured import Measured, mock, post_all


def client_cpu() -> list[Measured]:
    """CPU of one call through meter, cache and client, at no latency, and of a bare POST of the same body with the same library.

    Both are printed without a bound. Milliseconds that hold on one machine do not hold on the next. The ratio lies at 3 here and varies
    by a tenth from run to run, and it rises when the HTTP library gets faster, although a call gets cheaper.
    """
    from memsys.llm.client import chat_body
    from memsys.llm.meter import metering
    from memsys.llm.pricing import ModelSettings
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
        bodies = [json.dumps(chat_body(ModelSettings("mock"), request)).encode() for request in requests]
        bare = post_all(url, bodies)[0] / len(bodies) * 1000
    return [
        Measured(
            "client CPU a call, through cache and meter",
            f"{milliseconds:.3f} ms (a bare POST {bare:.3f} ms)",
            "none",
            True,
        ),
    ]

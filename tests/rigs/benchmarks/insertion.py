"""Growth of the cost of one insertion with the size of a memory."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.rigs.benchmarks.histories import histories_of_words
from tests.rigs.benchmarks.measured import Measured

GROWING = ("segtree_cosine", "similarity_tree", "memtree", "memstream", "timem", "bm25")


class _Instant:
    """A model that answers at once with any reply that fits the schema or the labels."""

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

    from data_loaders.units import make_units
    from eval.running.run import needs
    from memsys.embed import HashingEmbedder
    from memsys.prompts import Prompts
    from scripts.assembly.runs import builder
    from scripts.setup.options import load_option

    units = make_units(histories_of_words(1, 0, turns=20_000)[0].sessions, "ab_pair").units
    offered = {"llm": _Instant(), "probe": _Instant(), "embedder": HashingEmbedder(64), "prompts": Prompts()}
    measured = []
    for name in GROWING:
        build = builder(load_option("memory", name)["build"])
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

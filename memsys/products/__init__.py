"""Released memory products as they are installed: each runs in a worker process with an environment of its own.

`worker.py`, `surroundings.py` and `adapters/` run in the product's environment and import nothing of ours; `process.py` and
`places.py` run in ours. The two exchange JSON lines over the worker's stdin and stdout. `sandbox.py` decides what the worker may see.
"""

"""Executors: run cells in worker processes of this machine or on a Ray cluster. `eval.running.loop` itself runs them in
threads."""

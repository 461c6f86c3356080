"""Where cells are worked on: in worker processes of this machine, or on a Ray cluster. `eval.running.loop` itself works on them in
threads."""

"""Where cells are worked on: in worker processes of this machine, or on a Ray cluster. `eval.loop` itself works on them in threads."""

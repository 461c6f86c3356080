"""Terminal output: printed text, progress, time left, the log of a run."""

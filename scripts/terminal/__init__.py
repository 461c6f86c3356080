"""What a terminal shows: printed text, progress, time left, the log of a run."""

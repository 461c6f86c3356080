"""Raw files of the benchmarks to `Case`s; knows nothing of memories, metrics or scripts."""

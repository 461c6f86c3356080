"""Loaders of the benchmarks' raw files, which return `Case`s; imports nothing of memories, metrics or scripts."""

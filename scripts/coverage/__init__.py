"""Simulated coverage, size and power of what tables print: every module with a function `rows` adds to docs/statistics.md."""

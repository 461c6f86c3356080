"""The protocol: run memories, read answers, score them, compare. Import its modules (`from eval.stats import …`), never `import eval`."""

"""The protocol: run, read, score, compare. Import from its modules (`from eval.stats import …`), never `import eval`."""

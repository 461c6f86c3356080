"""The protocol: run memories, read answers, score them, compare. Import its modules, never `import eval`."""

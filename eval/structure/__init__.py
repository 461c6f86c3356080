"""The structure of a finished memory: trees, revenue, maps of vectors."""

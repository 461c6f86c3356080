"""The memory systems, each in a file or package of its own."""

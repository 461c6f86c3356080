"""Every memory system: one file or package each."""

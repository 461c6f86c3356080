"""From configuration to finished tables: what the entry points call."""

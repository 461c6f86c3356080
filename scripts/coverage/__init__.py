"""Simulations of what the project prints: coverage, size and power."""

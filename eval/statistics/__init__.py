"""Means, intervals, tests, families, power and components of variance."""

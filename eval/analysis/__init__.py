"""Analyses of runs beyond their scores: costs, losses, budgets, growth, leaks."""

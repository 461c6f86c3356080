"""Metrics: word overlap, retrieval, evidence density, and the official rules of each benchmark."""

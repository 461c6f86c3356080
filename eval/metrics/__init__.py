"""Metrics: lexical, retrieval, evidence, and each benchmark's official rules."""

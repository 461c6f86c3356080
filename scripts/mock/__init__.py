"""Servers that stand in for an endpoint or a memory service: shapes of replies, quirks, faults."""

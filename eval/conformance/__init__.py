"""Conformance: canaries put through a memory's own door before any score, and the fault that each missing one betrays.

`canaries.py` is the history, `checks.py` what is looked for.
"""

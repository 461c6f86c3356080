"""Conformance: test facts (canaries) written and read through a memory's own interface before any score; each missing one names a fault.

`canaries.py` is the history, `checks.py` the checks.
"""

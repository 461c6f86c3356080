"""Measurements of speed and memory against the shipped mock endpoint; `command` runs them."""

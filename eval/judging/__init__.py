"""Judges and scores: verdicts, their cards, agreement, corrections."""

"""The type, range and choices of every setting, checked in one place."""

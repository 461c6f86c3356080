"""Every setting: its type, range and choices, checked in one place."""

"""The audit of published claims as a static site: leaderboards, a page a claim, a feed of changes, everything as JSON."""

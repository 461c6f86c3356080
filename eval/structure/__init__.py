"""What a finished memory looks like: trees, revenue, maps of vectors."""

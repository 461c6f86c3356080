"""What the commands with flags do; their entry points stand in `scripts`."""

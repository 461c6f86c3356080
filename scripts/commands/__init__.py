"""One module per verb of the command."""

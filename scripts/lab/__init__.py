"""The steps of the commands from Python, and the parts of single commands that build on them."""

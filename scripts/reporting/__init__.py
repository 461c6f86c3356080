"""The HTML report as a command, the browser that tests and measures it, and its speed."""

"""The same steps from Python, and what single commands build on them."""

"""Tables and figures of our numbers, with the published numbers next to them."""

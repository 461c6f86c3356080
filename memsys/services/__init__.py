"""Memories behind a door of their own: any HTTP service (`http.py`) or MCP server (`mcp.py`), described in YAML.

`memory.py` has what both share, `templates.py` the placeholders and paths of the description, `endpoint.py` the HTTP calls.
"""

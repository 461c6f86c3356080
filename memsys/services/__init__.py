"""Memories behind an interface of their own: any HTTP service (`http.py`) or MCP server (`mcp.py`), described in YAML.

`memory.py` has the common part, `templates.py` the placeholders and paths of the description.
"""

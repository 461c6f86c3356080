"""The reference MCP server over stdio: tools `add_memory`, `search_memory`, `delete_memory`; `conf/memory/reference_mcp.yaml` describes it.

`python -m scripts.mock.memory_mcp --fault "k ignored"` serves it with this fault.
"""

from __future__ import annotations

import argparse
from typing import Any

from scripts.mock.memory_store import FAULTS, Store


def server(store: Store) -> Any:
    from mcp.server.mcpserver import MCPServer

    served = MCPServer("reference-memory", version="1")

    def add_memory(user: str, messages: list[dict[str, str]], time: str = "") -> dict[str, str]:
        """Store the messages of one exchange."""
        return {"id": store.add(user, messages, time)}

    def search_memory(user: str, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Stored texts that share words with the query."""
        if not query.strip():
            raise ValueError("an empty query finds nothing")
        return store.search(user, query, limit)

    def delete_memory(user: str) -> str:
        """Delete everything of a user."""
        store.delete(user)
        return "deleted"

    for tool in (add_memory, search_memory, delete_memory):
        served.add_tool(tool)
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="", help="what goes wrong")
    server(Store(parser.parse_args().fault)).run("stdio")


if __name__ == "__main__":
    main()

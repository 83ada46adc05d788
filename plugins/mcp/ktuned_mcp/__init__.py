"""The MCP server of ktuned, which ``ktuned mcp`` runs: tools for agents that write kernels."""

from ktuned_mcp.budget import Budget
from ktuned_mcp.server import make_server

__all__ = ["Budget", "make_server"]

"""``ktuned mcp``: tools for agents, over the Model Context Protocol. The plugin ``ktuned-mcp`` has the server."""

from __future__ import annotations

import click

from ktuned.cli import output, spawn
from ktuned.cli.options import Number, WholeNumber
from ktuned.cli.output import Exit
from ktuned_client import AsyncClient


@click.command()
@click.option("--candidates", type=WholeNumber(min=1), help="How many configs the connection may try.")
@click.option(
    "--lane-seconds",
    "lane_s",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="For how many seconds the connection may hold devices.",
)
def mcp(candidates: int | None, lane_s: float | None) -> int:
    """Serve tools for agents over the Model Context Protocol.

    It serves stdin and stdout until stdin closes, and needs the plugin ktuned-mcp. Without limits a connection may tune
    as much as it likes.
    """
    try:
        from ktuned_mcp import Budget, make_server
    except ModuleNotFoundError as error:
        output.print_error(f"`ktuned mcp` needs {error.name}, which is not installed", "pip install 'ktuned[mcp]'")
        return Exit.NOT_REACHED
    spawn.announce_daemon(spawn.ensure_daemon())
    make_server(AsyncClient(), Budget(candidates, lane_s)).run("stdio")
    return Exit.DONE

"""The command line: ``ktuned COMMAND``."""

from ktuned.cli.program import main

__all__ = ["main"]

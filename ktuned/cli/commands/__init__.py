"""Commands, one module for each topic; ``COMMANDS`` in ``ktuned.cli.program`` maps names to modules."""

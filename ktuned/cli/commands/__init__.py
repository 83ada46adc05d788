"""One module for each topic; a module holds the commands whose names ``ktuned.cli.COMMANDS`` maps to it."""

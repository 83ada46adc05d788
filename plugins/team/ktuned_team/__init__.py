"""A team's store for ktuned: the program that reads and writes it, ``python -m ktuned_team``."""

"""Judges programs that are not trusted: see ``docs/judge.md``."""

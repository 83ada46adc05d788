"""Judges programs that are not trusted."""

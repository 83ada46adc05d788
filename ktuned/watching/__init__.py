"""Watching the roots: where kernel files lie, what happens to them, and what of that is inspected anew."""

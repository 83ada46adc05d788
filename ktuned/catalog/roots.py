"""Roots: the watched directories, with the defaults of what is not said of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ktuned.model import Root


def make_root(path: str, *, name: str = "", python: str = "", env: Mapping[str, str] | None = None) -> Root:
    """Return a root with its defaults: named for its directory, run by its own ``.venv`` or by our interpreter."""
    own = Path(path) / ".venv" / "bin" / "python"
    chosen = Path(os.path.expanduser(python)) if python else own if own.exists() else Path(sys.executable)
    if not chosen.is_absolute():
        chosen = Path(path) / chosen
    # Not resolved: the link in a virtual environment is what makes it one.
    return Root(os.path.realpath(path), name or Path(path).name, str(chosen), dict(env or {}))

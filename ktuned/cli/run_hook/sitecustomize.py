"""Installs the drop-ins. Each interpreter that ``ktuned run`` starts imports this module before its program.

It hides a user's own ``sitecustomize`` that comes later on ``PYTHONPATH``, so it imports that afterwards.
"""

import importlib
import os
import sys
from pathlib import Path

PLUGINS = ("ktuned_triton", "ktuned_tilelang")
"""The plugins with a drop-in for another autotuner."""


def _install() -> None:
    found: list[str] = []
    for package in PLUGINS:
        try:
            takeover = importlib.import_module(f"{package}.takeover")
        except ImportError:
            # Not every interpreter of a program has kernels.
            continue
        takeover.install(
            os.environ["KTUNED_RUN_MODE"],
            os.environ.get("KTUNED_RUN_NUMERICS", "tolerance"),
            os.environ.get("KTUNED_RUN_WINNERS", ""),
        )
        found.append(package)
    if found:
        from ktuned.dropin import account

        account.directory = Path(os.environ["KTUNED_RUN_SUMMARY"])
        for package in found:
            account.record_drop_in(package)


def _import_shadowed_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        # The user has none. Restore this module: the interpreter looks it up in sys.modules after importing it.
        sys.modules["sitecustomize"] = ours


if "KTUNED_RUN_MODE" in os.environ and "KTUNED_RUN_SUMMARY" in os.environ:
    _install()
_import_shadowed_sitecustomize()

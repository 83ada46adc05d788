"""Imported by each interpreter that ``ktuned run`` starts, before its program: puts the drop-ins in place.

It stands before a ``sitecustomize`` of the user's on ``PYTHONPATH``, and imports that one afterwards.
"""

import os
import sys


def _install() -> None:
    try:
        from ktuned_triton import takeover
    except ImportError:
        # Not every interpreter of a program has kernels.
        return
    takeover.install(os.environ["KTUNED_RUN_MODE"], os.environ["KTUNED_RUN_SUMMARY"])


def _import_the_users() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        # The interpreter looks for the module that it has just imported.
        sys.modules["sitecustomize"] = ours


if "KTUNED_RUN_MODE" in os.environ and "KTUNED_RUN_SUMMARY" in os.environ:
    _install()
_import_the_users()

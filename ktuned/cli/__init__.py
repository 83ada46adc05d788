"""The command line, ``ktuned COMMAND``, and the parts of it that ``ktuned.tune`` in Python uses, too."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktuned.cli.output import print_message
    from ktuned.cli.present import choose_presenter, follow_tuning
    from ktuned.cli.spawn import ensure_daemon
    from ktuned.cli.trials import load_all_trials


_INTERRUPTED = 130
"""The exit status if Ctrl-C comes before the program is imported."""

_SHARED = {
    "choose_presenter": "present",
    "ensure_daemon": "spawn",
    "follow_tuning": "present",
    "load_all_trials": "trials",
    "print_message": "output",
}
"""The module of each part that Python programs use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``ktuned``: import the program, run one command, and return its exit status."""
    try:
        from ktuned.cli.program import run_command
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run_command(arguments)


def __getattr__(name: str) -> Any:
    # Imported on first use, so that commands without these parts, such as --help, start sooner.
    if name in _SHARED:
        from importlib import import_module

        return getattr(import_module(f"ktuned.cli.{_SHARED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

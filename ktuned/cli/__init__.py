"""The command line, ``ktuned COMMAND``, and its parts that tuning from Python shares with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktuned.cli.output import say
    from ktuned.cli.present import choose as choose_presenter
    from ktuned.cli.present import follow
    from ktuned.cli.spawn import ensure as ensure_daemon

__all__ = [
    "choose_presenter",
    "ensure_daemon",
    "follow",
    "main",
    "say",
]

_INTERRUPTED = 130
"""The exit status, where Ctrl-C came before anything of the program was imported."""

_SHARED = {
    "choose_presenter": ("present", "choose"),
    "ensure_daemon": ("spawn", "ensure"),
    "follow": ("present", "follow"),
    "say": ("output", "say"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``ktuned``: imports the program and has it run one command; returns the exit status."""
    try:
        from ktuned.cli.program import run
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run(arguments)


def __getattr__(name: str) -> Any:
    # Commands that need none of these, such as --help, start sooner.
    if name in _SHARED:
        from importlib import import_module

        module, original = _SHARED[name]
        return getattr(import_module(f"ktuned.cli.{module}"), original)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

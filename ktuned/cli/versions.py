"""The version of this command, and its check against the daemon's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from ktuned_client import Client, DaemonError, DaemonUnavailable
from ktuned_client.answers import DaemonSilent
from ktuned_client.wire import PROTOCOL_VERSION

ACROSS_VERSIONS: Final = frozenset({"serve", "status", "stop", "doctor", "metrics", "service"})
"""Commands that work whatever the daemon's protocol: they start, see and end one, so that an upgrade gets on."""


def version() -> str:
    """Return the version of this distribution."""
    from importlib.metadata import version as installed

    return installed("ktuned")


def checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's callback that is called only if no daemon of another protocol serves."""

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> Any:
        check()
        return callback(*args, **kwargs)

    return run


def check() -> None:
    """Ask the daemon for its protocol; without a daemon there is nothing to check.

    Raises:
        DaemonUnavailable: it is another one than ours; names both versions.
        DaemonSilent: it does not answer; whatever comes next would wait in vain as well.
    """
    try:
        with Client() as client:
            said = client.call("hello")
    except DaemonSilent:
        raise
    except (DaemonUnavailable, DaemonError):
        return
    spoken = said.get("protocol", PROTOCOL_VERSION)
    if spoken != PROTOCOL_VERSION:
        raise DaemonUnavailable(
            f"the daemon is ktuned {said.get('build', 'of an unknown version')} and speaks protocol {spoken}; "
            f"this is {version()}, which speaks {PROTOCOL_VERSION}",
            "`ktuned stop` ends it, and the next command starts one of this version",
        )

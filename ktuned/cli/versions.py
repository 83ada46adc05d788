"""The version of this command, and its check against the daemon's."""

from __future__ import annotations

from ktuned_client import DaemonError, DaemonUnavailable
from ktuned_client.answers import DaemonSilent
from ktuned_client.wire import PROTOCOL_VERSION

ACROSS_VERSIONS = frozenset({"start", "stop", "doctor", "config", "logs"})
"""Commands that work with a daemon of any protocol, because an upgrade needs them."""


def read_own_version() -> str:
    """Return the version of this distribution."""
    from importlib.metadata import version as installed

    return installed("ktuned")


def check_protocol() -> None:
    """Check the daemon's protocol, if a daemon runs.

    Raises:
        DaemonUnavailable: the protocol differs from ours; the message names both versions.
        DaemonSilent: the daemon does not answer; the next request would wait in vain as well.
    """
    from ktuned.protocol import HELLO, call_method
    from ktuned_client import Client

    try:
        with Client() as client:
            hello = call_method(client, HELLO)
    except DaemonSilent:
        raise
    except (DaemonUnavailable, DaemonError):
        return
    if hello.protocol != PROTOCOL_VERSION:
        raise DaemonUnavailable(
            f"the daemon is ktuned {hello.build} and speaks protocol {hello.protocol}; "
            f"this is {read_own_version()}, which speaks {PROTOCOL_VERSION}",
            "`ktuned stop` ends it, and the next command starts one of this version",
        )

"""The bridge: a separate process for libraries that the daemon must not import (clusters, object storage).

The daemon's side is :class:`ktuned.fleet.Bridge`. This package has the parts that both sides share, and the process
itself: ``python -m ktuned.bridge``, which may run under another interpreter. It imports only the standard library and
msgspec; its services import what they need. Modules that only the process uses are imported at their first use,
because the daemon needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ktuned.bridge import messages
from ktuned.bridge.messages import Call, CallFailed, Hello, Versions

if TYPE_CHECKING:
    from ktuned.bridge.call_server import CallServer
    from ktuned.bridge.service import SERVICES, Send, Service

__all__ = [
    "SERVICES",
    "Call",
    "CallFailed",
    "CallServer",
    "Hello",
    "Send",
    "Service",
    "Versions",
    "messages",
]

_HOMES = {"CallServer": "call_server", "SERVICES": "service", "Send": "service", "Service": "service"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"ktuned.bridge.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

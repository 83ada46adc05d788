"""The bridge: a process of its own for libraries that the daemon must not import (clusters, object storage).

The daemon's side is :class:`ktuned.fleet.Bridge`. This package is what both sides share, and the process itself:
``python -m ktuned.bridge``, under an interpreter of its own. It imports the standard library and msgpack; its services
import what they need.
"""

from ktuned.bridge import cluster, messages, node, parcels
from ktuned.bridge.host import Host
from ktuned.bridge.messages import Call, CallFailed, Hello, Versions
from ktuned.bridge.service import SERVICES, Send, Service

__all__ = [
    "SERVICES",
    "Call",
    "CallFailed",
    "Hello",
    "Host",
    "Send",
    "Service",
    "Versions",
    "cluster",
    "messages",
    "node",
    "parcels",
]

"""Client of the ktuned daemon: looks up the best known configs of tuned kernels.

::

    from ktuned_client import Client

    tuned = Client()
    hit = tuned.lookup("gemm", dict(M=4096, N=4096, K=4096), default=dict(BM=64, BN=64, BK=16))
    hit.config, hit.status
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ktuned_client.answers import DaemonError, DaemonUnavailable, Hit, LoadError
from ktuned_client.paths import UntrustedSocket, socket_path
from ktuned_client.wire import PROTOCOL_VERSION

if TYPE_CHECKING:
    from ktuned_client.aio import AsyncClient, AsyncEventStream, AsyncTuning
    from ktuned_client.client import Client, EventStream, Tuning
    from ktuned_client.messages import Event, Job

__all__ = [
    "PROTOCOL_VERSION",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncTuning",
    "Client",
    "DaemonError",
    "DaemonUnavailable",
    "Event",
    "EventStream",
    "Hit",
    "Job",
    "LoadError",
    "Tuning",
    "UntrustedSocket",
    "socket_path",
]


# These are imported on first use: few programs need both clients, importing asyncio takes longer than all else here,
# and the daemon, which imports this package for its codec, needs neither.
_LAZY_MODULES = {
    "AsyncClient": "aio",
    "AsyncEventStream": "aio",
    "AsyncTuning": "aio",
    "Client": "client",
    "Event": "messages",
    "EventStream": "client",
    "Job": "messages",
    "Tuning": "client",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)
    globals()[name] = value
    return value

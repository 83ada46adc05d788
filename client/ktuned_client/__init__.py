"""Client of the ktuned daemon: looks up the best known configs of tuned kernels.

::

    from ktuned_client import Client

    tuned = Client()
    hit = tuned.lookup("gemm", dict(M=4096, N=4096, K=4096), default=dict(BM=64, BN=64, BK=16))
    hit.config, hit.status
"""

from typing import TYPE_CHECKING, Any

from ktuned_client.answers import DaemonError, DaemonUnavailable, Hit, LoadError
from ktuned_client.client import Client, EventStream, Tuning
from ktuned_client.paths import UntrustedSocket, socket_path
from ktuned_client.wire import PROTOCOL_VERSION

if TYPE_CHECKING:
    from ktuned_client.aio import AsyncClient, AsyncEventStream, AsyncTuning

__all__ = [
    "PROTOCOL_VERSION",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncTuning",
    "Client",
    "DaemonError",
    "DaemonUnavailable",
    "EventStream",
    "Hit",
    "LoadError",
    "Tuning",
    "UntrustedSocket",
    "socket_path",
]


def __getattr__(name: str) -> Any:
    # asyncio takes longer to import than everything else here, and few programs need it for lookups.
    if name in {"AsyncClient", "AsyncEventStream", "AsyncTuning"}:
        from ktuned_client import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

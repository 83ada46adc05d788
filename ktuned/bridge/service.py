"""A service of the bridge: carries out the calls with one name, using any library that they need.

Services are found by the entry points of the group ``ktuned.services``: the entry's name is the first part of the
operations of its calls, and its value is a subclass of :class:`Service`. The first call imports the service.
"""

from __future__ import annotations

import importlib.metadata
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec

from ktuned.bridge.messages import Call, CallFailed

SERVICES = "ktuned.services"
"""The group of entry points."""

Send = Callable[[msgspec.Struct], Awaitable[None]]
"""Sends an item of a call; waits if the daemon does not read items as fast as they are made."""


class Service(ABC):
    """Carries out calls on the bridge's event loop, any number side by side. Made at the first call of its name.

    Run what blocks in a thread. The daemon may kill the process at any moment, so it must not matter whether you clean
    up.
    """

    calls: ClassVar[tuple[type[Call[Any, Any]], ...]]
    """The types of the calls that the service can carry out."""

    @abstractmethod
    async def carry_out(self, call: Call[Any, Any], send: Send) -> msgspec.Struct:
        """Carry out a call and return its reply. This is cancelled when the daemon no longer waits.

        Args:
            call: One of :attr:`calls`.
            send: Sends an item before the reply.

        Raises:
            CallFailed: the call cannot be carried out; the error says why, and what to do. Any other error is reported
                with the name of its class.
        """

    async def close(self) -> None:
        """Release resources on other machines before the process ends; may take two seconds."""
        return


def load_service(name: str) -> Service:
    """Import the service with a name, and return a new instance.

    Raises:
        CallFailed: the service is not installed in this interpreter, or cannot be imported.
    """
    entries = importlib.metadata.entry_points(group=SERVICES, name=name)
    if not entries:
        raise CallFailed(
            "no_service",
            f"{sys.executable} has nothing installed for the bridge's service {name!r}",
            hint=f"install the plugin that brings it: {sys.executable} -m pip install …",
        )
    try:
        made = next(iter(entries)).load()()
    except Exception as error:
        raise CallFailed(
            "no_service", f"{sys.executable} cannot import the bridge's service {name!r}: {error!r}"
        ) from error
    assert isinstance(made, Service)
    return made

"""The last known report of one interpreter: its backends, or why they cannot be probed.

It is kept in the store and shown by ``status`` and ``backends`` as a map with the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ktuned.ipc import InvalidMessage, from_plain, replies, to_plain
from ktuned.model import Device


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """An interpreter and its backends; ``error`` says why the last probe failed, the backends are then older.

    ``version`` is Python's. ``nvml`` says why NVML cannot list the programs on the GPUs, empty if it can;
    ``strategies`` are the installed ones' names.
    """

    python: str
    backends: Mapping[str, replies.BackendReport] = field(default_factory=dict)
    error: replies.Fault | None = None
    version: str | None = None
    nvml: str | None = None
    strategies: tuple[str, ...] | None = None

    @property
    def devices(self) -> Iterator[Device]:
        """All devices of all backends; two backends may know one device by two models."""
        return (device for backend in self.backends.values() for device in backend.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the map of the protocol and of the store; before the first probe it has no version."""
        report = to_plain(self)
        for name in ("version", "nvml", "strategies"):
            if report[name] is None:
                del report[name]
        return report

    @classmethod
    def from_json(cls, report: object) -> EnvironmentReport | None:
        """Rebuild from what the store holds; ``None`` if it cannot be understood, and the next probe replaces it."""
        try:
            return from_plain(cls, report)
        except InvalidMessage:
            return None

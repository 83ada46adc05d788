"""The damage that a launch left around the tensors, and the face of the memory that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ktuned.ipc import Region
from ktuned.model import Record, record
from ktuned.worker.placement import Span

PATTERN = 0xA5
"""The byte that fills what lies around a tensor: no small number and no usual float in any dtype."""


@record
class Damage(Record):
    """A write outside the tensors, in words.

    ``is_contained`` is true if it was put right, and nothing else can have been hit.
    """

    message: str
    is_contained: bool

    @classmethod
    def at(cls, place: str, *, is_contained: bool) -> Damage:
        """Return the damage whose first byte is at a place such as ``32 bytes after y``."""
        return cls(f"wrote outside its tensors: {place}", is_contained)


class Memory(Protocol):
    """Memory of one kind of device: tensors with guards around them, and ktuned's own copies of some."""

    def place(self, span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of a span's tensors for launches to work on, in place of earlier ones of these names."""

    def keep(self, name: str, value: Any) -> Any:
        """Return a copy of a tensor that no launch may change."""

    def seal(self) -> None:
        """Take the contents of the copies that are kept for what they must stay."""

    def unseal(self) -> None:
        """Let the copies that are kept be written until the next :meth:`seal`."""

    def intact(self) -> Any:
        """Return a flag on the device that there is no :meth:`damage`; ``None`` where only looking for it says so."""

    def damage(self) -> Damage | None:
        """Return what was written outside the placed tensors since the last call, and mend the guards."""

    def regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process at once."""

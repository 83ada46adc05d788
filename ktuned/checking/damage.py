"""Damage that a launch left outside its tensors, and the interface of the memory that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ktuned.checking.placement import Span
from ktuned.ipc import Region
from ktuned.model import Record, record

PATTERN = 0xA5
"""The byte around tensors: in no dtype does it make a small integer or a common float."""


@record
class Damage(Record):
    """A write outside the tensors, in words.

    ``is_contained`` is true if the write was undone and cannot have hit anything else. Otherwise the process can no
    longer be trusted.
    """

    message: str
    is_contained: bool

    @classmethod
    def at(cls, place: str, *, is_contained: bool) -> Damage:
        """Describe damage by the place of its first byte, such as ``32 bytes after y``."""
        return cls(f"wrote outside its tensors: {place}", is_contained)


class Memory(Protocol):
    """Memory of one kind of device: tensors with guards around them, and copies of tensors that ktuned keeps."""

    def place_span(self, span: Span, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of a span's tensors for launches to work on; they replace earlier ones with the same names."""

    def keep_copy(self, name: str, value: Any) -> Any:
        """Return a copy of a tensor that no launch may change once it is sealed."""

    def seal_copies(self) -> None:
        """Protect the kept copies: their present contents must stay."""

    def unseal_copies(self) -> None:
        """Allow writes to the kept copies until the next :meth:`seal_copies`."""

    def make_intact_flag(self) -> Any:
        """Return a flag on the device that is true if nothing is damaged; ``None`` if no device needs waiting for."""

    def find_damage(self) -> Damage | None:
        """Return what was damaged since the last call, and restore the guards."""

    def list_regions(self) -> Iterable[Region]:
        """Return the allocations whose guards stop the process, so that a fault's address can be named."""

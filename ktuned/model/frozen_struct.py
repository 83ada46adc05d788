"""The base of frozen records."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, frozen=True):
    """A record that nobody changes. Its subclasses are frozen, too."""

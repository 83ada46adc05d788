"""Every config, in the space's own order.

One module for each strategy, this short one too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ktuned.model import Scalar
from ktuned.search.domain import configs_in_order
from ktuned.search.strategy import Walk


class Exhaustive(Walk):
    """Tries every config in the space's order; the seed changes nothing."""

    def candidates(self) -> Iterator[dict[str, Scalar] | None]:
        """Walk the space."""
        return configs_in_order(self.space)

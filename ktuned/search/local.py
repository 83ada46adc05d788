"""Local search: first improvement from the fastest config, with restarts.

Neighbours differ in one knob. Once all of the fastest config's are known, those of the next fastest follow, and every
few choices a random config, from which a better valley may open. One module for each strategy, short ones too.
"""

from __future__ import annotations

from ktuned.search.chain import Code
from ktuned.search.points import PointStrategy

FIRST = 10
"""Random configs before the first descent."""

VALLEYS = 8
"""The fastest configs whose neighbours are tried, before only random configs are left."""

RANDOM_TURN = 8
"""Every so many choices one is random."""


class Local(PointStrategy):
    """Descends from the fastest config that is known."""

    def choose(self) -> Code | None:
        """Return an untried neighbour of the fastest config that has one."""
        if len(self.taken) < FIRST or len(self.taken) % RANDOM_TURN == 0:
            return self.draw_untried()
        for code in self.fastest_points(VALLEYS):
            if (found := self.draw_untried_neighbour(code)) is not None:
                return found
        return self.draw_untried()

"""Local search: first improvement from the fastest config, with restarts.

Neighbours differ in one knob. Once all neighbours of the fastest config are known, those of the next fastest follow.
Every few choices a random config is tried, which may lead to a better valley. Each strategy has a module of its own,
even a short one.
"""

from __future__ import annotations

from ktuned.search.chain import Point
from ktuned.search.points import PointStrategy

FIRST = 10
"""Random configs before the first descent."""

VALLEYS = 8
"""Number of fastest configs whose neighbours are tried. Once those are known, only random configs follow."""

RANDOM_TURN = 8
"""One in this many choices is random."""


class Local(PointStrategy):
    """Descends from the fastest config that is known."""

    def choose(self) -> Point | None:
        """Return an untried neighbour of the fastest config that has one."""
        if len(self.taken) < FIRST or len(self.taken) % RANDOM_TURN == 0:
            return self.draw_untried()
        for point in self.fastest_points(VALLEYS):
            if (found := self.draw_untried_neighbour(point)) is not None:
                return found
        return self.draw_untried()

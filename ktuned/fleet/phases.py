"""The phases of a worker's request: which one it is in, since when, and whether its deadline is over.

A worker writes them into its journal, where they are looked up when they are needed. One of an earlier version sends
them as messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from ktuned.fleet.expiry import Expiry
from ktuned.ipc import HeldItems, Journal, PhaseEntry
from ktuned.model import Phase


class Phases:
    """Follows one request after another. ``on_over`` is called when a phase's deadline has passed.

    ``before_look`` is called before the journal is read for that: what has arrived meanwhile may be the reply.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        *,
        on_over: Callable[[], None],
        before_look: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self.keeps_journal = False
        self._journal: Journal | None = journal
        self._before_look = before_look
        self._expiry = Expiry(loop, on_over, self._look)
        self._deadlines: Mapping[str, float] = {}
        self._entered = [PhaseEntry(Phase.SPAWN, clock())]
        self._held = HeldItems(0, b"")

    @property
    def now(self) -> Phase:
        """The phase that was entered last, as far as it is known."""
        return self._entered[-1].phase

    @property
    def deadline_s(self) -> float:
        """Its deadline."""
        return self._deadlines[self.now]

    @property
    def is_over(self) -> bool:
        """True once that deadline has passed."""
        return self._expiry.is_over

    def begin(self, request: int, phase: Phase, deadlines: Mapping[str, float]) -> None:
        """Begin a request in a phase."""
        self._entered = [PhaseEntry(phase, self._clock())]
        self._deadlines = deadlines
        self._held = HeldItems(0, b"")
        if self._journal is not None:
            self._journal.begin_request(request, phase)
        self._expiry.begin(min(deadlines.values()))

    def enter(self, phase: Phase) -> None:
        """Note a phase that was named in a message."""
        self._entered.append(PhaseEntry(phase, self._clock()))

    def knows(self, phase: Phase) -> bool:
        """Return whether a phase has a deadline."""
        return phase in self._deadlines

    def end(self) -> None:
        """End the request: no deadline is watched any more."""
        self._expiry.end()

    def follow(self) -> None:
        """Take in what the journal says by now."""
        if self._journal is None or not self.keeps_journal:
            return
        found, self._held = self._journal.read_progress()
        began, until = self._entered[0], self._clock()
        known = [one for one in found if began.at <= one.at <= until and one.phase in self._deadlines]
        # Code that runs in the worker may have written nonsense: then the phase that was known goes on.
        if known and known[-1].at >= self._entered[-1].at:
            self._entered = [began, *known] if known[0].at > began.at else known

    @property
    def held(self) -> HeldItems:
        """The messages that the worker held back when it was last followed."""
        return self._held

    def timeline(self) -> dict[str, float]:
        """Return the seconds that each phase of the request took, until now."""
        self.follow()
        spent: dict[str, float] = {}
        ends = [one.at for one in self._entered[1:]] + [self._clock()]
        for one, end in zip(self._entered, ends, strict=True):
            spent[one.phase.value] = round(spent.get(one.phase.value, 0.0) + end - one.at, 3)
        return spent

    def close(self) -> None:
        """Leave neither timer nor journal behind; what they said last stays known."""
        self._expiry.close()
        self.follow()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _look(self) -> float:
        self._before_look()
        self.follow()
        return self._entered[-1].at + self.deadline_s

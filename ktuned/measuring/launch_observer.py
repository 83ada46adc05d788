"""Observers: they measure everything about a config except its time.

The timing code deals with launches, samples and the race. Everything else is measured by an observer: the cores that a
config uses, use of the device by other programs, the energy, the kernel file's own metrics. To add a figure, write an
observer in a file of its own, and add it to :func:`ktuned.worker.open_problem.make_observers`.

An observer belongs to the open problem. These methods are called for one config after another:

====================  =================================================================================================
``begin_config``      before the first launch, which it may wrap
``end_first_launch``  after the first launch was judged: right, or at most different from the default's outputs
``begin_samples``     before the timing
``end_samples``       after it; not called if the latency is known already
``complete_result``   at the end, for launches of the observer's own, and for figures that need other figures
====================  =================================================================================================

``end_first_launch``, ``end_samples`` and ``complete_result`` return the config's result, with their own figures added.
Or they return another result in its place, which ends the config. So no energy is measured after a contended timing.
Observers act in the order of their list.

Two measurements are no observers. The comparison of timed launches belongs to the launches
(:mod:`ktuned.measuring.timed_launches`), because a timer must leave room for it in its queue. The comparison of bits
(:mod:`ktuned.checking.bits`) is a part of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.measuring.samples import Samples
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import TrialResult

TimingRequest = requests.Trial | requests.Time | requests.TimeReference
"""A request that times launches. Its fields say what each observer has to do."""


Restart = Callable[[], None]
"""Restarts the deadline of timing, before launches that take as long as a timing."""


class LaunchObserver:
    """Observes the launches of one config after another; see the module. This base class observes nothing.

    Attributes:
        request: the current config's request.
    """

    request: TimingRequest

    def begin_config(self, request: TimingRequest, launch: Launch) -> Launch:
        """Prepare for a config; return its launch, perhaps wrapped, which is then launched once and checked."""
        self.request = request
        return launch

    def end_first_launch(self, first: TrialResult) -> TrialResult:
        """Return the result of the checked launch. Without an outcome, it ends the config, which is tried again."""
        return first

    def begin_samples(self) -> None:
        """Prepare for the timed launches."""

    def end_samples(self, timed: TrialResult, samples: Samples) -> TrialResult:
        """Return the result of the timing that took ``samples``."""
        return timed

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Return the config's final result."""
        return timed


class ObserverGroup(LaunchObserver):
    """Several observers as one. Each gets the result that the previous one has returned."""

    def __init__(self, observers: Sequence[LaunchObserver]) -> None:
        self._observers = observers

    def begin_config(self, request: TimingRequest, launch: Launch) -> Launch:
        """Pass the launch through all observers."""
        for observer in self._observers:
            launch = observer.begin_config(request, launch)
        return launch

    def end_first_launch(self, first: TrialResult) -> TrialResult:
        """Pass the result through all observers."""
        for observer in self._observers:
            first = observer.end_first_launch(first)
        return first

    def begin_samples(self) -> None:
        """Prepare all observers."""
        for observer in self._observers:
            observer.begin_samples()

    def end_samples(self, timed: TrialResult, samples: Samples) -> TrialResult:
        """Pass the result through all observers."""
        for observer in self._observers:
            timed = observer.end_samples(timed, samples)
        return timed

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Pass the result through all observers."""
        for observer in self._observers:
            timed = observer.complete_result(timed, launches, restart)
        return timed

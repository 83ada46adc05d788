"""Observers: what is measured beside the timing of a config.

Timing knows launches, samples and the race. Everything else that is found out about a config's launches attaches as an
observer: the cores that it uses, use of the device by other programs, its energy, the kernel file's own metrics. A new
figure is a new observer, in a file of its own, and its line in :func:`ktuned.worker.open_problem.attach_observers`.

An observer belongs to the open problem, and is told of one config after another:

====================  =================================================================================================
``begin_config``      before the first launch, which it may wrap
``end_first_launch``  after the first launch was judged right, or to differ from the default's outputs alone
``begin_samples``     before the timing
``end_samples``       after it; not called if the latency is known already
``complete``          in the end, for launches of the observer's own, and for figures that need other figures
====================  =================================================================================================

The last three return the config's result: with what they add, or another one in its place, which ends the config. So a
contended timing gives no energy, and observers act in the order of their list.

Two things are no observers. The comparison of timed launches belongs to the launches
(:mod:`ktuned.worker.timed_launches`), because a timer must leave room for it in its queue. The comparison of bits
(:mod:`ktuned.worker.bits`) is a part of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.model import TrialResult
from ktuned.worker.samples import Samples
from ktuned.worker.timed_launches import TimedLaunches

TimingRequest = requests.Trial | requests.Time | requests.TimeReference
"""A request that times launches. What it asks of an observer is a field of it."""


Restart = Callable[[], None]
"""Lets the deadline of timing begin again, before launches that take as long as a timing."""


class LaunchObserver:
    """Observes the launches of one config after another; see the module. By default nothing is observed.

    Attributes:
        request: the request of the config at hand.
    """

    request: TimingRequest

    def begin_config(self, request: TimingRequest, launch: Launch) -> Launch:
        """Prepare for a config of a request; return the launch to check it by."""
        self.request = request
        return launch

    def end_first_launch(self, first: TrialResult) -> TrialResult:
        """Return the result of the checked launch. One without an outcome ends the config, which is tried again."""
        return first

    def begin_samples(self) -> None:
        """Prepare for the timed launches."""

    def end_samples(self, timed: TrialResult, samples: Samples) -> TrialResult:
        """Return the result of the timing, from which ``samples`` are."""
        return timed

    def complete(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Return the config's final result."""
        return timed


class ObserverGroup(LaunchObserver):
    """Several observers as one; each takes the result that the one before has returned."""

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

    def complete(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Pass the result through all observers."""
        for observer in self._observers:
            timed = observer.complete(timed, launches, restart)
        return timed

"""Event router: an event reaches the parts that it concerns, and then the subscribers.

:func:`list_routes` is the one table of which event goes to which part. Parts come first, so that a client that hears of
a change and asks is answered accordingly. A route is called in the middle of what publishes: it must neither block nor
publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.devices import Probes
from ktuned.lookup import AnswerCaches
from ktuned.protocol import (
    Event,
    JobDone,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    NamesLearned,
    TrialDone,
    WinnerChanged,
)
from ktuned.scheduling import DueKernels
from ktuned.serve import Events, TrialCount

E = TypeVar("E", bound=Event)


class Route(msgspec.Struct, Generic[E], frozen=True):
    """What is called with each event of a type; it neither blocks nor publishes."""

    event: type[E]
    act: Callable[[E], None]


class EventRouter:
    """Publishes events to parts and subscribers."""

    def __init__(self, events: Events, routes: Iterable[Route[Any]]) -> None:
        self._events = events
        self._table: dict[type[Event], list[Callable[[Any], None]]] = {}
        for route in routes:
            self._table.setdefault(route.event, []).append(route.act)

    def publish_event(self, event: Event) -> None:
        """Deliver one event."""
        for act in self._table.get(type(event), ()):
            act(event)
        self._events.publish_event(event)


def list_routes(
    *,
    artifact_cleanup: ArtifactCleanup,
    caches: AnswerCaches,
    probes: Probes,
    to_share: DueKernels,
    trial_count: TrialCount,
) -> list[Route[Any]]:
    """Return the table: for each type of event the parts that act on it."""

    def forget_kernel_answers(event: JobDone | NamesLearned | KernelStale | WinnerChanged) -> None:
        caches.forget_answers(event.kernel)

    def forget_all_answers(event: KernelsReloaded) -> None:
        # A name that is new may make another one ambiguous, or known.
        caches.forget_all_answers()

    def collect_artifacts(event: JobDone) -> None:
        artifact_cleanup.request_collection()

    def probe_if_sick(event: LaneChanged) -> None:
        if event.state == "sick":
            probes.probe_after_failure()

    def share_kernel(event: JobDone) -> None:
        to_share.add_kernel(event.kernel)

    def count_trial(event: TrialDone) -> None:
        if event.trial is not None:
            trial_count.count_trial()

    return [
        Route(JobDone, forget_kernel_answers),
        Route(JobDone, collect_artifacts),
        Route(JobDone, share_kernel),
        Route(NamesLearned, forget_kernel_answers),
        Route(LaneChanged, probe_if_sick),
        Route(KernelsReloaded, forget_all_answers),
        Route(KernelStale, forget_kernel_answers),
        Route(TrialDone, count_trial),
        Route(WinnerChanged, forget_kernel_answers),
    ]

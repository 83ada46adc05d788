"""Event router: an event reaches the parts that it concerns, and then the subscribers.

:func:`list_routes` is the one table of which event goes to which part. Parts come first, so that a client that hears of
a change and asks is answered accordingly. A route is called in the middle of what publishes: it must neither block nor
publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.devices import Probes
from ktuned.lookup import AnswerCaches
from ktuned.scheduling import DueKernels
from ktuned.serve import Events, TrialCount

Route = Callable[[Mapping[str, Any]], None]
"""Acts on an event, given its fields; neither blocks nor publishes."""


class EventRouter:
    """Publishes events to parts and subscribers."""

    def __init__(self, events: Events, table: Mapping[str, Sequence[Route]]) -> None:
        self._events = events
        self._table = table

    def publish(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        """Deliver one event."""
        for route in self._table.get(type, ()):
            route(fields)
        self._events.publish_event(type, **fields)


def routes(
    *,
    artifact_cleanup: ArtifactCleanup,
    caches: AnswerCaches,
    probes: Probes,
    to_share: DueKernels,
    trial_count: TrialCount,
) -> dict[str, tuple[Route, ...]]:
    """Return the table: for each type of event the parts that act on it."""

    def kernel_changed(event: Mapping[str, Any]) -> None:
        caches.forget_answers(event["kernel"])

    def names_changed(event: Mapping[str, Any]) -> None:
        # A name that is new may make another one ambiguous, or known.
        caches.forget_all_answers()

    def artifacts_grew(event: Mapping[str, Any]) -> None:
        artifact_cleanup.due()

    def lane_changed(event: Mapping[str, Any]) -> None:
        if event["state"] == "sick":
            probes.device_failed()

    def winner_decided(event: Mapping[str, Any]) -> None:
        to_share.add_kernel(event["kernel"])

    def trial_ended(event: Mapping[str, Any]) -> None:
        if event.get("trial") is not None:
            trial_count.count_trial()

    return {
        "job_done": (kernel_changed, artifacts_grew, winner_decided),
        "learned": (kernel_changed,),
        "lane": (lane_changed,),
        "reloaded": (names_changed,),
        "stale": (kernel_changed,),
        "trial_done": (trial_ended,),
        "winner": (kernel_changed,),
    }

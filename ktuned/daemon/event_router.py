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

    def publish_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        """Deliver one event."""
        for route in self._table.get(type, ()):
            route(fields)
        self._events.publish_event(type, **fields)


def list_routes(
    *,
    artifact_cleanup: ArtifactCleanup,
    caches: AnswerCaches,
    probes: Probes,
    to_share: DueKernels,
    trial_count: TrialCount,
) -> dict[str, tuple[Route, ...]]:
    """Return the table: for each type of event the parts that act on it."""

    def forget_kernel_answers(event: Mapping[str, Any]) -> None:
        caches.forget_answers(event["kernel"])

    def forget_all_answers(event: Mapping[str, Any]) -> None:
        # A name that is new may make another one ambiguous, or known.
        caches.forget_all_answers()

    def collect_artifacts(event: Mapping[str, Any]) -> None:
        artifact_cleanup.request_collection()

    def probe_if_sick(event: Mapping[str, Any]) -> None:
        if event["state"] == "sick":
            probes.probe_after_failure()

    def share_kernel(event: Mapping[str, Any]) -> None:
        to_share.add_kernel(event["kernel"])

    def count_trial(event: Mapping[str, Any]) -> None:
        if event.get("trial") is not None:
            trial_count.count_trial()

    return {
        "job_done": (forget_kernel_answers, collect_artifacts, share_kernel),
        "learned": (forget_kernel_answers,),
        "lane": (probe_if_sick,),
        "reloaded": (forget_all_answers,),
        "stale": (forget_kernel_answers,),
        "trial_done": (count_trial,),
        "winner": (forget_kernel_answers,),
    }

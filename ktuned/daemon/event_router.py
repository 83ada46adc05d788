"""Event router: delivers an event to the parts that it concerns, and then to the subscribers.

Parts come first, so that a client that hears of a change and then sends a request gets an up-to-date answer. Parts are
called while the publisher waits, so they must neither block nor publish.
"""

from __future__ import annotations

from collections.abc import Callable

from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.devices import Probes
from ktuned.lookup import AnswerCaches
from ktuned.protocol import (
    Event,
    JobDone,
    JobInfo,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    NamesLearned,
    TrialDone,
    WinnerChanged,
)
from ktuned.serve import Events


class EventRouter:
    """Publishes events to parts and subscribers.

    Args:
        after_job: Called with each job that has ended.

    Attributes:
        trials: How many trials have ended since the start.
    """

    def __init__(
        self,
        events: Events,
        artifact_cleanup: ArtifactCleanup,
        caches: AnswerCaches,
        probes: Probes,
        after_job: Callable[[JobInfo], None],
    ) -> None:
        self.trials = 0
        self._events = events
        self._artifact_cleanup = artifact_cleanup
        self._caches = caches
        self._probes = probes
        self._after_job = after_job

    def publish_event(self, event: Event) -> None:
        """Deliver one event."""
        match event:
            case TrialDone():
                self.trials += event.trial is not None
            case JobDone():
                self._caches.forget_answers(event.kernel)
                self._artifact_cleanup.request_collection()
                self._after_job(event.job_state)
            case NamesLearned() | KernelStale() | WinnerChanged():
                self._caches.forget_answers(event.kernel)
            case KernelsReloaded():
                # A new kernel may make a short name ambiguous, or an unknown name known.
                self._caches.forget_all_answers()
            case LaneChanged(state="sick"):
                self._probes.probe_after_failure()
        self._events.publish_event(event)

"""Jobs: their intake, order, dispatch, pauses and re-verification."""

from ktuned.scheduling.host_observer import Observer
from ktuned.scheduling.idle_policy import POLICIES, Manners
from ktuned.scheduling.intake import Intake, Wish
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.preparation import JobSettings, Preparing, default_compile_slots
from ktuned.scheduling.queue import EVERYTHING
from ktuned.scheduling.reverification import Reverifying

__all__ = [
    "EVERYTHING",
    "POLICIES",
    "Intake",
    "JobSettings",
    "Jobs",
    "Manners",
    "Observer",
    "Preparing",
    "Reverifying",
    "Wish",
    "default_compile_slots",
]

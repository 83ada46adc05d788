"""Jobs: their intake, order, dispatch, pauses and re-verification."""

from ktuned.scheduling.host_observer import HostObserver
from ktuned.scheduling.idle_policy import POLICIES, IdlePolicy, Reading
from ktuned.scheduling.intake import Intake
from ktuned.scheduling.job_machine import JobMachine
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import GIVEN_UP, Intervals, Jobs
from ktuned.scheduling.preparation import Preparation, find_judged_trial
from ktuned.scheduling.queue import EVERYTHING
from ktuned.scheduling.quiet_work import work_in_quiet
from ktuned.scheduling.renewal import Renewal
from ktuned.scheduling.repetition import MOST_COMPARED, Repetition

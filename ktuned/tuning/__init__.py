"""The tuning of one job: a pipeline from its strategy to the store.

Start with :mod:`~ktuned.tuning.trial_machine`, the rules for a trial, and :mod:`~ktuned.tuning.pipeline`, which carries
them out.
"""

from ktuned.tuning.compile_only import CompileOnly
from ktuned.tuning.evidence import Grants
from ktuned.tuning.job_brief import AwaitShared, Compiler, JobBrief, PresentKey
from ktuned.tuning.judging_job import QUICK, Judging
from ktuned.tuning.limits import DEFAULT_DEADLINES, merge_deadlines
from ktuned.tuning.pipeline import Pipeline
from ktuned.tuning.prior_results import restore_winner
from ktuned.tuning.progress import JobStage, publish_winner
from ktuned.tuning.winner_check import CheckResult, Sanitizers, WinnerCheck

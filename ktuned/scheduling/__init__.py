"""Jobs: their intake, order, dispatch, pauses and re-verification."""

from ktuned.scheduling.dispatcher import Dispatcher, Intervals
from ktuned.scheduling.gone_roots import GoneRoots
from ktuned.scheduling.host_observer import HostObserver
from ktuned.scheduling.idle_policy import POLICIES, IdlePolicy, Reading
from ktuned.scheduling.intake import Intake
from ktuned.scheduling.job_machine import JobMachine
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.jobs import Jobs
from ktuned.scheduling.kept_portfolios import KeptPortfolios
from ktuned.scheduling.portfolio_maker import PortfolioBuild, PortfolioMaker, PortfolioSpec
from ktuned.scheduling.portfolios import Portfolios
from ktuned.scheduling.preparation import JobSettings, Preparation, default_compile_slots
from ktuned.scheduling.queue import EVERYTHING
from ktuned.scheduling.renewal import Renewal
from ktuned.scheduling.reverification import Reverification
from ktuned.scheduling.share_exchange import DueKernels, ShareExchange
from ktuned.scheduling.shared_winners import SharedWinners

__all__ = [
    "EVERYTHING",
    "POLICIES",
    "Dispatcher",
    "DueKernels",
    "GoneRoots",
    "HostObserver",
    "IdlePolicy",
    "Intake",
    "Intervals",
    "JobMachine",
    "JobRequests",
    "JobSettings",
    "Jobs",
    "KeptPortfolios",
    "PortfolioBuild",
    "PortfolioMaker",
    "PortfolioSpec",
    "Portfolios",
    "Preparation",
    "Reading",
    "Renewal",
    "Reverification",
    "ShareExchange",
    "SharedWinners",
    "TuningRequest",
    "default_compile_slots",
]

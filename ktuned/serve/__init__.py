"""The socket: server, connections, the protocol's methods, events, status."""

from ktuned.serve.calls import CallMethods
from ktuned.serve.checks import Checks
from ktuned.serve.daemon_methods import DaemonMethods
from ktuned.serve.events import Events, Subscriptions
from ktuned.serve.exchange import WinnerExchange
from ktuned.serve.explain import Explainer
from ktuned.serve.job_methods import JobMethods
from ktuned.serve.judge_methods import JudgeMethods
from ktuned.serve.kernel_methods import KernelMethods
from ktuned.serve.listener import bind_socket, inherit_socket, keep_reachable, remove_socket
from ktuned.serve.lock import LOCK_NAME, LockHeld, find_holder, hold_lock
from ktuned.serve.lookup_methods import LookupMethods
from ktuned.serve.method import Handler
from ktuned.serve.peaks import DevicePeaks
from ktuned.serve.responses import Responses
from ktuned.serve.server import Server
from ktuned.serve.team_store import ShareSettings, TeamStore
from ktuned.serve.trial_methods import TrialMethods

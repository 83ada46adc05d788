"""Durable state: trials, winners and jobs in SQLite, and artifacts as sealed directories."""

from ktuned.store import exchange
from ktuned.store.artifacts import Artifacts
from ktuned.store.bit_classes import BitClasses, describe_price
from ktuned.store.contexts import Context, compare_contexts
from ktuned.store.database import STORE_NAME, Store
from ktuned.store.exchange import IMPORTED
from ktuned.store.faults import DISK_ERRORS, explain_file_error
from ktuned.store.in_hand import InHand, describe_quarantine
from ktuned.store.near import count_octaves, find_stand_ins
from ktuned.store.overview import ContextSums, Overview, TrialBuild, TrialRow
from ktuned.store.tables import Verdict
from ktuned.store.winners import KnownConfig, Winner

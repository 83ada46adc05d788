"""Lookups: answers with their follow-up work, and the table of winners."""

from ktuned.lookup.follow_ups import FollowUps
from ktuned.lookup.service import SETTLE_S, Lookups
from ktuned.lookup.winner_table import WinnerTable

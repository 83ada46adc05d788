"""Exchange between the daemon and its workers: typed requests and replies in frames, artifact manifests, stamps."""

from ktuned.ipc import decoding, frames, manifest, parent, replies, requests
from ktuned.ipc.decoding import InvalidMessage
from ktuned.ipc.journal import FAULT_AT, JOURNAL_VARIABLE, MAX_HELD_BYTES, HeldItems, Journal, PhaseEntry
from ktuned.ipc.lock import LockHeld, hold_lock
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact, Manifest, Recipe
from ktuned.ipc.places import Places, locate_artifact, locate_staging, make_absolute, make_relative
from ktuned.ipc.stamps import (
    ABSENT,
    DIRECTORY,
    LISTING,
    Sight,
    find_changed_file,
    follow_links,
    is_directory_stamp,
    is_special_stamp,
    normalize_path,
    read_sight,
    read_sight_text,
    stamp,
    stamp_attributes,
    stamp_directory,
    stamp_files,
    stamp_whole,
    stamps_agree,
)
from ktuned.ipc.trust import Trust, Untrusted

__all__ = [
    "ABSENT",
    "DIRECTORY",
    "FAULT_AT",
    "JOURNAL_VARIABLE",
    "LISTING",
    "MANIFEST_NAME",
    "MAX_HELD_BYTES",
    "DamagedArtifact",
    "HeldItems",
    "InvalidMessage",
    "Journal",
    "LockHeld",
    "Manifest",
    "PhaseEntry",
    "Places",
    "Recipe",
    "Sight",
    "Trust",
    "Untrusted",
    "decoding",
    "find_changed_file",
    "follow_links",
    "frames",
    "hold_lock",
    "is_directory_stamp",
    "is_special_stamp",
    "locate_artifact",
    "locate_staging",
    "make_absolute",
    "make_relative",
    "manifest",
    "normalize_path",
    "parent",
    "read_sight",
    "read_sight_text",
    "replies",
    "requests",
    "stamp",
    "stamp_attributes",
    "stamp_directory",
    "stamp_files",
    "stamp_whole",
    "stamps_agree",
]

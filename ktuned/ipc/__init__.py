"""Exchange between the daemon and its workers: typed requests and replies in frames, artifact manifests, stamps."""

from ktuned.ipc import decoding, frames, manifest, parent, replies, requests, stamps
from ktuned.ipc.decoding import InvalidMessage
from ktuned.ipc.journal import FAULT_AT, JOURNAL_VARIABLE, MAX_HELD_BYTES, HeldItems, Journal, PhaseEntry
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact, Manifest, Recipe
from ktuned.ipc.places import Places, locate_artifact, locate_staging, make_absolute, make_relative
from ktuned.ipc.regular_files import NotRegularFile, read_regular_file
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

"""Exchange between the daemon and its workers: typed requests and replies in frames, artifact manifests, stamps."""

from ktuned.ipc import frames, manifest, parent, replies, requests
from ktuned.ipc.codec import InvalidMessage, from_plain, to_message, to_plain
from ktuned.ipc.journal import JOURNAL_VARIABLE, MAX_HELD_BYTES, Entered, Held, Journal
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact, Manifest, Recipe
from ktuned.ipc.memory_fault import (
    MAX_FAULT_BYTES,
    FaultFrame,
    MemoryFault,
    Region,
    describe_fault,
    describe_place,
    prepare_fault,
)
from ktuned.ipc.places import Places, absolute, artifact_place, relative, staging_place
from ktuned.ipc.stamps import (
    ABSENT,
    DIRECTORY,
    LISTING,
    agrees,
    first_changed,
    is_way,
    lexical,
    sight,
    stamp,
    stamp_directory,
    stamps,
    trail,
)
from ktuned.ipc.trust import Trust, Untrusted

__all__ = [
    "ABSENT",
    "DIRECTORY",
    "JOURNAL_VARIABLE",
    "LISTING",
    "MANIFEST_NAME",
    "MAX_FAULT_BYTES",
    "MAX_HELD_BYTES",
    "DamagedArtifact",
    "Entered",
    "FaultFrame",
    "Held",
    "InvalidMessage",
    "Journal",
    "Manifest",
    "MemoryFault",
    "Places",
    "Recipe",
    "Region",
    "Trust",
    "Untrusted",
    "absolute",
    "agrees",
    "artifact_place",
    "describe_fault",
    "describe_place",
    "first_changed",
    "frames",
    "from_plain",
    "is_way",
    "lexical",
    "manifest",
    "parent",
    "prepare_fault",
    "relative",
    "replies",
    "requests",
    "sight",
    "staging_place",
    "stamp",
    "stamp_directory",
    "stamps",
    "to_message",
    "to_plain",
    "trail",
]

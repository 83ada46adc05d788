"""A team's store: winners as objects that others read, the rules for them, and the storages that hold them.

What reaches for a network runs in the bridge's process, found by name (:mod:`ktuned.team.storage_service`); this face
has what the daemon uses.
"""

from ktuned.team import calls
from ktuned.team.artifact_pack import MAX_ARTIFACT_BYTES, key_of, pack, unpack
from ktuned.team.decision import (
    HOLDS_WITHIN,
    MAX_CANDIDATES,
    Action,
    Candidate,
    Decided,
    Ours,
    action,
    candidates,
    holds,
    is_published,
)
from ktuned.team.objects import (
    MAX_OBJECT_BYTES,
    DamagedObject,
    LearnedName,
    ObjectName,
    SharedWinner,
    address_of,
    kernel_prefix,
    read_object,
    write_object,
)
from ktuned.team.settings import TeamSettings
from ktuned.team.storage import shown

__all__ = [
    "HOLDS_WITHIN",
    "MAX_ARTIFACT_BYTES",
    "MAX_CANDIDATES",
    "MAX_OBJECT_BYTES",
    "Action",
    "Candidate",
    "DamagedObject",
    "Decided",
    "LearnedName",
    "ObjectName",
    "Ours",
    "SharedWinner",
    "TeamSettings",
    "action",
    "address_of",
    "calls",
    "candidates",
    "holds",
    "is_published",
    "kernel_prefix",
    "key_of",
    "pack",
    "read_object",
    "shown",
    "unpack",
    "write_object",
]

"""What the daemon and its workers exchange: frames over pipes, artifact manifests, file stamps."""

from ktuned.ipc import frames, manifest
from ktuned.ipc.manifest import MANIFEST_NAME, DamagedArtifact, Manifest
from ktuned.ipc.stamps import ABSENT, lexical, stamp, stamps

__all__ = ["ABSENT", "MANIFEST_NAME", "DamagedArtifact", "Manifest", "frames", "lexical", "manifest", "stamp", "stamps"]

"""Places of the files that requests name, on the machine that a worker runs on.

A request names a file by its project and its path there, an artifact by its key, tensors by their digest. Each executor
gives its workers the directories of their own machine when it starts them, so that one request means the same anywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ktuned.ipc.codec import InvalidMessage
from ktuned.model import Record, record

_TENSORS = ".safetensors"
_STAGING = ".staging"


@record
class Places(Record):
    """The directories of projects (by name), sealed artifacts, captured inputs and the references' results.

    ``trusted`` are directories whose files are used without a check of who can write them.
    """

    projects: Mapping[str, str]
    artifacts: str
    captures: str
    expected: str
    trusted: tuple[str, ...] = ()

    def root(self, project: str) -> Path:
        """Return a project's directory.

        Raises:
            InvalidMessage: this worker does not have that project.
        """
        if project not in self.projects:
            raise InvalidMessage(f"this worker does not have the project {project!r}")
        return Path(self.projects[project])

    def file(self, project: str, path: str) -> Path:
        """Return the file at a path relative to a project's directory, or at one of the system's own.

        Raises:
            InvalidMessage: the worker does not have that project.
        """
        return Path(absolute(path, str(self.root(project))))

    def artifact(self, key: str) -> Path:
        """Return the directory of a sealed artifact."""
        return artifact_place(Path(self.artifacts), key)

    def staging(self, name: str) -> Path:
        """Return the directory that a group of configs is compiled in before its artifacts are sealed."""
        return staging_place(Path(self.artifacts), name)

    def captured(self, digest: str) -> Path:
        """Return the file of the inputs that an application captured."""
        return Path(self.captures, f"{digest}{_TENSORS}")

    def reference(self, key: str) -> Path:
        """Return the file of a reference's results, which a worker leaves for the next one."""
        return Path(self.expected, f"{key}{_TENSORS}")

    def to_argument(self) -> str:
        """Return the text that :meth:`from_argument` reads, on a worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Places:
        """Rebuild from :meth:`to_argument`'s text."""
        values = json.loads(text)
        return cls(**{**values, "trusted": tuple(values["trusted"])})


def artifact_place(artifacts: Path, key: str) -> Path:
    """Return where the artifact of ``key`` is, or would be, below the directory of all."""
    return artifacts / key[:2] / key


def staging_place(artifacts: Path, name: str = "") -> Path:
    """Return the place of a directory of unsealed artifacts, or of the directory of all of those.

    It is on the file system of the sealed ones, so that a rename seals them.
    """
    return artifacts / _STAGING / name


def relative(path: str, root: str) -> str:
    """Return a file's path relative to its project; ``..`` leads to one that lies beside it.

    One that has no directory in common with the project is the system's: its path stays as it is, wherever the project
    lies.
    """
    below = f"{root}/"
    if path.startswith(below):
        return path[len(below) :]
    return path if os.path.commonpath([path, root]) == "/" != path else os.path.relpath(path, root)


def absolute(path: str, root: str) -> str:
    """Return the absolute path of one that :func:`relative` returned."""
    return os.path.normpath(os.path.join(root, path))

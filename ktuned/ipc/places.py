"""Where a worker finds the files that requests name, on its own machine.

A request names a file by its project and its path in the project, and an artifact by its key.
When an executor starts workers, it tells them the directories of their machine. So a request means the same on any
machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ktuned.ipc.decoding import InvalidMessage
from ktuned.model import FrozenStruct

_STAGING = ".staging"


class Places(FrozenStruct):
    """The directories of projects (by name), of sealed artifacts, and of references' results.

    Files in ``trusted`` directories are used without a check of who can write them.
    """

    projects: Mapping[str, str]
    artifacts: str
    expected: str
    trusted: tuple[str, ...] = ()

    def locate_root(self, project: str) -> Path:
        """Return a project's directory.

        Raises:
            InvalidMessage: this worker does not have that project.
        """
        if project not in self.projects:
            raise InvalidMessage(f"this worker does not have the project {project!r}")
        return Path(self.projects[project])

    def locate_file(self, project: str, path: str) -> Path:
        """Return the file at a path relative to a project's directory, or at an absolute path of the system.

        Raises:
            InvalidMessage: the worker does not have that project.
        """
        return Path(make_absolute(path, str(self.locate_root(project))))

    def locate_artifact(self, key: str) -> Path:
        """Return the directory of a sealed artifact."""
        return locate_artifact(Path(self.artifacts), key)

    def locate_staging(self, name: str) -> Path:
        """Return the directory in which a group of configs is compiled, before its artifacts are sealed."""
        return locate_staging(Path(self.artifacts), name)

    def locate_reference(self, key: str) -> Path:
        """Return the file in which a worker saves a reference's results for later workers."""
        return Path(self.expected, f"{key}.safetensors")

    def to_argument(self) -> str:
        """Return the text that :meth:`from_argument` reads, on a worker's command line."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_argument(cls, text: str) -> Places:
        """Rebuild from :meth:`to_argument`'s text."""
        return msgspec.json.decode(text, type=cls)


def locate_artifact(artifacts: Path, key: str) -> Path:
    """Return the directory of the artifact ``key``, which need not exist."""
    return artifacts / key[:2] / key


def locate_staging(artifacts: Path, name: str = "") -> Path:
    """Return a directory of unsealed artifacts; without a name, the directory that holds all of them.

    It is on the same file system as the sealed artifacts, so that an artifact can be sealed by renaming it.
    """
    return artifacts / _STAGING / name


def make_relative(path: str, root: str) -> str:
    """Return a file's path relative to its project; ``..`` leads to files beside the project.

    A file that has no directory in common with the project belongs to the system, and keeps its absolute path.
    """
    below = f"{root}/"
    if path.startswith(below):
        return path[len(below) :]
    return path if os.path.commonpath([path, root]) == "/" != path else os.path.relpath(path, root)


def make_absolute(path: str, root: str) -> str:
    """Return the absolute path for a path that :func:`make_relative` returned."""
    return os.path.normpath(os.path.join(root, path))

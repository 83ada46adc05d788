"""Observations: what a request has read besides the files that its kernel names, and what it contained.

Each :class:`~ktuned.model.Observation` has a name and a digest. The daemon stores them with the result, and can look
again later: if a name has another digest then, the result no longer applies. Names are relative to the project. The
record of an installed distribution stands for its files, because a library may have thousands of headers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Container, Mapping
from pathlib import Path

from msgspec.structs import replace

from ktuned.dependencies import ACCESSES, OBSERVER, digest_meaning, find_distribution, find_record_owner
from ktuned.ipc import (
    ABSENT,
    DIRECTORY,
    LISTING,
    is_directory_stamp,
    make_absolute,
    make_relative,
    stamp,
    stamp_attributes,
    stamp_directory,
    stamp_files,
)
from ktuned.model import (
    ATTRIBUTES,
    DISTRIBUTION,
    ENVIRONMENT,
    MADE,
    UNOBSERVED,
    Observation,
    UsageError,
    digest_variable,
    read_variable,
)
from ktuned.worker.names import locate_file, name_file

EXECUTED = "executed"
"""Meaning of an observation before it is looked at: the file was executed as Python, and counts by its syntax."""


class SourceChanged(UsageError):
    """A file has changed since the daemon inspected it. That change starts a new inspection.

    ``observed`` are observations for names that the daemon does not know yet.
    """

    code = "source_changed"

    def __init__(self, message: str, observed: tuple[Observation, ...] = ()) -> None:
        super().__init__(message)
        self.observed = observed


def refresh_observation(observation: Observation, root: str) -> Observation:
    """Return an observation with the present digest of its name, in the project whose directory is ``root``.

    A file counts by its bytes. If the observation has a ``meaning``, the file counts by its syntax if it is Python.
    """
    if observation.name.startswith(ENVIRONMENT):
        # Without changes by the kernel file's own code, because that code is in the digests already.
        environment = os.environ if OBSERVER.kernel_file is None else OBSERVER.environ
        value = read_variable(observation.name.removeprefix(ENVIRONMENT), environment)
        return replace(observation, digest=digest_variable(value))
    if observation.name.startswith((UNOBSERVED, MADE)):
        return observation
    if observation.name.startswith(DISTRIBUTION):
        return _look_for_distribution(observation, root)
    place = Path(locate_file(observation.name.removesuffix(ATTRIBUTES), root))
    if observation.name.endswith(ATTRIBUTES):
        attributes = stamp_attributes(place, has_times="@" in observation.digest)
        return replace(observation, digest=attributes, places=(make_relative(str(place), root),))
    place_stamps = stamp_files([place])
    meaning = ""
    digest = place_stamps[str(place)]
    if observation.name.endswith("/"):
        digest = stamp_directory(place)
    elif observation.meaning and digest != ABSENT and not digest.startswith(LISTING):
        with ACCESSES.pause_recording():
            content = place.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        meaning = digest_meaning(place, content)
    places = tuple(make_relative(path, root) for path in place_stamps)
    return replace(observation, digest=digest, meaning=meaning, places=places)


def _look_for_distribution(observation: Observation, root: str) -> Observation:
    """Return a distribution's observation as it is installed now, in the directory where it was found before.

    If that directory is not known, the distribution is looked for where this interpreter imports from.
    """
    sites = [str(Path(make_absolute(place, root)).parent.parent) for place in observation.places[:1]] or sys.path
    name = observation.name.removeprefix(DISTRIBUTION)
    owner = next(filter(None, (find_distribution(site, name) for site in sites if site)), None)
    if owner is None:
        return replace(observation, digest=ABSENT, meaning="")
    place = make_relative(str(owner.record), root)
    return replace(observation, digest=stamp(owner.record), meaning=owner.digest_contents(), places=(place,))


def name_files_in_project(files: Mapping[Path, str], root: str) -> dict[str, str]:
    """Return the names in the project of files, and of their attributes, with the parts of their stamps.

    The name of a directory that only has to exist ends in a slash. The file that lists what a distribution installed
    goes by the distribution. If packages are installed in several directories, a file may be absent in one of them and
    present in another under the same name. Then the name counts by what it leads to.
    """
    found: dict[str, str] = {}
    for path, whole in sorted(files.items(), key=lambda one: one[1] != ABSENT):
        digest, bar, attributes = whole.partition("|")
        owner = find_record_owner(str(path)) if digest else None
        name = name_file(str(path), root) if owner is None else f"{DISTRIBUTION}{owner.name}"
        if digest == ABSENT and (place := locate_file(name, root)) != str(path):
            digest = stamp(Path(place))
        if bar:
            found[f"{name}{ATTRIBUTES}"] = f"{bar}{attributes}"
        # Leave out directories above the project, which surely exist.
        if digest != DIRECTORY or not f"{root}/".startswith(f"{path}/"):
            found[f"{name}/" if is_directory_stamp(digest) else name] = digest
    return found


def make_observations(
    files: Mapping[str, str],
    root: str,
    executed: Container[str] = (),
    *,
    is_data: bool,
    is_source: bool = False,
) -> list[Observation]:
    """Return the observations of files, and of the environment variables that the kernel file's code has read.

    Args:
        files: the digests that the files were read with, by their names in the project.
        root: the project's directory.
        executed: the names of the files that count by their syntax.
        is_data: whether they were read to make a problem's data.
        is_source: whether they were read to make an artifact.
    """
    observations = []
    for name, digest in sorted(files.items()):
        meaning = EXECUTED if name in executed else ""
        observation = refresh_observation(
            Observation(name, digest, meaning, is_source=is_source, is_data=is_data), root
        )
        observations.append(
            observation if observation.digest == digest else replace(observation, digest=digest, meaning="")
        )
    for name, value in sorted(ACCESSES.variables.items()):
        observations.append(
            Observation(ENVIRONMENT + name, digest_variable(value), is_source=is_source, is_data=is_data)
        )
    return observations

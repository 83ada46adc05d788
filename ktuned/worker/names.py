"""Names of files in traces: relative to what a file belongs to, so that they are the same on any machine.

===========================================  ============================
a file                                       is named
===========================================  ============================
among the interpreter's installed packages   ``site:PATH``
below the interpreter's prefix               ``prefix:PATH``
in the project                               ``PATH``
beside the project                           ``../PATH``
in the user's home directory                 ``~/PATH``
of the system, or elsewhere (``/data/…``)     by its absolute path
===========================================  ============================

The first row that fits decides: an environment may lie inside the project. *Beside the project* is what belongs to the
same repository, or else lies in the directory that holds the project.

Packages may be installed in several directories, such as an environment's own and those of the interpreter below it.
``site:PATH`` is the first such file that exists, as for an import. A second file of that name goes by another row.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache, lru_cache
from pathlib import Path

from ktuned.dependencies import find_installed_place
from ktuned.ipc import stamps
from ktuned.model import HOME, PREFIX, SITE

_SYSTEM_PREFIXES = ("/usr", "/usr/local")
"""Prefixes of interpreters that are no environments of their own; other things lie there, too."""


def name_file(path: str, root: str) -> str:
    """Return the name of an absolute path in the project whose directory is ``root``."""
    below = f"{root}/"
    place = find_installed_place(path)
    if place is not None and place.site in sys.path and not below.startswith(f"{place.site}/"):
        name = f"{SITE}{path[len(place.site) + 1 :]}"
        if not os.path.lexists(path) or locate_file(name, root) == path:
            return name
    prefix = f"{sys.prefix}/"
    if path.startswith(prefix) and not below.startswith(prefix) and sys.prefix not in _SYSTEM_PREFIXES:
        return f"{PREFIX}{path[len(prefix) :]}"
    if path.startswith(below):
        return path[len(below) :]
    if path.startswith(_find_surroundings(root)):
        return os.path.relpath(path, root)
    home = f"{os.path.expanduser('~')}/"
    return f"{HOME}{path[len(home) :]}" if path.startswith(home) else path


def locate_file(name: str, root: str) -> str:
    """Return the absolute path for a name that :func:`name_file` returned, here or on another machine."""
    if name.startswith(SITE):
        below = name.removeprefix(SITE)
        sites = _list_sites(tuple(sys.path))
        site = next((one for one in sites if os.path.lexists(f"{one}/{below}")), sites[0])
        return os.path.normpath(f"{site}/{below}")
    if name.startswith(PREFIX):
        return os.path.normpath(f"{sys.prefix}/{name.removeprefix(PREFIX)}")
    if name.startswith(HOME):
        return os.path.normpath(f"{os.path.expanduser('~')}/{name.removeprefix(HOME)}")
    return os.path.normpath(os.path.join(root, name))


@lru_cache(maxsize=8)
def _list_sites(directories: tuple[str, ...]) -> list[str]:
    """Return those of these directories that hold installed packages; the interpreter's own one if there is none."""
    sites = [one for one in directories if find_installed_place(f"{one}/x") is not None]
    return sites or [sysconfig.get_path("purelib")]


@cache
def _find_surroundings(root: str) -> str:
    """Return the prefix of the paths of files beside a project."""
    home = os.path.expanduser("~")
    with stamps.pause_recording():
        for place in map(str, (Path(root), *Path(root).parents)):
            if place not in ("/", home) and os.path.exists(f"{place}/.git"):
                return f"{place}/"
    holder = os.path.dirname(root)
    return f"{root}/" if holder in ("/", home) else f"{holder}/"

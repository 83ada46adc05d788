"""Roots: watched directories, each with its project's name, its interpreter and its environment.

Explicit settings (``config.toml``, ``--python``) come first, then the project's ``ktuned.toml``. A name may also come
from the installed distribution, or else from the directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from ktuned.catalog.project_file import PROJECT_FILE, Project, read_project
from ktuned.ipc import Trust, Untrusted
from ktuned.model import SettingsError
from ktuned.protocol import Root, RootSettings

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def make_root(
    path: str,
    *,
    name: str = "",
    python: str = "",
    env: Mapping[str, str] | None = None,
    polling: bool = False,
    project: Project | None = None,
) -> Root:
    """Return a root with defaults: its interpreter is that of its own ``.venv``, or else the daemon's.

    If no ``project`` is given, the project file is read. A wrong project file is ignored here.
    """
    real = os.path.realpath(path)
    if project is None:
        try:
            project = read_project(real)
        except (SettingsError, Untrusted):
            # The watcher will read the file again, and show the error.
            project = Project()
    own = Path(path) / ".venv" / "bin" / "python"
    wanted = python or project.python
    chosen = Path(os.path.expanduser(wanted)) if wanted else own if own.exists() else Path(sys.executable)
    if not chosen.is_absolute():
        chosen = Path(path) / chosen
    # The name comes from the path as it was given. The interpreter's link is kept, because it makes the environment
    # virtual.
    base = name or project.name or find_distribution_name(real) or Path(path).name or "root"
    return Root(
        real,
        base,
        str(_prefer_plain_name(chosen)),
        {**project.env, **(env or {})},
        polling,
        RootSettings(name, python, dict(env or {})),
        project.digest,
        project.defaults,
        _resolve_workers_directory(real, project.workers),
    )


def _resolve_workers_directory(root: str, wanted: str) -> str:
    """Return the ``wanted`` directory, whose projects share their workers; empty unless it is above the root."""
    shared = os.path.realpath(os.path.join(root, wanted)) if wanted else ""
    return shared if shared and root.startswith(f"{shared}/") else ""


def _prefer_plain_name(python: Path) -> Path:
    """Return an interpreter by the name ``python`` if it has that name, too: each name would get its own workers."""
    plain = python.with_name("python")
    return plain if plain.exists() and plain.resolve() == python.resolve() else python


def remake_root(root: Root, project: Project | None = None, trust: Trust | None = None) -> Root:
    """Make a root again from its explicit settings and its present project file.

    Raises:
        SettingsError: the project file is wrong.
        Untrusted: other users can write it.
    """
    return make_root(
        root.path,
        name=root.asked.name,
        python=root.asked.python,
        env=root.asked.env,
        polling=root.polling,
        project=read_project(root.path, trust) if project is None else project,
    )


def remake_roots(roots: Iterable[Root], known: Mapping[str, str], trust: Trust) -> list[Root]:
    """Return the roots that a daemon watches after its start.

    A root whose project file is wrong keeps the name that ``known`` has for its path.
    """
    return name_roots([_remake_root_or_keep_name(root, known.get(root.path, ""), trust) for root in roots], known)


def _remake_root_or_keep_name(root: Root, known: str, trust: Trust) -> Root:
    if not os.path.isdir(root.path):
        return root
    try:
        return remake_root(root, None, trust)
    except (SettingsError, Untrusted):
        return remake_root(root, Project(name=known))


def name_roots(roots: Iterable[Root], known: Mapping[str, str], taken: Collection[str] = ()) -> list[Root]:
    """Return roots with different names. If two roots would have the same, the later adds its directories' names.

    ``known`` are the names that paths had before: a root keeps its name if that still fits. ``taken`` are names of
    other roots. An explicit name is never changed.
    """
    roots = list(roots)
    held = {*taken, *(root.name for root in roots if root.asked.name)}
    chosen: dict[str, Root] = {}
    # Roots that keep their name come first, so that no other root takes it.
    for root in sorted(roots, key=lambda root: not root.asked.name and known.get(root.path) != root.name):
        if root.asked.name:
            chosen[root.path] = root
            continue
        fitting = list(_propose_root_names(root))
        before = known.get(root.path, "")
        free = [name for name in (before, *fitting) if name in fitting and name not in held]
        name = free[0] if free else f"{fitting[-1]}-{len(held)}"
        held.add(name)
        chosen[root.path] = replace(root, name=name)
    return [chosen[root.path] for root in roots]


def _propose_root_names(root: Root) -> Iterator[str]:
    """Yield the names that a root may have: first the plain name, then names with more and more of its directories."""
    parts = [part for part in Path(root.path).parts if part != "/"] or ["root"]
    yield root.name
    for length in range(1, len(parts) + 1):
        name = "-".join(parts[-length:])
        if root.name == parts[-1]:
            yield name
        else:
            yield f"{root.name}-{name}"


def find_project_top(directory: str, trust: Trust) -> str:
    """Return the nearest directory, at or above this one, that has a project file; by default the directory itself.

    A project file above that other users can write is ignored, because it may be another user's.
    """
    for place in (Path(directory), *Path(directory).parents):
        path = place / PROJECT_FILE
        if path.is_file():
            try:
                trust.check_file(str(path))
            except Untrusted:
                if str(place) != directory:
                    continue
            return str(place)
    return directory


def find_distribution_name(path: str) -> str:
    """Return the name of the distribution that installed a directory; ``""`` for code that is not installed."""
    places = [place for place in (Path(path), *Path(path).parents) if place.name in _INSTALLED]
    if not places or str(places[0]) == path:
        return ""
    site, relative = places[0], os.path.relpath(path, places[0]).encode()
    for info in sorted(site.glob("*.dist-info")):
        try:
            record = (info / "RECORD").read_bytes()
        except OSError:
            continue
        if record.startswith(relative + b"/") or b"\n" + relative + b"/" in record:
            try:
                headers = (info / "METADATA").read_text(errors="replace").splitlines()
            except OSError:
                return ""
            return next((line.removeprefix("Name:").strip() for line in headers if line.startswith("Name:")), "")
    return ""

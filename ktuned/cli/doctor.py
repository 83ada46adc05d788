"""Checks of an installation; each returns findings, with the command that repairs the fault.

A check takes its subject as arguments and never raises, because it exists for broken installations. No check needs a
daemon; facts that only a daemon has come from its ``status``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from importlib.metadata import EntryPoint
from pathlib import Path

from ktuned import observer
from ktuned.cli import text
from ktuned.daemon import load_settings
from ktuned.model import FrozenStruct, SettingsError
from ktuned.protocol import EnvironmentInfo, HostInfo, StatusAnswer
from ktuned_client import paths

SUPPORTED_PYTHON = ((3, 11), (3, 13))
"""The oldest and the newest Python that ktuned is tested with."""

DISK_FAIL_BYTES = 64 * 1024**2
DISK_WARN_BYTES = 2 * 1024**3
"""Below the first limit the store will soon fail; below the second, artifacts will soon fill the disk."""

INOTIFY_WATCHES = 8192
INOTIFY_INSTANCES = 128
"""Lowest limits without a warning. A daemon needs one watch for each directory below a root and one instance; editors
need some, too."""


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(FrozenStruct):
    """One line of the doctor: the subject, its state, and the command that repairs it."""

    level: Level
    what: str
    message: str
    mend: str = ""


def check_observer(environment: Mapping[str, str] = os.environ) -> Finding:
    """Check that workers can be observed; otherwise no answer is ``fresh``."""
    if environment.get(observer.OFF_VARIABLE):
        message = f"switched off by {observer.OFF_VARIABLE}: no kernel is fully observed"
        return Finding(Level.WARN, "observer", message, f"unset {observer.OFF_VARIABLE}")
    try:
        place = observer.build_library()
    except observer.LibraryUnavailable as error:
        return Finding(Level.WARN, "observer", f"{error}: no kernel is fully observed", "apt install gcc libc6-dev")
    return Finding(Level.OK, "observer", str(place))


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the interpreter's version."""
    oldest, newest = SUPPORTED_PYTHON
    message = ".".join(map(str, version))
    if version[:2] < oldest:
        return Finding(Level.FAIL, "python", f"{message} is too old", "install Python 3.11 or newer")
    if version[:2] > newest:
        return Finding(Level.WARN, "python", f"{message} is newer than the versions that ktuned is tested with")
    return Finding(Level.OK, "python", f"{message} at {sys.executable}")


def check_socket(path: str) -> Finding:
    """Check that the socket's path is usable and its directory private, by the daemon's own rules."""
    directory = os.path.dirname(path)
    try:
        paths.check_length(path)
        paths.check_directory(directory)
    except FileNotFoundError:
        return Finding(Level.OK, "socket directory", f"{directory} will be made by the daemon")
    except paths.UntrustedSocket as error:
        return Finding(Level.FAIL, "socket directory", error.message, error.hint)
    except OSError as error:
        mend = "set KTUNED_SOCKET to a path in a private directory of yours"
        return Finding(Level.FAIL, "socket directory", f"{directory}: {error.strerror}", mend)
    try:
        paths.check_socket(path)
    except FileNotFoundError:
        pass
    except paths.UntrustedSocket as error:
        return Finding(Level.FAIL, "socket", error.message, error.hint or f"rm {path}")
    return Finding(Level.OK, "socket directory", f"{directory} is private")


def _find_nearest_existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def check_home(home: Path) -> Finding:
    """Check that state can be written to ``home``, or to the directory that will hold it."""
    place = _find_nearest_existing(home)
    if not place.is_dir():
        return Finding(Level.FAIL, "home", f"{place} is not a directory", "set KTUNED_HOME to a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(Level.FAIL, "home", f"{place} is not writable", f"chmod u+wx {place}, or set KTUNED_HOME")
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return Finding(Level.FAIL, "home", f"{place} is on a read-only file system", "set KTUNED_HOME")
    return Finding(Level.OK, "home", f"{home} is writable" if place == home else f"{home} can be made")


def check_mount(cache: Path) -> Finding:
    """Check that code may be executed from the cache, which has the compiled configs and the observer's library."""
    place = _find_nearest_existing(cache)
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        mend = "set KTUNED_HOME or XDG_CACHE_HOME to a mount that allows it, or remount it with exec"
        return Finding(
            Level.FAIL, "cache", f"{place} is on a mount with noexec: compiled configs cannot be loaded", mend
        )
    return Finding(Level.OK, "cache", f"{place} may hold code")


def check_settings() -> Finding:
    """Check ``config.toml`` by the daemon's own reader."""
    try:
        path = load_settings().config_path
    except SettingsError as error:
        return Finding(Level.FAIL, "config.toml", error.message, error.hint)
    return Finding(
        Level.OK,
        "config.toml",
        f"{path} is valid" if path.is_file() else f"{path} does not exist, and is optional",
    )


def check_disk(home: Path, free_bytes: int | None = None) -> Finding:
    """Check the free disk space for state and artifacts."""
    try:
        free_bytes = shutil.disk_usage(_find_nearest_existing(home)).free if free_bytes is None else free_bytes
    except OSError as error:
        return Finding(Level.FAIL, "disk", f"{home}: {error.strerror}", "set KTUNED_HOME")
    message = f"{text.format_size(free_bytes)} free at {home}"
    mend = "free some space, or set KTUNED_HOME to another disk"
    if free_bytes < DISK_FAIL_BYTES:
        return Finding(Level.FAIL, "disk", message, mend)
    return (
        Finding(Level.WARN, "disk", message, mend)
        if free_bytes < DISK_WARN_BYTES
        else Finding(Level.OK, "disk", message)
    )


def check_inotify(directory: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Check the operating system's limits on watching files."""
    limits = {"max_user_watches": INOTIFY_WATCHES, "max_user_instances": INOTIFY_INSTANCES}
    low = []
    for name, wanted in limits.items():
        try:
            actual = int((directory / name).read_text())
        except (OSError, ValueError) as error:
            return Finding(Level.WARN, "inotify", f"{directory / name} cannot be read: {error}")
        if actual < wanted:
            low.append((name, actual, wanted))
    if not low:
        return Finding(Level.OK, "inotify", "the limits suffice")
    message = ", ".join(f"{name} is {actual}" for name, actual, _ in low)
    mend = "sudo sysctl " + " ".join(f"fs.inotify.{name}={wanted}" for name, _, wanted in low)
    return Finding(Level.WARN, "inotify", message, mend)


def check_plugins(points: list[EntryPoint]) -> Finding:
    """List the installed backends from their metadata, without importing them."""
    if not points:
        return Finding(Level.FAIL, "plugins", "no backend is installed", "pip install 'ktuned[tvm-ffi]'")
    named = sorted(f"{point.name} {point.dist.version}" if point.dist else point.name for point in points)
    return Finding(Level.OK, "plugins", ", ".join(named))


def check_daemon(
    status: StatusAnswer | None, version: str, absence: str = "", mend: str = "", *, is_new: bool = False
) -> Finding:
    """Check that a daemon of this version answers; ``absence`` is the reason if none does, ``mend`` the remedy.

    With ``is_new`` nothing was ever tuned here, so no daemon has been needed yet.
    """
    if status is None:
        if is_new:
            return Finding(Level.OK, "daemon", "none runs yet; `ktuned tune` and `ktuned watch` start one")
        return Finding(Level.WARN, "daemon", absence or "none runs", mend or "ktuned start")
    message = f"pid {status.pid}, version {status.version}"
    if status.version != version:
        return Finding(Level.WARN, "daemon", f"{message}; this is {version}", "ktuned stop")
    return Finding(Level.OK, "daemon", message)


def check_lanes(status: StatusAnswer) -> list[Finding]:
    """Check the state of each lane."""
    return [
        Finding(Level.FAIL, f"lane {lane.device}", lane.reason or "sick", "ktuned status")
        for lane in status.lanes
        if lane.is_sick
    ]


def check_notices(status: StatusAnswer) -> list[Finding]:
    """Return the daemon's notices as findings."""
    return [Finding(Level.WARN, "daemon", text.first_line(notice, 400)) for notice in status.notices]


def check_hosts(status: StatusAnswer) -> Iterator[Finding]:
    """Check the cluster's hosts in a daemon's status."""
    cluster = status.cluster
    if cluster is None:
        return
    if not cluster.version:
        mend = "the interpreter in [cluster] python needs ktuned-ray, and the cluster's Ray and Python"
        yield Finding(Level.WARN, "cluster", f"{cluster.address} is not joined; the notices say why", mend)
        return
    count = text.format_count(len(cluster.hosts), "host")
    yield Finding(Level.OK, "cluster", f"{cluster.address}: {cluster.version}, {count}")
    for host in cluster.hosts:
        yield _check_host(host, status.environments)


def _check_host(host: HostInfo, environments: Iterable[EnvironmentInfo]) -> Finding:
    name, mend = f"host {host.name}", "install the same there, or bring it by [cluster] runtime_env"
    if host.reason:
        return Finding(Level.WARN, name, text.first_line(host.reason), mend)
    found = f"{text.format_count(host.cpus, 'CPU')}, {text.format_count(host.gpus, 'GPU')}"
    if missing := _find_missing_backends(host, environments):
        return Finding(Level.WARN, name, f"{found}; no backend {', '.join(sorted(missing))}", mend)
    return Finding(Level.OK, name, found)


def _find_missing_backends(host: HostInfo, environments: Iterable[EnvironmentInfo]) -> set[str]:
    """Return the usable backends of this machine that a host lacks; none if the host was not probed yet."""
    usable: dict[str, set[str]] = {}
    for report in environments:
        names = {name for name, backend in report.backends.items() if backend.error is None}
        usable.setdefault(report.host, set()).update(names)
    return usable.get("", set()) - usable[host.name] if host.name in usable else set()

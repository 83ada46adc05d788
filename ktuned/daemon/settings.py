"""Settings: paths, and the content of ``config.toml``. They are read once, checked as a whole, and then frozen.

With an invalid file a start fails. The error names the file, the field, and the values that it accepts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from ktuned.backends import cpu
from ktuned.catalog import make_root
from ktuned.fleet import ClusterSettings, choose_compile_slots, count_compile_workers, memory
from ktuned.ipc import read_regular_file
from ktuned.model import TOML_HINT, FrozenStruct, SettingsError, listed
from ktuned.protocol import Root
from ktuned.scheduling import POLICIES
from ktuned.serve import ShareSettings
from ktuned.tuning import DEFAULT_DEADLINES
from ktuned.user_directories import NO_HOME_HINT, NoHomeDirectory, find_user_directories
from ktuned_client.paths import socket_path

DEFAULT_ARTIFACTS_GIB = 10.0

_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


class RootSettings(FrozenStruct, forbid_unknown_fields=True):
    """One ``[[roots]]`` entry: a directory to watch.

    Attributes:
        path: The directory.
        name: The project's name.
        python: The project's interpreter.
        env: Environment variables for the project's workers.
        polling: Whether to watch by polling.
    """

    path: str
    name: str = ""
    python: str = ""
    env: dict[str, str] = {}
    polling: bool = False


class ConfigFile(FrozenStruct, forbid_unknown_fields=True):
    """All settings in ``config.toml``."""

    roots: tuple[RootSettings, ...] = ()
    deadlines: dict[str, float] = {}
    compile_slots: int | None = None
    policy: str = "always"
    artifacts_gib: float = DEFAULT_ARTIFACTS_GIB
    contention: bool = True
    spares: bool = True
    arch: str = ""
    devices: tuple[str, ...] = ()
    bench_memory_gib: float | None = None
    compile_memory_gib: float | None = None
    idle_exit_s: float | None = None
    trusted_directories: tuple[str, ...] = ()
    share: ShareSettings = ShareSettings()
    cluster: ClusterSettings = ClusterSettings()


class Settings(FrozenStruct):
    """The settings of a daemon.

    Attributes:
        socket: The path of the daemon's socket.
        state: The directory of everything that must be kept.
        cache: The directory of everything that can be made again.
        config_path: The path of ``config.toml``.
        roots: The roots in ``config.toml``.
        deadlines: Seconds that each phase may take, by its name.
        compile_slots: Compiles that may run at once.
        compile_cores: The cores that compilers may use.
        artifacts_bytes: Size limit of all artifacts.
        bench_bytes: Memory that a bench worker may use.
        compile_bytes: Memory that a compile worker may use.
        idle_exit_s: Seconds of inactivity after which the daemon ends; 0 is never, None is the default.
        trusted_directories: Directories that workers may read although others may write to them.
        file: The content of ``config.toml``.
    """

    socket: str
    state: Path
    cache: Path
    config_path: Path
    roots: tuple[Root, ...]
    deadlines: Mapping[str, float]
    compile_slots: int
    compile_cores: frozenset[int]
    artifacts_bytes: int
    bench_bytes: int
    compile_bytes: int
    idle_exit_s: float | None
    trusted_directories: tuple[str, ...]
    file: ConfigFile = ConfigFile()

    @property
    def artifacts(self) -> Path:
        """The directory of sealed artifacts."""
        return self.cache / "artifacts"

    @property
    def has_memory_limits(self) -> bool:
        """True if ``config.toml`` limits the memory of workers; otherwise each machine's memory decides."""
        return self.file.bench_memory_gib is not None or self.file.compile_memory_gib is not None

    @property
    def scratch(self) -> Path:
        """The directory of workers' temporary files; a daemon that starts clears it."""
        return self.cache / "tmp"


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from the environment and ``config.toml``.

    Args:
        environment: The variables; by default the process's own.

    Raises:
        SettingsError: a setting is invalid; names the file and the field.
    """
    env = os.environ if environment is None else environment
    try:
        directories = find_user_directories(env)
    except NoHomeDirectory as error:
        raise SettingsError(str(error), hint=NO_HOME_HINT) from None
    config_path = directories.config / "config.toml"
    file = _read_config(config_path)
    slots = file.compile_slots or choose_compile_slots(cpu.cores())
    bench_bytes, compile_bytes = memory.choose_default_limits(count_compile_workers(slots))
    cores = sorted(os.sched_getaffinity(0))
    # The first core is for a lane; compilers stay off it. The cores of further lanes are only known later.
    compile_cores = frozenset(cores[1:])
    return Settings(
        socket=str(socket_path(env)),
        state=directories.state,
        cache=directories.cache,
        config_path=config_path,
        roots=_make_roots(file, config_path),
        deadlines=_merge_deadlines(file, config_path),
        compile_slots=slots,
        compile_cores=compile_cores,
        artifacts_bytes=int(file.artifacts_gib * 2**30),
        bench_bytes=_to_bytes(file.bench_memory_gib, bench_bytes),
        compile_bytes=_to_bytes(file.compile_memory_gib, compile_bytes),
        idle_exit_s=file.idle_exit_s,
        trusted_directories=_expand_directories(file.trusted_directories, config_path),
        file=file,
    )


def _read_config(path: Path) -> ConfigFile:
    try:
        text = read_regular_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile()
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}", hint="put a file of yours in its place"
        ) from error
    try:
        table = msgspec.toml.decode(text)
        _check_value(table, ConfigFile, "")
    except (msgspec.DecodeError, UnicodeDecodeError, _ConfigError) as error:
        raise SettingsError(f"{path}: {error}", hint=TOML_HINT) from error
    file = msgspec.convert(table, ConfigFile)
    if file.compile_slots is not None and file.compile_slots < 1:
        raise SettingsError(f"{path}: compile_slots is {file.compile_slots}", hint="it takes at least 1")
    if not all(name.strip() for name in file.devices):
        raise SettingsError(f"{path}: devices holds an empty name", hint="name devices (cuda:0) or models (H200)")
    if file.policy not in POLICIES:
        raise SettingsError(f"{path}: policy is {file.policy!r}", hint=f"there are {', '.join(POLICIES)}")
    for field in ("artifacts_gib", "bench_memory_gib", "compile_memory_gib"):
        value = getattr(file, field)
        if value is not None and not 0 < value < math.inf:
            raise SettingsError(f"{path}: {field} is {value}", hint="give GiB above 0")
    if fault := file.share.find_fault():
        name, _, _ = fault.partition(" is ")
        raise SettingsError(f"{path}: [share] {fault}", hint=f"docs/reference/settings.md describes `{name}`")
    if fault := file.cluster.find_fault():
        raise SettingsError(f"{path}: [cluster] {fault}", hint="see docs/reference/cluster.md")
    if file.idle_exit_s is not None and not 0 <= file.idle_exit_s < math.inf:
        raise SettingsError(f"{path}: idle_exit_s is {file.idle_exit_s}", hint="give seconds, or 0 for never")
    return file


class _ConfigError(Exception):
    """A value in ``config.toml`` is invalid; the message says which one and why."""


def _check_value(value: object, expected_type: Any, place: str) -> None:
    """Check a decoded value against its type in :class:`ConfigFile`; ``place`` is its name, empty for the whole file.

    Raises:
        _ConfigError: a name or a type is wrong.
    """
    if get_origin(expected_type) is UnionType:
        (expected_type,) = (kind for kind in get_args(expected_type) if kind is not type(None))
    origin = get_origin(expected_type)
    is_struct = isinstance(expected_type, type) and issubclass(expected_type, msgspec.Struct)
    expected = list if origin is tuple else dict if is_struct or origin is dict else expected_type
    if type(value) is not expected and not (expected is float and type(value) is int):
        got = str(value).lower() if isinstance(value, bool | float) else _KINDS.get(type(value), "a date or time")
        raise _ConfigError(f"{place} takes {_KINDS[expected]}, not {got}")
    if is_struct:
        assert isinstance(value, dict)
        _check_table(value, expected_type, place)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_value(item, get_args(expected_type)[1], f"{place}.{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _check_value(item, get_args(expected_type)[0], f"{place}[{position}]")


def _check_table(table: Mapping[str, object], struct_type: type[msgspec.Struct], place: str) -> None:
    kinds = get_type_hints(struct_type)
    for name, value in table.items():
        if name not in kinds:
            lacks = f"{place} has no setting" if place else "there is no setting"
            raise _ConfigError(f"{lacks} {name!r} {listed(kinds, near=name)}")
        _check_value(value, kinds[name], f"{place}.{name}" if place else name)
    for field in msgspec.structs.fields(struct_type):
        if field.required and field.name not in table:
            raise _ConfigError(f"{place} lacks `{field.name}`")


def _to_bytes(gib: float | None, default: int) -> int:
    return default if gib is None else int(gib * 2**30)


def _expand_directories(directories: tuple[str, ...], path: Path) -> tuple[str, ...]:
    expanded = tuple(map(os.path.expanduser, directories))
    for directory in expanded:
        if not os.path.isabs(directory):
            raise SettingsError(
                f"{path}: trusted_directories: {directory!r} is not absolute", hint="write its full path"
            )
    return expanded


def _merge_deadlines(file: ConfigFile, path: Path) -> Mapping[str, float]:
    for phase, seconds in file.deadlines.items():
        if phase not in DEFAULT_DEADLINES:
            raise SettingsError(
                f"{path}: [deadlines] has no phase {phase!r}", hint=f"there are {', '.join(DEFAULT_DEADLINES)}"
            )
        if not 0 < seconds < math.inf:
            raise SettingsError(f"{path}: [deadlines] {phase} is {seconds}", hint="give seconds above 0")
    return {**DEFAULT_DEADLINES, **file.deadlines}


def _make_roots(file: ConfigFile, path: Path) -> tuple[Root, ...]:
    roots: list[Root] = []
    for entry in file.roots:
        directory = os.path.expanduser(entry.path)
        if not os.path.isabs(directory):
            raise SettingsError(f"{path}: the root {entry.path!r} is not absolute", hint="write its full path")
        root = make_root(directory, name=entry.name, python=entry.python, env=entry.env, polling=entry.polling)
        for other in roots:
            if other.path == root.path:
                raise SettingsError(f"{path}: the root {root.path} is listed twice", hint="remove one of them")
            if other.name == root.name and not (other.project_digest or root.project_digest):
                raise SettingsError(
                    f"{path}: the roots {other.path} and {root.path} are both named {root.name!r}",
                    hint="give one of them another `name`",
                )
        roots.append(root)
    return tuple(roots)

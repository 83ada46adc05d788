"""``ktuned.toml``: the settings of a project, in its top directory.

The file is checked as a whole. A wrong file changes nothing: the error names the file and the setting, and the project
keeps its earlier settings.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ktuned.ipc import Trust, read_regular_file
from ktuned.model import NUMERICS, PRESETS, TOML_HINT, FrozenStruct, PlanDefaults, SettingsError, listed

PROJECT_FILE = "ktuned.toml"

MAX_BYTES = 64 * 1024
"""Largest project file. It has a few lines of settings; a larger file belongs to another program."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Project(FrozenStruct):
    """A project as its file describes it. For an empty ``name``, ``python`` or ``workers``, the usual rules apply.

    ``digest`` is the SHA-256 of the file, or ``""`` where there is none.
    """

    name: str = ""
    python: str = ""
    env: Mapping[str, str] = {}
    workers: str = ""
    defaults: PlanDefaults = msgspec.field(default_factory=PlanDefaults)
    digest: str = ""


def read_project(directory: str, trust: Trust | None = None) -> Project:
    """Return the project that a directory's project file describes; an empty project if there is no such file.

    Raises:
        SettingsError: the file cannot be read, or is wrong.
        Untrusted: other users can write the file, which names an interpreter to run.
    """
    path = os.path.join(directory, PROJECT_FILE)
    try:
        content = read_regular_file(path, MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Project()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", hint="check its mode and its owner") from error
    (trust or Trust()).check_file(path)
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path} has more than {MAX_BYTES} bytes", hint="keep only the settings of a project in it")
    return parse_project(content, path)


def digest_project_file(directory: str) -> str:
    """Return the SHA-256 of a directory's project file; empty if it cannot be read."""
    try:
        return hashlib.sha256(read_regular_file(os.path.join(directory, PROJECT_FILE), MAX_BYTES + 1)).hexdigest()
    except OSError:
        return ""


def parse_project(content: bytes, path: str) -> Project:
    """Return the project that the bytes of a file describe; ``path`` is for messages. No IO.

    Raises:
        SettingsError: the file is wrong; the message names the setting.
    """
    # Imported here to save the daemon's memory, because most projects have no such file.
    import tomllib

    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: {error}", hint=TOML_HINT) from error
    try:
        _check_fields(table, _SETTINGS, "")
        _check_fields(table.get("defaults", {}), _DEFAULTS, "defaults.")
    except ValueError as error:
        raise SettingsError(f"{path}: {error}", hint=TOML_HINT) from None
    return Project(
        name=table.get("name", ""),
        python=table.get("python", ""),
        env=table.get("env", {}),
        workers=table.get("workers", ""),
        defaults=PlanDefaults(**table.get("defaults", {})),
        digest=hashlib.sha256(content).hexdigest(),
    )


def _check_fields(table: Mapping[str, Any], rules: Mapping[str, tuple[Callable[[Any], bool], str]], place: str) -> None:
    for name, value in table.items():
        if name not in rules:
            raise ValueError(f"there is no setting {place}{name} {listed(rules, near=name)}")
        is_valid, expected = rules[name]
        if not is_valid(value):
            raise ValueError(f"{place}{name} takes {expected}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_environment(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _VARIABLE.fullmatch(name) and isinstance(text, str) and "\0" not in text for name, text in value.items()
    )


_SETTINGS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (
        lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
        "a name in quotes, of up to 200 letters, digits, `_`, `.` and `-`",
    ),
    "python": (
        lambda value: isinstance(value, str) and value.strip() != "" and "\0" not in value,
        "the path of an interpreter in quotes",
    ),
    "env": (_is_environment, "a table of environment variables, with their values in quotes"),
    "workers": (
        lambda value: isinstance(value, str) and value.strip() != "" and "\0" not in value,
        "the path of a directory above the project in quotes",
    ),
    "defaults": (lambda value: isinstance(value, dict), "a table"),
}
_DEFAULTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "preset": (lambda value: isinstance(value, str) and value in PRESETS, f"one of {', '.join(PRESETS)}"),
    "trials": (lambda value: _is_number(value) and isinstance(value, int), "a whole number above 0"),
    "time_limit_s": (_is_number, "seconds above 0"),
    "numerics": (lambda value: isinstance(value, str) and value in NUMERICS, f"one of {', '.join(NUMERICS)}"),
}

"""``ktuned config``: the settings in effect and their sources, and a new ``ktuned.toml``."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec import structs

from ktuned.catalog import find_project_top, read_project
from ktuned.cli import output
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.daemon import load_settings
from ktuned.ipc import Trust
from ktuned.model import UsageError

_PROJECT_TEXT = """\
# Settings of this project for ktuned, to be kept in git; docs/reference/kernel-files.md describes them.

# The first part of each kernel's full name.
name = "{name}"

# The interpreter that has the kernels' packages, relative to this file.
# python = ".venv/bin/python"

# Environment variables for the kernels.
# env = {{ OMP_NUM_THREADS = "8" }}

# Budgets of kernel files that set none of their own.
# [defaults]
# preset = "default"
# trials = 200
# time_limit_s = 60
"""


class Setting(NamedTuple):
    """A setting in effect, and where its value comes from: a file, a variable or ``default``."""

    name: str
    value: Any
    source: str


@click.command()
@click.option(
    "--init",
    "directory",
    is_flag=False,
    flag_value=".",
    metavar="[DIRECTORY]",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write a ktuned.toml with the project's name there (default: here).",
)
@json_option
def config(directory: Path | None, as_json: bool) -> int:
    """Show the settings.

    Lists the settings that a daemon would use if it started now, and those of the nearest ktuned.toml above the working
    directory, each with its source. If config.toml has an error, the command says so and exits with 2.
    """
    if directory is not None:
        return _write_project_file(directory)
    found = [*_list_daemon_settings(os.environ), *_list_project_settings(os.getcwd())]
    if as_json:
        output.emit_json([setting._asdict() for setting in found])
    else:
        rows = ([setting.name, _format_setting(setting.value), setting.source] for setting in found)
        output.print_table(["setting", "value", "from"], rows)
    return Exit.DONE


def _list_daemon_settings(environ: Mapping[str, str]) -> Iterator[Setting]:
    settings = load_settings(environ)
    file = str(settings.config_path)
    home = "KTUNED_HOME" if environ.get("KTUNED_HOME") else "default"
    runtime = "XDG_RUNTIME_DIR" if environ.get("XDG_RUNTIME_DIR") else "default"
    yield Setting("socket", settings.socket, "KTUNED_SOCKET" if environ.get("KTUNED_SOCKET") else runtime)
    yield Setting("state", str(settings.state), home)
    yield Setting("cache", str(settings.cache), home)
    yield Setting("config", file, home if settings.config_path.exists() else f"{home}; there is no such file")
    # The file is valid, because it was read just now. It is read again for the names that it sets: the settings have
    # the defaults filled in.
    written = tomllib.loads(settings.config_path.read_text()) if settings.config_path.exists() else {}
    effective = {
        "compile_slots": settings.compile_slots,
        "compile_memory_gib": round(settings.compile_bytes / 2**30, 2),
        "bench_memory_gib": round(settings.bench_bytes / 2**30, 2),
        "idle_exit_s": "1800 if started on demand, else 0" if settings.idle_exit_s is None else settings.idle_exit_s,
    }
    for name in settings.file.__struct_fields__:
        if name in ("roots", "deadlines"):
            continue
        value = effective.get(name, getattr(settings.file, name))
        if fields := getattr(value, "__struct_fields__", ()):
            # A table of settings: each field has its own source.
            for field in fields:
                source = file if field in written.get(name, {}) else "default"
                yield Setting(f"{name}.{field}", getattr(value, field), source)
            continue
        yield Setting(name, value, file if name in written else "default")
    given = settings.file.deadlines
    for phase, seconds in settings.deadlines.items():
        yield Setting(f"deadlines.{phase}", seconds, file if phase in given else "default")
    for root in settings.roots:
        yield Setting(f"roots.{root.name}", root.path, file)


def _list_project_settings(directory: str) -> Iterator[Setting]:
    top = find_project_top(directory, Trust())
    project = read_project(top)
    if not project.digest:
        return
    file = os.path.join(top, "ktuned.toml")
    given = {"name": project.name, "python": project.python, **structs.asdict(project.defaults)}
    for name, value in given.items():
        if value:
            yield Setting(f"project.{name}", value, file)
    for name, value in project.env.items():
        yield Setting(f"project.env.{name}", value, file)


def _format_setting(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _write_project_file(directory: Path) -> int:
    """Write a ktuned.toml that names the project, so that worktrees and clones share their winners."""
    place = directory.resolve() / "ktuned.toml"
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", place.parent.name).strip("-.")[:200] or "project"
    try:
        with open(place, "x", encoding="utf-8") as file:
            file.write(_PROJECT_TEXT.format(name=name))
    except FileExistsError:
        raise UsageError(f"{place} exists already", hint="edit it, or remove it first") from None
    except OSError as error:
        output.print_error(f"{place} cannot be written: {error.strerror}", "name another directory")
        return Exit.NOT_REACHED
    output.emit_line(f"wrote {place}: the project is named {name}")
    return Exit.DONE

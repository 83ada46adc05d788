"""Dependencies of a compile and of a link, as compilers and linkers report them, and where they looked in vain."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ktuned.spec import IncludeSearch

_ENVIRONMENT = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
"""Variables that add directories; these are the user's, not the toolchain's."""

_CUDA_HEADER = "cuda_runtime.h"
_SEARCH_LIST = re.compile(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", re.DOTALL)
_LIBRARIES = re.compile(r"^libraries: =(.*)$", re.MULTILINE)
_OPENED = re.compile(r"^[.!]+x? (.+)$", re.MULTILINE)
_MISSING = re.compile(r"fatal error: '?([^':\n]+)'?(?:: No such file| file not found)")


def prerequisites(rule: str, base: Path) -> list[Path]:
    r"""Return a make rule's files: ``target: file file``, a ``\`` before line ends and blanks, ``$$`` for ``$``."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    names = re.findall(r"(?:\\.|[^\s\\])+", files.partition("\n")[0])
    return [_path(re.sub(r"\\(.)", r"\1", name).replace("$$", "$"), base) for name in names]


def opened(said: str, base: Path) -> list[Path]:
    """Return the files in a list of opened headers (``-H``), which also a source that does not compile has."""
    return [_path(name, base) for name in _OPENED.findall(said)]


def missing(said: str) -> list[str]:
    """Return the names of headers that a compiler did not find."""
    return _MISSING.findall(said)


def with_toolkit(search: IncludeSearch, read: Iterable[Path]) -> IncludeSearch:
    """Return a search that knows CUDA's headers among those that were read as the toolchain's.

    nvcc does not declare them as system headers; it includes one of them first, which reveals their path.
    """
    toolkits = dict.fromkeys(path.parent for path in read if path.name == _CUDA_HEADER)
    return replace(search, toolchain=(*search.toolchain, *toolkits))


def observed(
    search: IncludeSearch, sources: Sequence[Path], read: Sequence[Path], lacking: Sequence[str] = ()
) -> set[Path]:
    """Return the user's files among those that were read, those that flags name, and the places of vain searches."""
    users = {path for path in read if search.is_users(path)}
    return users | search.named | search.missed(sources, read, lacking)


def linked(read: Iterable[Path], flags: Sequence[str], base: Path, toolchain: Iterable[Path]) -> set[Path]:
    """Return what a link depends on besides the toolchain's libraries: the user's, and what the user's flags name.

    A library that lies in a later directory counts as absent in the earlier ones.
    """
    wanted = [flag[2:] for flag in flags if flag.startswith("-l")]
    places = [_path(flag[2:], base) for flag in flags if flag.startswith("-L")]
    theirs = set(toolchain) - set(places)
    found: set[Path] = set()
    # A file that is gone by now was temporary.
    for path in filter(Path.exists, read):
        is_wanted = any(path.name.startswith(f"lib{name}.") for name in wanted)
        if is_wanted or not any(path.is_relative_to(place) for place in theirs):
            found.add(path)
        if is_wanted:
            earlier = places[: places.index(path.parent)] if path.parent in places else places
            found |= {place / path.name for place in earlier}
    return found


@functools.cache
def header_directories(command: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the directories of a compiler's own headers and of the system's."""
    said = _said((*command, "-E", "-v", "-x", "c++", os.devnull, "-o", os.devnull))
    found = _SEARCH_LIST.search(said)
    return tuple(_path(line.strip(), Path("/")) for line in found[1].splitlines()) if found else (Path("/usr/include"),)


@functools.cache
def library_directories(command: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the directories of a compiler's own libraries and of the system's."""
    found = _LIBRARIES.search(_said((*command, "-print-search-dirs")))
    names = found[1].split(":") if found else []
    return tuple(_path(name, Path("/")) for name in (*names, "/lib", "/usr/lib", "/lib64", "/usr/lib64"))


def toolkit_of(program: str) -> tuple[Path, ...]:
    """Return the directory of the CUDA toolkit that a compiler's program belongs to, if it is nvcc."""
    place = shutil.which(program)
    return (Path(place).resolve().parent.parent,) if place and Path(place).name == "nvcc" else ()


def _said(command: Sequence[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _ENVIRONMENT}
    done = subprocess.run(
        command, env={**environment, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode(errors="replace")


def _path(name: str, base: Path) -> Path:
    return Path(os.path.normpath(base / name))

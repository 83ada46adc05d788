"""Programs on the PATH, with every place where a search for them looks: a new one may come before the present one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PARTS: Final = ("cc1plus", "as", "ld")
"""The programs that a C++ compiler's driver runs: an upgrade may replace them and leave the driver."""

_ANSWER_S: Final = 10.0
"""Time for a compiler to say where its parts are; one that does not has none."""


def on_path(command: str) -> Iterator[Path]:
    """Yield the places where a command is looked for, up to the one that is found, and the file behind its links."""
    if os.sep in command:
        places = [Path(command)]
    else:
        places = [Path(directory, command) for directory in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for place in places:
        yield place
        if os.access(place, os.X_OK) and place.is_file():
            if place.is_symlink():
                yield place.resolve()
            return


def compiler_files(command: Sequence[str]) -> Iterator[Path]:
    """Yield the files of a C or C++ compiler: its driver, as :func:`on_path` finds it, and what the driver runs."""
    # Not every worker compiles.
    import subprocess

    yield from on_path(command[0])
    for part in PARTS:
        try:
            said = subprocess.run(
                [*command, f"-print-prog-name={part}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_ANSWER_S,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return
        if os.sep in said and "\n" not in said:
            yield Path(said)
        elif said == part:
            yield from on_path(part)

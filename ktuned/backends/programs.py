"""Finds programs on the PATH, with every place where the search looks: a new program there would come first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

PARTS = ("cc1plus", "as", "ld")
"""The programs that a C++ compiler's driver runs; an upgrade may replace them without the driver."""

_ANSWER_S = 10.0
"""Deadline for a compiler to say where its parts are. If it does not answer, it is taken to have none."""


def on_path(command: str) -> Iterator[Path]:
    """Yield the places where a command is looked for, up to the program, and then the file behind its links."""
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
    """Yield the files of a C or C++ compiler: its driver, as by :func:`on_path`, and the programs that it runs."""
    # Imported here, because not every worker compiles.
    import subprocess

    yield from on_path(command[0])
    for part in PARTS:
        try:
            answer = subprocess.run(
                [*command, f"-print-prog-name={part}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_ANSWER_S,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return
        if os.sep in answer and "\n" not in answer:
            yield Path(answer)
        elif answer == part:
            yield from on_path(part)

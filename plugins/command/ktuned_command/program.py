"""Runs a program once for each launch, and reads the time that it prints."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned import backends
from ktuned_command.build import UNITS_US, Build

MAX_MESSAGE_CHARS = 2000
"""Limit for the end of a program's output that is shown: enough for its own error message."""

MAX_COMMAND_CHARS = 300
"""Limit for a command line in a message: the program and its first arguments, to type it again."""

MAX_STRANGE = 0.05
"""Share of control and undecodable characters above which output is not shown as text."""


class CommandFailed(Exception):
    """A command cannot be started or failed; the message ends with the end of its output."""


class Program(backends.Kernel):
    """A config's command. A launch runs it and, with a pattern, returns the time in µs that it printed."""

    def __init__(self, build: Build, artifact: Path, directory: Path, env: Mapping[str, str]) -> None:
        self._argv = build.insert_artifact(build.argv, str(artifact))
        self._env = {**os.environ, **build.make_environment(str(artifact)), **env}
        self._directory = directory
        self._pattern = re.compile(build.pattern) if build.pattern else None
        self._scale_us = UNITS_US[build.unit]

    def bind(self, tensors: Mapping[str, Any]) -> Callable[[], float | None]:
        """Return a call that runs the program; it takes no tensors."""
        return self._run_program

    def _run_program(self) -> float | None:
        output = run_command(self._argv, self._directory, self._env)
        if self._pattern is None:
            return None
        times = self._pattern.findall(output)
        if not times:
            raise CommandFailed(
                f"the output has no match of {self._pattern.pattern!r}: {_extract_last_words(output) or 'it is empty'}"
            )
        try:
            return float(times[-1]) * self._scale_us
        except ValueError:
            raise CommandFailed(f"{self._pattern.pattern!r} matched {times[-1]!r}, which is not a number") from None


def run_command(argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> str:
    """Run a command to its end and return its output: stdout, then stderr.

    Raises:
        Failed: it cannot be started, or ended with another exit status than 0.
    """
    try:
        done = subprocess.run(
            argv,
            check=False,
            cwd=directory,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(f"`{_render_command(argv)}` cannot be started: {error}") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise CommandFailed(f"`{_render_command(argv)}` was killed by {name}")
    if done.returncode:
        words = _extract_last_words(done.stderr) or _extract_last_words(done.stdout)
        ended = f"`{_render_command(argv)}` exited with {done.returncode}"
        raise CommandFailed(f"{ended}{': ' if words else ''}{words}")
    return done.stdout + done.stderr


def _render_command(argv: Sequence[str]) -> str:
    """Return a command line as one types it; a long one is cut."""
    line = shlex.join(argv)
    return line if len(line) <= MAX_COMMAND_CHARS else f"{line[: MAX_COMMAND_CHARS - 1]}…"


def _extract_last_words(output: str) -> str:
    """Return the end of a program's output; if it is not text, only say how long it is."""
    strange = sum(not (letter.isprintable() or letter.isspace()) or letter == "\ufffd" for letter in output)
    if strange > MAX_STRANGE * len(output):
        return f"({len(output):,} characters that are not text)"
    return output.strip()[-MAX_MESSAGE_CHARS:]

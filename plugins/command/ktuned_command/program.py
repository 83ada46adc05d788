"""Program that is run once for each launch, and the time that it prints."""

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
from ktuned_command.build import ARTIFACT, UNITS_US, Build

MAX_MESSAGE_CHARS = 2000
"""Length of a program's last words that are kept: its own message, without its story."""

MAX_COMMAND_CHARS = 300
"""Length of a command line in a message: the program and its first arguments, for someone who types it again."""

MAX_STRANGE = 0.05
"""Share of control and undecodable characters from which on output is no text."""

_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.]*\}")


class Failed(Exception):
    """A command cannot be started, or did not end well; the message is its last words."""


class Program(backends.Kernel):
    """A config's command. A launch runs it, and returns the time in µs that it printed, if a pattern asks for that."""

    def __init__(self, build: Build, artifact: Path, directory: Path, env: Mapping[str, str]) -> None:
        self._argv = build.in_artifact(build.argv, str(artifact))
        self._env = {**os.environ, **build.environment(str(artifact)), **env}
        self._directory = directory
        self._pattern = re.compile(build.pattern) if build.pattern else None
        self._scale_us = UNITS_US[build.unit]

    def bind(self, tensors: Mapping[str, Any]) -> Callable[[], float | None]:
        """Return a call that runs the program; it takes no tensors."""
        return self._run

    def _run(self) -> float | None:
        said = run(self._argv, self._directory, self._env)
        if self._pattern is None:
            return None
        times = self._pattern.findall(said)
        if not times:
            raise Failed(f"the output has no match of {self._pattern.pattern!r}: {_last_words(said) or 'it is empty'}")
        try:
            return float(times[-1]) * self._scale_us
        except ValueError:
            raise Failed(f"{self._pattern.pattern!r} matched {times[-1]!r}, which is no number") from None


def run(argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> str:
    """Run a command to its end and return what it printed, on stdout and then on stderr.

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
        raise Failed(f"`{_shown(argv)}` cannot be started: {error}{_placeholder_hint(argv)}") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise Failed(f"`{_shown(argv)}` was killed by {name}{_placeholder_hint(argv)}")
    if done.returncode:
        words = _last_words(done.stderr) or _last_words(done.stdout)
        ended = f"`{_shown(argv)}` exited with {done.returncode}"
        raise Failed(f"{ended}{': ' if words else ''}{words}{_placeholder_hint(argv)}")
    return done.stdout + done.stderr


def _shown(argv: Sequence[str]) -> str:
    """Return a command line as it would be typed; a long one is cut."""
    line = shlex.join(argv)
    return line if len(line) <= MAX_COMMAND_CHARS else f"{line[: MAX_COMMAND_CHARS - 1]}…"


def _placeholder_hint(argv: Sequence[str]) -> str:
    """Return what is to be said if a failed command still has words in braces: nothing was put in there."""
    left = [found for word in argv for found in _PLACEHOLDER.findall(word)]
    if not left:
        return ""
    return (
        f"; {left[0]} is no placeholder, only {ARTIFACT} is: write a knob's value into the word, f'--tile={{c.TILE}}'"
    )


def _last_words(said: str) -> str:
    """Return the end of a program's output as text; output that is not text is counted, and not shown."""
    strange = sum(not (letter.isprintable() or letter.isspace()) or letter == "\ufffd" for letter in said)
    if strange > MAX_STRANGE * len(said):
        return f"({len(said):,} characters that are no text)"
    return said.strip()[-MAX_MESSAGE_CHARS:]

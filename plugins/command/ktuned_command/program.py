"""Runs a program once for each launch, and reads the time that it prints."""

from __future__ import annotations

import os
import re
import selectors
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

C_LOCALE: Mapping[str, str] = {"LC_ALL": "C.UTF-8"}
"""In the C locale a number that a program prints has a decimal point, wherever the user lives."""

MAX_OUTPUT_BYTES = 4 << 20
"""How much of the end of stdout and of stderr is kept: the time is the last match, and a flood must not fill memory."""

MAX_STRANGE = 0.05
"""Share of control and undecodable characters above which output is not shown as text."""


_ENDS_WITHIN_NUMBER = re.compile(r"[0-9][.,']?$")
_GOES_ON_AS_NUMBER = re.compile(r"[.,']?[0-9]")


class CommandFailed(Exception):
    """A command cannot be started or failed; the message ends with the end of its output."""


class Program(backends.Kernel):
    """A config's command. A launch runs it and, with a pattern, returns the time in µs that it printed."""

    def __init__(self, build: Build, artifact: Path, directory: Path, env: Mapping[str, str]) -> None:
        self._argv = build.insert_artifact(build.argv, str(artifact))
        self._env = {**os.environ, **C_LOCALE, **build.make_environment(str(artifact)), **env}
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
        *_, last = [None, *self._pattern.finditer(output)]
        if last is None:
            raise CommandFailed(
                f"the output has no match of {self._pattern.pattern!r}: {_extract_last_words(output) or 'it is empty'}"
            )
        if _cuts_number(last):
            raise CommandFailed(
                f"{self._pattern.pattern!r} matched {last[1]!r}, a part of the number in "
                f"{output[max(0, last.start(1) - 20) : last.end(1) + 20].strip()!r}; add the text beside the number to "
                "the pattern, such as its unit"
            )
        try:
            return float(last[1]) * self._scale_us
        except ValueError:
            raise CommandFailed(f"{self._pattern.pattern!r} matched {last[1]!r}, which is not a number") from None


def _cuts_number(found: re.Match[str]) -> bool:
    """Return whether a match begins or ends within a number, as ``took ([0-9.]+)`` does in ``took 12,7 ms``.

    Text that the pattern itself matches beside its group, such as the commas of a table, belongs to no number.
    """
    before, after = found.string[: found.start()], found.string[found.end() :]
    is_first, is_last = found.start() == found.start(1), found.end() == found.end(1)
    return (is_first and _ENDS_WITHIN_NUMBER.search(before[-2:]) is not None) or (
        is_last and _GOES_ON_AS_NUMBER.match(after[:2]) is not None
    )


def run_command(argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> str:
    """Run a command to its end and return the end of its output: stdout, then stderr.

    Raises:
        CommandFailed: it cannot be started, or ended with another exit status than 0.
    """
    try:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(f"`{_render_command(argv)}` cannot be started: {error}") from None
    with process:
        out, err = _read_ends(process)
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise CommandFailed(f"`{_render_command(argv)}` was killed by {name}")
    if process.returncode:
        words = _extract_last_words(err) or _extract_last_words(out)
        ended = f"`{_render_command(argv)}` exited with {process.returncode}"
        raise CommandFailed(f"{ended}{': ' if words else ''}{words}")
    return out + err


def _read_ends(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Read stdout and stderr until both are closed; return the last :data:`MAX_OUTPUT_BYTES` of each as text."""
    assert process.stdout is not None
    assert process.stderr is not None
    ends = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in ends:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if data := os.read(key.fd, 1 << 16):
                    ends[key.fd] += data
                    del ends[key.fd][:-MAX_OUTPUT_BYTES]
                else:
                    selector.unregister(key.fd)
    out, err = (end.decode(errors="replace").replace("\r\n", "\n") for end in ends.values())
    return out, err


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

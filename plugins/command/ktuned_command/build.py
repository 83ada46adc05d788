"""``Build``, a kernel file's recipe for one config: its command line, what prepares it, and where its time is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ktuned import backends

ARTIFACT = "{artifact}"
"""Placeholder for the directory of the config's artifact, which ``prepare`` fills."""

_PLACEHOLDER = re.compile(r"(?:[\w-]+=|-\w)?(\{[A-Za-z_]\w*(?:\.\w+)*\})")
"""A whole word that asks for a value: ``{TILE}``, ``--tile={c.TILE}``. Braces in a script are the program's own."""

UNITS_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Units of a printed time, in microseconds."""


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to prepare and run one config of a program.

    Attributes:
        argv: the program and its arguments; numbers become text. It runs in the kernel file's directory and must exit
            with status 0.
        env: environment variables for it, besides those of the project.
        prepare: commands that run before it, such as a compiler's: once for each config, in compile workers.
        pattern: a regular expression with one group, whose last match in the output is the time. Without a pattern the
            time from start to end counts.
        unit: the unit of the printed time: ``ns``, ``us``, ``ms`` or ``s``.

    ``{artifact}`` in ``argv``, ``env`` and ``prepare`` is the config's own directory, for the files of ``prepare``.
    No other word is replaced; one that asks for it, as ``{TILE}`` does, is refused.

    Raises:
        ValueError: ``argv`` or a command is empty or has another placeholder, or ``pattern`` or ``unit`` is invalid.
    """

    backend: ClassVar[str] = "command"

    argv: tuple[str | int | float, ...]
    env: Mapping[str, str | int | float] = field(default_factory=dict)
    prepare: tuple[tuple[str | int | float, ...], ...] = ()
    pattern: str = ""
    unit: str = "ms"

    def __post_init__(self) -> None:
        commands: tuple[object, ...] = (self.argv, *self.prepare)
        for command in commands:
            if not isinstance(command, tuple) or not command:
                raise ValueError(f"a command is a tuple of words, ('./program', '--size', 64), not {command!r}")
            for word in command:
                _refuse_unknown_placeholder(str(word))
        if self.unit not in UNITS_US:
            raise ValueError(f"there is no unit {self.unit!r}; there are {', '.join(UNITS_US)}")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern={self.pattern!r} is not a regular expression: {error}") from None
        if self.pattern and groups != 1:
            raise ValueError(f"pattern={self.pattern!r} has {groups} groups; give it one, around the time")

    def insert_artifact(self, words: tuple[Any, ...], artifact: str) -> list[str]:
        """Return a command's words as text, with the artifact's directory put in."""
        return [str(word).replace(ARTIFACT, artifact) for word in words]

    def make_environment(self, artifact: str) -> dict[str, str]:
        """Return the variables that are set, with the artifact's directory put in."""
        return {name: str(value).replace(ARTIFACT, artifact) for name, value in self.env.items()}


def _refuse_unknown_placeholder(word: str) -> None:
    found = _PLACEHOLDER.fullmatch(word)
    if found is not None and found[1] != ARTIFACT:
        knob = found[1].strip("{}").rpartition(".")[2]
        value = word.replace(found[1], f"{{c.{knob}}}")
        raise ValueError(f"{found[1]} is not a placeholder, only {ARTIFACT} is: write a knob's value there, f'{value}'")

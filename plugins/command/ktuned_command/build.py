"""``Build`` of this backend: the command line of one config, what comes before it, and where its figure is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ktuned import backends

ARTIFACT = "{artifact}"
"""Stands for the directory of the config's artifact, which ``prepare`` fills."""

UNITS_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
"""Units of a printed time, in microseconds."""


@dataclass(frozen=True)
class Build(backends.Build):
    """Recipe to prepare and run one config of a program.

    Attributes:
        argv: the program and its arguments; numbers become text. It runs in the kernel file's directory, and exits
            with 0 if all is well.
        env: variables that are set for it, besides those of the project.
        prepare: commands that come first, such as a compiler's; they run once for each config, in compile workers.
        pattern: a regular expression with one group: the last match in the output is the time. Without one, the time
            from start to end counts.
        unit: the unit of the printed time: ``ns``, ``us``, ``ms`` or ``s``.

    ``{artifact}`` in any of them is a directory of the config's own, where ``prepare`` puts its files.

    Raises:
        ValueError: ``argv`` or a command is empty, or ``pattern`` or ``unit`` make no sense.
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
        if self.unit not in UNITS_US:
            raise ValueError(f"there is no unit {self.unit!r}; there are {', '.join(UNITS_US)}")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern={self.pattern!r} is no regular expression: {error}") from None
        if self.pattern and groups != 1:
            raise ValueError(f"pattern={self.pattern!r} has {groups} groups; one is to hold the time")

    def in_artifact(self, words: tuple[Any, ...], artifact: str) -> list[str]:
        """Return a command's words as text, with the artifact's directory put in."""
        return [str(word).replace(ARTIFACT, artifact) for word in words]

    def environment(self, artifact: str) -> dict[str, str]:
        """Return the variables that are set, with the artifact's directory put in."""
        return {name: str(value).replace(ARTIFACT, artifact) for name, value in self.env.items()}

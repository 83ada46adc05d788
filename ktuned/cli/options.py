"""Options and arguments that several commands share, and the parsing of their values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable

import click

from ktuned.model import NUMERICS, Scalar
from ktuned.protocol import MAX_PRIORITY, Priority

_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?")
_NEXT_PAIR = re.compile(r",(?=[A-Za-z_]\w*=)")
"""The comma between two pairs; a comma within a value, as in ``-p layout=a,b``, does not match."""
_INT64 = range(-(2**63), 2**63)

_LEVELS = ", ".join(level.name.lower().replace("_", "-") for level in Priority)


class WholeNumber(click.IntRange):
    """A whole number in a range; messages call it "whole number", and help shows ``N``."""

    name = "whole number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the placeholder for a value in help."""
        return "N"


class Number(click.FloatRange):
    """A number in a range; messages call it "number"."""

    name = "number"


class AdvancedOption(click.Option):
    """An option that has a separate section in help, because most users never need it."""


class SectionedCommand(click.Command):
    """A command whose help lists advanced options in a separate section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the ordinary options, and then the advanced options."""
        for title, is_advanced in (("Options", False), ("Advanced options", True)):
            rows = [
                row
                for param in self.get_params(ctx)
                if isinstance(param, click.Option)
                and isinstance(param, AdvancedOption) is is_advanced
                and (row := param.get_help_record(ctx)) is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def parse_scalar(word: str) -> Scalar:
    """Read a problem's value: an int, a finite float, ``true`` or ``false``, else the string itself.

    Raises:
        ValueError: a number that the protocol cannot carry.
    """
    if word in ("true", "false"):
        return word == "true"
    if _INTEGER.fullmatch(word):
        if int(word) not in _INT64:
            raise ValueError(f"{word} does not fit 64 bits")
        return int(word)
    if _FLOAT.fullmatch(word):
        if not math.isfinite(float(word)):
            raise ValueError(f"{word} is not a finite number")
        return float(word)
    return word


def is_path(target: str) -> bool:
    """Return whether a word is a path (it exists, contains a slash or ends in ``.py``) and not a kernel's name."""
    return "/" in target or target.endswith(".py") or os.path.exists(target)


def resolve_path(target: str, otherwise: str = "a kernel's name has no slash and no .py") -> str:
    """Return the absolute form of a path on the command line, because the daemon has another working directory.

    ``otherwise`` is the part of the error message for users who meant a kernel.

    Raises:
        click.UsageError: it does not exist.
    """
    if not os.path.exists(target):
        raise click.UsageError(f"there is no file or directory {target} ({otherwise})")
    return os.path.realpath(target)


def read_share(context: click.Context, parameter: click.Parameter, word: str | None) -> float | None:
    """Return a share as a number; ``3%`` and ``0.03`` mean the same.

    Raises:
        click.BadParameter: the word is not a share.
    """
    if word is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%?", word):
        raise click.BadParameter(f"{word!r} is not a share; write 3% or 0.03")
    return float(word.removesuffix("%")) / 100 if word.endswith("%") else float(word)


def _read_priority(context: click.Context, parameter: click.Parameter, word: str | None) -> int | None:
    if word is None:
        return None
    name = word.upper().replace("-", "_")
    if name in Priority.__members__:
        return int(Priority[name])
    if word.isdecimal() and int(word) <= MAX_PRIORITY:
        return int(word)
    raise click.BadParameter(f"{word!r} is not a priority; use {_LEVELS}, or a number from 0 to {MAX_PRIORITY}")


priority_option = click.option(
    "--priority",
    cls=AdvancedOption,
    metavar="LEVEL",
    callback=_read_priority,
    help=f"The jobs' priority, even while you wait: {_LEVELS}, or 0 to {MAX_PRIORITY}.",
)


def _read_pairs(words: Iterable[str], example: str) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for word in (pair for pairs in words for pair in _NEXT_PAIR.split(pairs)):
        key, separator, value = word.partition("=")
        if not (separator and key):
            raise click.BadParameter(f"{word!r} is not NAME=VALUE (for example: {example})")
        if key in values:
            raise click.BadParameter(f"{key} is given twice")
        try:
            values[key] = parse_scalar(value)
        except ValueError as error:
            raise click.BadParameter(f"{key}: {error}") from error
    return values


def _read_problem(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, Scalar]:
    return _read_pairs(words, "-p M=1024")


def read_configs(
    context: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> list[dict[str, Scalar]] | None:
    """Return the configs of an option that may be repeated; None if it is not given.

    Raises:
        click.BadParameter: a word is not a config.
    """
    return [_read_pairs([word], "--config BM=64,BN=32") for word in words] or None


json_option = click.option("--json", "as_json", is_flag=True, help="Print only data on stdout, as JSON.")


problem_option = click.option(
    "-p",
    "--problem",
    multiple=True,
    metavar="NAME=VALUE,…",
    callback=_read_problem,
    help="The problem, e.g. -p M=1024,dtype=float16 or -p M=1024 -p dtype=float16.",
)


config_option = click.option(
    "--config",
    "configs",
    cls=AdvancedOption,
    multiple=True,
    metavar="KNOB=VALUE,…",
    callback=read_configs,
    help="Try only this config, and without a winner also the one that lookups return; repeatable.",
)


device_option = click.option("--device", metavar="DEVICE", help="A device (cpu:0, cuda:1) or a device model.")


objective_option = click.option(
    "--objective",
    cls=AdvancedOption,
    metavar="OBJECTIVE",
    help="latency, max:METRIC or min:METRIC; exact:latency needs the anchor's output bits. Default: the kernel's.",
)


numerics_option = click.option(
    "--numerics",
    cls=AdvancedOption,
    type=click.Choice(NUMERICS),
    help="exact: winners must match the anchor's output bit for bit. tolerance: within the tolerance.",
)


anchor_option = click.option(
    "--anchor",
    cls=AdvancedOption,
    metavar="KNOB=VALUE,…",
    callback=lambda context, parameter, word: None if word is None else _read_pairs([word], "--anchor BM=64"),
    help="From now on winners must have the output bits of this config. Knobs that you leave out are the default's.",
)

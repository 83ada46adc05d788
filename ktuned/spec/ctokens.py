"""C-family sources as what they mean: tokens without comments and white space, and the quoted includes they name.

Follows the phases of translation of the C++ standard ([lex.phases]): continuations are folded (but not in raw
strings), a comment is white space, a directive is a line. White space inside a stringised macro argument is
taken for formatting, as everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = frozenset(
    {".c", ".cc", ".cpp", ".cxx", ".c++", ".cu", ".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh"}
    | {".inl", ".inc", ".ipp", ".tpp", ".cl", ".metal", ".hip", ".m", ".mm"}
)
"""Files that are read as C-family sources."""

_TOKEN = re.compile(
    r"""
      (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|u|U|L)?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)")
    | (?P<splice>\\\r?\n)
    | (?P<newline>\n)
    | (?P<space>[^\S\n]+)
    | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
    | (?P<text>(?:u8|u|U|L)?(?:"(?:\\(?:\r?\n|.)|[^"\\\n])*"|'(?:\\(?:\r?\n|.)|[^'\\\n])*'))
    | (?P<name>[^\W\d]\w*)
    | (?P<sign><<=|>>=|<=>|\.\.\.|->\*|::|->|\.\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SPLICE = re.compile(r"\\\r?\n")


@dataclass(frozen=True, slots=True)
class Normalised:
    """A source's meaning as text, one directive or run of tokens a line, and its quoted includes in order."""

    text: str
    includes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Followed:
    """Sources with all that they include: the bytes of each file found, and the places where one was missed.

    ``contents`` is in the order of discovery. ``unresolved`` maps (including file, name) to nothing found;
    ``absent`` are paths that were looked at in vain and would be used if they appeared.
    """

    contents: dict[Path, bytes]
    unresolved: tuple[tuple[Path, str], ...]
    absent: frozenset[Path]


def normalise(source: str) -> Normalised:
    """Return what a source means, whatever its comments and formatting."""
    lines: list[list[str]] = [[]]
    includes: list[str] = []
    in_directive, at_line_start = False, True
    previous_end = -1
    for match in _TOKEN.finditer(_fold(source)):
        kind, token = match.lastgroup, match.group()
        if kind == "newline":
            if in_directive:
                lines.append([])
            in_directive, at_line_start = False, True
            continue
        if match["comment"] is not None or kind == "space":
            continue
        if at_line_start and token == "#":
            lines.append([])
            in_directive = True
        at_line_start = False
        line = lines[-1]
        # Only `#define F(x)`, without a space, has parameters.
        is_adjacent = match.start() == previous_end
        if token == "(" and in_directive and is_adjacent and len(line) == 3 and line[1] == "define":
            line[-1] += token
        else:
            line.append(token)
        if in_directive and line[1:2] == ["include"] and len(line) == 3 and token.startswith('"'):
            includes.append(token[1:-1])
        previous_end = match.end()
    return Normalised("\n".join(" ".join(line) for line in lines if line), tuple(includes))


def follow(sources: Iterable[Path], include_dirs: Sequence[Path] = ()) -> Followed:
    """Read sources and, transitively, the quoted includes that can be found.

    A name is looked up beside the including file, then in the sources' directories, then in ``include_dirs``.

    Raises:
        OSError: one of ``sources`` themselves cannot be read.
    """
    queue = [source.resolve() for source in sources]
    search = [*dict.fromkeys(source.parent for source in queue), *include_dirs]
    contents: dict[Path, bytes] = {source: source.read_bytes() for source in queue}
    unresolved: list[tuple[Path, str]] = []
    absent: set[Path] = set()
    while queue:
        file = queue.pop(0)
        if file.suffix.lower() not in SUFFIXES:
            continue
        for name in normalise(decode(contents[file])).includes:
            for directory in dict.fromkeys([file.parent, *search]):
                candidate = (directory / name).resolve()
                if candidate in contents:
                    break
                try:
                    contents[candidate] = candidate.read_bytes()
                except OSError:
                    absent.add(candidate)
                    continue
                queue.append(candidate)
                break
            else:
                unresolved.append((file, name))
    return Followed(contents, tuple(unresolved), frozenset(absent))


def decode(content: bytes) -> str:
    """Return a source's text; bytes that are not UTF-8 are kept apart, not refused."""
    return content.decode("utf-8", "surrogateescape")


def _fold(source: str) -> str:
    """Fold continuations, except in raw strings."""
    if "\\\n" not in source and "\\\r\n" not in source:
        return source
    return _TOKEN.sub(lambda found: found.group() if found["raw"] else _SPLICE.sub("", found.group()), source)

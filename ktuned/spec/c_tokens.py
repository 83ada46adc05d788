"""C-family sources as tokens without comments and white space, and the includes that they name.

Follows the phases of translation of the C++ standard ([lex.phases]): continuations are folded (but not in raw
strings), a comment is white space, a directive is a line. White space inside a stringised macro argument is
taken for formatting, as everywhere else.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path

from ktuned.ipc import lexical
from ktuned.model import Record, record

SUFFIXES = frozenset(
    {".c", ".cc", ".cpp", ".cxx", ".c++", ".cu", ".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh"}
    | {".inl", ".inc", ".ipp", ".tpp", ".cl", ".metal", ".hip", ".m", ".mm"}
)
"""Files that are read as C-family sources."""

MAX_ROUTES = 8
"""Paths over which links may lead to one file: directories that link to each other make endless ones."""

NORMALISED_KEPT = 64
"""A header that many sources include is read once for all of them."""

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
_ASSEMBLED = re.compile(r'''\.incbin\b(?:\s*"([^"\\\n]+)")?|\.include\s+"([^"\\\n]+)"''')
"""Directives by which an assembler reads a file, with its name, in the text that it gets."""

_ESCAPED = re.compile(r"""\\(["'\\])""")
_INCLUDING = (["include"], ["include_next"], ["import"], ["embed"])


@record
class Normalised(Record):
    """A source's meaning as text, one directive or run of tokens a line, and its includes in order.

    ``includes`` are those in quotes, ``angled`` those in angle brackets, both also of ``__has_include`` and ``#embed``;
    with the first are files that an assembler includes (``.incbin``), which no compiler's dependency output has.
    ``is_opaque`` if macros make the name of such a file.
    """

    text: str
    includes: tuple[str, ...]
    angled: tuple[str, ...] = ()
    is_opaque: bool = False


@record
class Followed(Record):
    """Sources with all that they include: the bytes of each file found, and the places where one was missed.

    ``contents`` is in the order of discovery. ``unresolved`` maps (including file, name) to nothing found;
    ``absent`` are paths that do not exist and would be used if they appeared; ``outside`` is true if a
    name in angle brackets was not found, which is the toolchain's then. ``opaque`` are those that have an assembler
    read files whose names macros make.
    """

    contents: dict[Path, bytes]
    unresolved: tuple[tuple[Path, str], ...]
    absent: frozenset[Path]
    outside: bool = False
    opaque: tuple[Path, ...] = ()


@lru_cache(maxsize=NORMALISED_KEPT)
def normalise(source: str) -> Normalised:
    """Return what a source means, whatever its comments and formatting."""
    lines: list[list[str]] = [[]]
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
        previous_end = match.end()
    quoted = [name for line in lines for name in _quoted(line)]
    assembled = _assembled(lines) if "incbin" in source or ".include" in source else []
    quoted += filter(None, assembled)
    angled = [name for line in lines for name in _angled(line)]
    text = "\n".join(" ".join(line) for line in lines if line)
    return Normalised(text, tuple(quoted), tuple(angled), "" in assembled)


def _assembled(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the files that an assembler is to read, with an empty name for one that is not in a literal."""
    names = []
    for line in lines:
        for is_literal, tokens in groupby(line, lambda token: token.endswith('"')):
            if is_literal:
                # Literals that follow each other are one.
                found = _ASSEMBLED.findall("".join(map(_literal, tokens)))
                names += [binary or text for binary, text in found]
            elif (".", "incbin") in pairwise(tokens):
                names.append("")
    return names


def _literal(token: str) -> str:
    """Return the text of a string literal, as far as quotes matter in it."""
    prefix, _, text = token[:-1].partition('"')
    if prefix.endswith("R"):
        return text.partition("(")[2].rpartition(")")[0]
    return _ESCAPED.sub(r"\1", text)


def _quoted(line: Sequence[str]) -> list[str]:
    """Return the files that a directive names in quotes: to include one, or to ask whether it is there."""
    if line[:1] != ["#"]:
        return []
    if line[1:2] in _INCLUDING:
        return [line[2][1:-1]] if len(line) > 2 and line[2].startswith('"') else []
    asked = zip(line, line[1:], line[2:], strict=False)
    return [name[1:-1] for word, sign, name in asked if (word, sign) == ("__has_include", "(") and name[0] == '"']


def _angled(line: Sequence[str]) -> list[str]:
    """Return the files that a directive names in angle brackets: to include one, or to ask whether it is there."""
    if line[:1] != ["#"]:
        return []
    if line[1:2] in _INCLUDING:
        return ["".join(line[3:-1])] if line[2:3] == ["<"] and line[-1] == ">" else []
    asked = [start + 3 for start in range(len(line)) if line[start : start + 3] == ["__has_include", "(", "<"]]
    return ["".join(line[start : line.index(">", start)]) for start in asked if ">" in line[start:]]


def follow(sources: Iterable[Path], include_dirs: Sequence[Path] = ()) -> Followed:
    """Read sources and, transitively, the includes that can be found.

    A quoted name is looked up beside the including file, then in the sources' directories, then in ``include_dirs``;
    a name in angle brackets in ``include_dirs`` alone, and where it is not found it is the toolchain's. Links are kept:
    as for a compiler, what a linked file includes lies beside the link.

    Raises:
        OSError: one of ``sources`` themselves cannot be read.
    """
    queue = [lexical(source) for source in sources]
    search = [*dict.fromkeys(source.parent for source in queue), *include_dirs]
    contents: dict[Path, bytes] = {source: source.read_bytes() for source in queue}
    routes = Counter(map(os.path.realpath, contents))
    unresolved: list[tuple[Path, str]] = []
    absent: set[Path] = set()
    outside = False
    opaque: list[Path] = []
    while queue:
        file = queue.pop(0)
        if file.suffix.lower() not in SUFFIXES:
            continue
        found = normalise(decode(contents[file]))
        opaque += [file] if found.is_opaque else []
        wanted = [(name, list(dict.fromkeys([file.parent, *search])), True) for name in found.includes]
        wanted += [(name, list(include_dirs), False) for name in found.angled]
        for name, directories, is_own in wanted:
            for directory in directories:
                candidate = lexical(directory / name)
                real = os.path.realpath(candidate)
                if candidate in contents or routes[real] >= MAX_ROUTES:
                    break
                try:
                    if candidate.exists() and not candidate.is_file():
                        # A pipe would be waited at.
                        raise OSError(f"{candidate} is no regular file")
                    contents[candidate] = candidate.read_bytes()
                except OSError:
                    absent.add(candidate)
                    continue
                routes[real] += 1
                queue.append(candidate)
                break
            else:
                if is_own:
                    unresolved.append((file, name))
                outside = outside or not is_own
    return Followed(contents, tuple(unresolved), frozenset(absent), outside, tuple(opaque))


def merged(searches: Sequence[Followed]) -> Followed:
    """Return the union of several searches; a name is missing only if each of them missed it."""
    contents = {path: content for found in searches for path, content in found.contents.items()}
    missed = set.intersection(*(set(found.unresolved) for found in searches))
    return Followed(
        contents,
        tuple(dict.fromkeys(entry for found in searches for entry in found.unresolved if entry in missed)),
        frozenset().union(*(found.absent for found in searches)),
        any(found.outside for found in searches),
        tuple(dict.fromkeys(path for found in searches for path in found.opaque)),
    )


def decode(content: bytes) -> str:
    """Return a source's text; bytes that are not UTF-8 are kept apart, not refused."""
    return content.decode("utf-8", "surrogateescape")


def _fold(source: str) -> str:
    """Fold continuations, except in raw strings."""
    if "\\\n" not in source and "\\\r\n" not in source:
        return source
    return _TOKEN.sub(lambda found: found.group() if found["raw"] else _SPLICE.sub("", found.group()), source)

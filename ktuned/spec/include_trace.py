"""Include searches as compilers make them: where they look, what belongs to the toolchain, and where they missed.

A dependency file lists what was read; the directives in these files, and the order of the search, show in which
directories the compiler had looked before. A file that appears there later is included in the place of the other.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from ktuned.ipc import lexical
from ktuned.model import Record, record
from ktuned.spec.c_tokens import Normalised, decode, normalise

MAX_MISSED = 1_000
"""Places of one compile that are followed: each is looked at in every survey. What lies beyond them is not noticed."""

MAX_PARSED_BYTES = 8 << 20
"""A larger file is a table of numbers, not one that includes others."""

_QUOTED = "-iquote"
_ANGLED = ("-I", "--include-path=", "-isystem", "-idirafter")
_FORCED = ("-include", "-imacros", "--pre-include")
_PRECOMPILED = (".gch", ".pch")
_WRAPPED = ("-Xcompiler=", "--compiler-options=", "-Wp,", "-Wl,")


@record
class IncludeSearch(Record):
    """The directories of one compilation, in their order, and the files that its flags name.

    ``base`` is the directory that the compiler runs in; ``toolchain`` are the directories that its version stands for,
    ``libraries`` those of ``angled`` whose headers are libraries'.
    """

    base: Path
    quoted: tuple[Path, ...] = ()
    angled: tuple[Path, ...] = ()
    forced: tuple[str, ...] = ()
    named: frozenset[Path] = frozenset()
    toolchain: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()

    @classmethod
    def of(cls, flags: Sequence[str], base: Path, toolchain: Iterable[Path] = ()) -> IncludeSearch:
        """Return the search that flags ask for."""
        words = list(_words(flags, base))
        builtin = tuple(dict.fromkeys(map(lexical, toolchain)))

        def directories(*options: str) -> tuple[Path, ...]:
            found = (lexical(base / name) for option in options for name in _values(words, option))
            # A directory of the toolchain keeps its place, whatever flags name it.
            return tuple(path for path in dict.fromkeys(found) if path not in builtin)

        return cls(
            base=base,
            quoted=directories(_QUOTED),
            angled=directories(*_ANGLED),
            forced=tuple(name for option in _FORCED for name in _values(words, option)),
            named=frozenset(_named(flags, base)),
            toolchain=builtin,
            libraries=directories("-isystem", "-idirafter"),
        )

    def is_users(self, path: Path) -> bool:
        """Return whether a file is the user's: the innermost of the search's directories that hold it is."""
        users = max(
            (len(place.parts) for place in (*self.quoted, *self.angled) if path.is_relative_to(place)), default=0
        )
        theirs = max((len(place.parts) for place in self.toolchain if path.is_relative_to(place)), default=0)
        return users >= theirs

    def is_library(self, path: Path) -> bool:
        """Return whether a file lies in a directory of libraries' headers."""
        return any(path.is_relative_to(place) for place in self.libraries)

    def missed(self, sources: Iterable[Path], read: Collection[Path], missing: Iterable[str] = ()) -> set[Path]:
        """Return the paths where a file was looked for and not found, before it was found elsewhere or nowhere.

        ``read`` are all files of the compilation, those of the toolchain included if they are known; ``missing`` are
        names that could not be found.
        """
        sources = set(sources)
        users = sources | {path for path in read if self.is_users(path)}
        everything = users | set(read)
        homes = sorted({path.parent for path in users})
        explained: set[Path] = set()
        absent: set[Path] = set()
        for places, name in (*self._wanted(users), *((self._everywhere(homes), name) for name in missing)):
            before: list[Path] = []
            for candidate in (lexical(place / name) for place in places):
                if candidate in everything:
                    explained.add(candidate)
                    absent.update(before)
                    break
                if candidate.exists():
                    break
                before.append(candidate)
            else:
                # It is the toolchain's; or nothing is there, and the directive asks for that, or is left out.
                absent.update(before)
        # An include by a macro, or by one file's macro in another: any directory may have been looked in.
        for path in sorted(users - sources - explained):
            absent |= {found for found in self._before(path, homes) if not found.exists()}
        return set(sorted(absent - everything)[:MAX_MISSED])

    def precompiled(self, sources: Iterable[Path]) -> set[Path]:
        """Return where a precompiled header may lie that is read in the place of one which flags or sources name.

        No dependency output has it, nor what it was made of. ``sources`` are those that are compiled behind no header
        of the compiler's or the backend's own: only the first header is looked for in this form.
        """
        found: set[Path] = set()
        for places, name in self._wanted(set(sources)):
            for candidate in (lexical(place / name) for place in places):
                found |= {candidate.with_name(f"{candidate.name}{suffix}") for suffix in _PRECOMPILED}
                if candidate.exists():
                    break
        return found

    def _wanted(self, users: Collection[Path]) -> Iterator[tuple[Sequence[Path], str]]:
        """Yield where each include of the user's files is looked for, and its name."""
        for name in self.forced:
            yield (self.base, *self.quoted, *self.angled), name
        for path in sorted(users):
            parsed = _parsed(path)
            for name in parsed.includes:
                yield (path.parent, *self.quoted, *self.angled), name
            for name in parsed.angled:
                yield self.angled, name

    def _everywhere(self, homes: Sequence[Path]) -> Sequence[Path]:
        return tuple(dict.fromkeys((*homes, self.base, *self.quoted, *self.angled)))

    def _before(self, path: Path, homes: Sequence[Path]) -> Iterator[Path]:
        """Yield where a file may have been looked for before it was found in one of the search's directories."""
        order = (*self.quoted, *self.angled)
        for position, place in enumerate(order):
            if path.is_relative_to(place):
                name = path.relative_to(place)
                yield from (lexical(earlier / name) for earlier in (*homes, *order[:position]))


def _words(flags: Sequence[str], base: Path) -> Iterator[str]:
    """Yield flags, those that are passed on to another program and those of response files included."""
    for flag in flags:
        wrapped = next((prefix for prefix in _WRAPPED if flag.startswith(prefix)), "")
        if wrapped:
            yield from flag.removeprefix(wrapped).split(",")
        elif flag.startswith("@") and (base / flag[1:]).is_file():
            yield from shlex.split((base / flag[1:]).read_text(errors="replace"))
        elif flag not in ("-Xcompiler", "--compiler-options", "-Xlinker"):
            yield flag


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    """Yield an option's values in order, be they joined to it or not."""
    for word, following in pairwise((*words, "")):
        if word == option:
            yield following
        elif word.startswith(option) and not (option == "-include" and word.startswith("-include-")):
            yield word.removeprefix(option).removeprefix("=")


def _named(flags: Sequence[str], base: Path) -> Iterator[Path]:
    """Yield the files that flags name: a profile, a list of symbols, a response file, an object."""
    for flag in flags:
        for word in {flag, flag.removeprefix("@"), flag.rpartition("=")[2], flag.rpartition(",")[2]}:
            if word and not word.startswith("-") and (base / word).is_file():
                yield lexical(base / word)


def _parsed(path: Path) -> Normalised:
    try:
        if path.stat().st_size > MAX_PARSED_BYTES:
            return Normalised("", ())
        return normalise(decode(path.read_bytes()))
    except OSError:
        return Normalised("", ())

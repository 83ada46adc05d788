"""Winners from files of ``ktuned export``, for drop-ins: the config of each key is fixed, and no daemon is needed.

A file has the winners of one kernel on one device model. An application's function finds its files by its name
(``fla.ops.gla.chunk_fwd``), and its winner by the device model and the key's values. The name is enough, because it is
the same on every machine; the function's identity is not, because it covers the interpreter and its environment.

A function may have several files for one device model: one for each state of its source that was tuned, and one for
each shape of its keys. These are preferred, in this order:

1. a winner by the objective of the run: with exact numerics only ``exact:latency`` counts, because any other config may
   have other bits; with a tolerance a winner by another objective is better than none;
2. a winner that was made from the source that runs now; any other is launched, too, and reported;
3. the fastest.

All files are read once, before the first call. A file that is replaced later changes nothing in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, Self

from ktuned.model import LATENCY, CallKey, Problem, canonical, is_exact
from ktuned_client.winners import WinnersError, list_files, read_file

CONSTANTS_KEY = "@constants"
"""The problem key with the digest of a call's configs, with all constants that each is compiled with."""

PROGRAMS_KEY = "@programs"
"""The problem key with the digest of a call: its programs, their compile options and their arguments."""

_DIGEST_KEYS = (CONSTANTS_KEY, PROGRAMS_KEY)
"""If a winner's problem differs in these alone, it is still the key's winner, but was made from other source."""


_Entry = tuple[str, str, str, Mapping[str, Any]]
"""A winner in a file: the file's path, the objective, the digest of the function's source, and the winner's fields."""


class FileWinner(NamedTuple):
    """A key's winner; ``is_of_this_source`` if it was made from the source that runs now."""

    config: str
    latency_us: float
    path: str
    is_of_this_source: bool


class WinnersFile:
    """The winners of applications' functions in a file, or in all files of a directory.

    Attributes:
        path: the path that was given.
        documents: each file's path and document.
    """

    def __init__(self, path: str, documents: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take documents that :func:`ktuned_client.winners.check_document` has checked.

        Raises:
            WinnersError: two files hold the same kernel on the same device model.
        """
        self.path = path
        self.documents = list(documents)
        self._functions: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        self._indexes: dict[str, dict[tuple[str | None, str], list[_Entry]]] = {}
        seen: dict[tuple[str, str], str] = {}
        for place, document in self.documents:
            name = document["kernel"], document["device"]
            if (other := seen.setdefault(name, place)) != place:
                raise WinnersError(f"{place} and {other} both hold {name[0]} on {name[1]}: keep one of them")
            if "function" in document:
                self._functions.setdefault(document["function"]["name"], []).append((place, document))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file, or all files of a directory.

        Raises:
            WinnersError: a file cannot be read, or is no file of winners.
        """
        return cls(os.fspath(path), [(file, read_file(file)) for file in list_files(path)])

    @classmethod
    def read_snapshot(cls, snapshot: str) -> Self | None:
        """Read a file that :meth:`write_snapshot` has written; ``None`` without a name.

        A process that outlives its ``ktuned run`` may come too late. It then has no winners, and tunes nothing either.
        """
        if not snapshot:
            return None
        try:
            with open(snapshot, "rb") as file:
                return cls(*json.load(file))
        except OSError:
            return cls(snapshot, [])

    def write_snapshot(self, snapshot: str) -> None:
        """Write everything to one file, from which all processes of a run read the same winners."""
        with open(snapshot, "w") as file:
            json.dump([self.path, self.documents], file)

    def has_function(self, function: str) -> bool:
        """Return whether a file has winners of a function."""
        return function in self._functions

    def find_winner(self, function: str, source: str, key: CallKey) -> FileWinner | str:
        """Return the winner of a key, or the reason why there is none.

        Args:
            function: the function's name.
            source: the digest of its source.
            key: the key of a call. If it has no device, because the call uses no GPU, the files must agree on one.
        """
        model = key.device
        models = sorted({document["device"] for _, document in self._functions.get(function, ())})
        if model is None and len(models) == 1:
            (model,) = models
        wanted, whole = key.objective, canonical(key.problem)
        winners: list[tuple[bool, bool, float, FileWinner]] = []
        found = self._index_function(function).get((model, _strip_digests(key.problem)), ())
        for path, objective, made_from, entry in found:
            if objective == wanted or not is_exact(wanted):
                is_same = made_from == source and canonical(entry["problem"]) == whole
                winner = FileWinner(canonical(entry["config"]), entry["latency_us"], path, is_same)
                winners.append((objective != wanted, not is_same, winner.latency_us, winner))
        if winners:
            return min(winners)[-1]
        if found:
            return f"{self.path} has no winner with exact numerics for it"
        if models and model not in models:
            return f"{self.path} has it for {', '.join(models)}, not for {model or 'a call without a GPU'}"
        return f"{self.path} lacks it"

    def _index_function(self, function: str) -> Mapping[tuple[str | None, str], list[_Entry]]:
        """Return a function's winners by device model and key; a file may have 100,000 of them."""
        index = self._indexes.get(function)
        if index is None:
            index = self._indexes[function] = {}
            for path, document in self._functions.get(function, ()):
                model, source = document["device"], document["function"]["source"]
                for objective, entries in {**document.get("objectives", {}), LATENCY: document["winners"]}.items():
                    for entry in entries:
                        at = model, _strip_digests(entry["problem"])
                        index.setdefault(at, []).append((path, objective, source, entry))
        return index


def _strip_digests(problem: Problem) -> str:
    return canonical({name: value for name, value in problem.items() if name not in _DIGEST_KEYS})


@cache
def read_winners_once(path: str) -> WinnersFile:
    """Return the winners at an absolute path, as they were when this process first read them.

    Raises:
        WinnersError: a file cannot be read, or is no file of winners.
    """
    return WinnersFile.read(path)

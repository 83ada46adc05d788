"""Exported winners: reads the files, and answers lookups from them without a daemon.

A file has the winners of one kernel on one device model (docs/reference/sharing.md has the fields). Without a daemon

- sources, toolchain and driver cannot be checked, so a winner is ``stale``, never ``fresh``;
- a config cannot be checked against another problem, so a neighbouring size's winner is never given. A ``near`` answer
  is the problem's fastest config if it has no winner by the wanted objective;
- with exact numerics there is no ``near`` answer at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final
from zlib import crc32

from ktuned_client.answers import NO_METRICS, Hit, Problem
from ktuned_client.table_answers import apply_bucket_rule

WinnersDocument = Mapping[str, Any]
"""A file's content, whose fields docs/reference/sharing.md explains."""

FORMAT: Final = 1
"""Value of ``ktuned_winners``; increased when a field changes its meaning or is removed."""

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Limit for the size of a file: some 100,000 winners."""

MAX_NAMES: Final = 4_000
"""Most learned names of a kernel; the daemon has the same limit."""

_LATENCY: Final = "latency"
_EXACT: Final = "exact:"
_SCALARS: Final = (bool, int, float, str)
_FIELDS: Final = {
    "kernel": str,
    "device": str,
    "winners": list,
    "default": (dict, NoneType),
    "specialize": (list, NoneType),
    "bucket": dict,
    "names": dict,
}
_WINNER_FIELDS: Final = {
    "problem": dict,
    "config": dict,
    "latency_us": (int, float),
    "decided": (int, float),
    "digest": str,
    "toolchain": str,
    "device_fingerprint": str,
    "measuring_version": int,
}


class WinnersError(Exception):
    """A file of winners cannot be read or is invalid; the message names the file and the remedy."""


def read_file(path: str | os.PathLike[str]) -> WinnersDocument:
    """Read a file, check its document and return it.

    Raises:
        WinnersError: the file cannot be read, is invalid, or has a newer format.
    """
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise WinnersError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        document = json.loads(data)
    except OSError as error:
        raise WinnersError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise WinnersError(f"{path} is not JSON: {error}") from error
    try:
        check_document(document)
    except ValueError as error:
        raise WinnersError(f"{path} {error}") from error
    return document  # type: ignore[no-any-return]


def check_document(document: Any) -> None:
    """Check a file's content.

    Raises:
        ValueError: the document is invalid; the message continues a sentence that begins with the file's name.
    """
    if not isinstance(document, dict) or type(document.get("ktuned_winners")) is not int:
        raise ValueError("holds no winners that `ktuned export` wrote")
    version = document["ktuned_winners"]
    if version > FORMAT:
        raise ValueError(f"is of format {version}, and this version reads up to {FORMAT}: upgrade ktuned")
    _check_fields(document, _FIELDS, "")
    _check_flat(document["default"] or {}, "its default")
    if not all(isinstance(key, str) for key in document["specialize"] or ()):
        raise ValueError("is invalid: `specialize` is not a list of names")
    names = document["names"]
    if len(names) > MAX_NAMES or not all(isinstance(ends, list) for ends in names.values()):
        raise ValueError(f"is invalid: `names` is not a map of at most {MAX_NAMES} names to lists")
    if "function" in document:
        _check_function(document["function"])
    objectives = document.get("objectives", {})
    if not isinstance(objectives, dict) or not all(isinstance(found, list) for found in objectives.values()):
        raise ValueError("is invalid: `objectives` is not a map of lists of winners")
    winners = [*document["winners"], *(winner for found in objectives.values() for winner in found)]
    for number, winner in enumerate(winners, start=1):
        if not isinstance(winner, dict):
            raise ValueError(f"is invalid: winner {number} is not a map")
        _check_fields(winner, _WINNER_FIELDS, f"winner {number}: ")
        _check_flat(winner["problem"], f"winner {number}: its problem")
        _check_flat(winner["config"], f"winner {number}: its config")
        if not 0 < winner["latency_us"] < float("inf"):
            raise ValueError(f"is invalid: winner {number}: a latency of {winner['latency_us']} µs")
        _check_metrics(winner.get("metrics", {}), f"winner {number}: its metrics")


def render_document(document: WinnersDocument) -> str:
    """Return a file's text: sorted, with a line for each field, name, part and winner, so that diffs show changes."""
    head = {name: value for name, value in document.items() if name not in ("winners", "objectives")}
    lines = [
        f" {json.dumps(name)}: {_render_map(value, _DEPTHS.get(name, 0), '  ')}"
        for name, value in sorted(head.items(), key=_order_mark_first)
    ]
    if document.get("objectives"):
        found = sorted(document["objectives"].items())
        lists = ",\n".join(f"  {json.dumps(name)}: {_render_winners(winners, '   ')}" for name, winners in found)
        lines.append(f' "objectives": {{\n{lists}\n }}')
    return "{\n" + ",\n".join([*lines, f' "winners": {_render_winners(document["winners"], "  ")}']) + "\n}\n"


_DEPTHS: Final = {"names": 1, "parts": 2}
"""Fields of which each entry has a line, and the depth of their maps."""


def _render_map(values: Any, depth: int, indent: str) -> str:
    if not depth or not values:
        return _to_canonical_json(values)
    entries = [
        f"{indent}{json.dumps(name, ensure_ascii=False)}: {_render_map(value, depth - 1, f'{indent} ')}"
        for name, value in sorted(values.items())
    ]
    return "{\n" + ",\n".join(entries) + f"\n{indent[1:]}}}"


def _render_winners(winners: list[Mapping[str, Any]], indent: str) -> str:
    ordered = sorted(winners, key=lambda winner: _to_canonical_json(winner["problem"]))
    entries = ",\n".join(f"{indent}{_to_canonical_json(winner)}" for winner in ordered)
    return f"[\n{entries}\n{indent[1:]}]"


def make_file_name(kernel: str, device: str) -> str:
    """Return the name of the file of a kernel and a device model."""
    return f"{_to_file_name(kernel)}@{_to_file_name(device)}.json"


def list_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files at a path: the file itself, or the ``*.json`` of a directory, by name.

    Raises:
        WinnersError: a directory has none.
    """
    if not os.path.isdir(path):
        return [os.fspath(path)]
    files = sorted(entry.path for entry in os.scandir(path) if entry.name.endswith(".json"))
    if not files:
        raise WinnersError(f"{path} holds no file of winners (*.json)")
    return files


class Winners:
    """The winners of one or several files."""

    def __init__(self) -> None:
        self._kernels: dict[str, dict[str, _WinnersFile]] = {}
        self._short: dict[str, set[str]] = {}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Winners:
        """Read a file, or all files of a directory; raises as :func:`read_file`."""
        winners = cls()
        for file in list_files(path):
            winners._add_file(file, read_file(file))
        return winners

    def lookup(self, kernel: str, problem: Problem, device: str | None, objective: str | None = None) -> Hit:
        """Return the answer to a lookup: ``stale``, ``default``, ``unknown``, or ``unavailable`` with the reason."""
        names = {kernel} if kernel in self._kernels else self._short.get(kernel, set())
        if len(names) > 1:
            listed = ", ".join(sorted(names))
            return Hit(kernel, problem, device, "unavailable", None, message=f"{kernel!r} is ambiguous: {listed}")
        if not names:
            return Hit(kernel, problem, device, "unknown", None)
        (name,) = names
        models = self._kernels[name]
        if device is None and len(models) > 1:
            listed = ", ".join(sorted(models))
            message = f"there are winners for {listed}: name one of them as device"
            return Hit(name, problem, None, "unavailable", None, message=message)
        shared = models.get(device) if device is not None else next(iter(models.values()))
        if shared is None:
            default = next(iter(models.values())).default
            return Hit(name, problem, device, "default", default, message=f"there are no winners for {device!r}")
        return shared.answer_lookup(problem, objective)

    def _add_file(self, path: str, document: WinnersDocument) -> None:
        name, device = document["kernel"], document["device"]
        models = self._kernels.setdefault(name, {})
        if device in models:
            raise WinnersError(f"{path} and {models[device].path} both hold {name} on {device}: keep one of them")
        models[device] = _WinnersFile(path, document)
        self._short.setdefault(name.rpartition(":")[2], set()).add(name)


class _WinnersFile:
    """The winners of one file: of one kernel on one device model."""

    def __init__(self, path: str, document: WinnersDocument) -> None:
        self.path = path
        self.default = document["default"]
        self._kernel = document["kernel"]
        self._device = document["device"]
        self._specialize = document["specialize"]
        self._bucket = document["bucket"]
        self._objective = document.get("objective", _LATENCY)
        lists = {**document.get("objectives", {}), _LATENCY: document["winners"]}
        self._winners = {
            name: {_to_canonical_json(winner["problem"]): winner for winner in winners}
            for name, winners in lists.items()
        }
        artifacts = document.get("artifacts")
        self._artifacts = os.path.join(os.path.dirname(path), artifacts) if isinstance(artifacts, str) else None

    def answer_lookup(self, problem: Problem, objective: str | None) -> Hit:
        bucket = {key: apply_bucket_rule(self._bucket[key], problem[key]) for key in problem if key in self._bucket}
        try:
            whole = {**problem, **bucket}
            kept = whole if self._specialize is None else {key: whole[key] for key in self._specialize}
        except KeyError as error:
            message = f"the problem lacks {error}"
            return Hit(self._kernel, problem, self._device, "unavailable", None, message=message)
        wanted, key = objective or self._objective, _to_canonical_json(dict(kept))
        winner = self._winners.get(wanted, {}).get(key)
        status, message = "stale", f"from {self.path}: not checked against this machine's sources, toolchain and driver"
        # With exact numerics, the fastest config is no substitute: it may have other bits.
        if winner is None and not wanted.startswith(_EXACT):
            winner = self._winners[_LATENCY].get(key)
            status, message = "near", f"the fastest config: {self.path} has no winner by {wanted}"
        if winner is None:
            return Hit(self._kernel, problem, self._device, "default", self.default, objective=wanted)
        return Hit(
            self._kernel,
            problem,
            self._device,
            status,
            winner["config"],
            winner["latency_us"],
            self._find_artifact(winner),
            winner["decided"],
            message=message,
            metrics=winner.get("metrics", NO_METRICS),
            measured=None if whole == dict(problem) else whole,
            objective=wanted,
        )

    def _find_artifact(self, winner: Mapping[str, Any]) -> str | None:
        name = winner.get("artifact")
        # A name only: a path could lead out of the directory.
        if self._artifacts is None or not isinstance(name, str) or os.path.basename(name) != name:
            return None
        path = os.path.join(self._artifacts, name)
        return os.path.abspath(path) if os.path.isdir(path) else None


def _check_function(function: Any) -> None:
    if not isinstance(function, dict) or not all(isinstance(function.get(name), str) for name in ("name", "source")):
        raise ValueError("is invalid: `function` is not a map with a `name` and a `source`")


def _check_metrics(values: Any, what: str) -> None:
    if not isinstance(values, dict) or not all(type(value) in (int, float) for value in values.values()):
        raise ValueError(f"is invalid: {what} is not a flat map of numbers")


def _to_canonical_json(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _order_mark_first(field: tuple[str, Any]) -> tuple[bool, str]:
    return field[0] != "ktuned_winners", field[0]


def _to_file_name(name: str) -> str:
    """Return a name as part of a file name; if characters must be replaced, a checksum keeps different names apart."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return plain if plain == name.replace(":", "-").replace(" ", "-") else f"{plain}-{crc32(name.encode()):08x}"


def _check_fields(values: Mapping[str, Any], kinds: Mapping[str, Any], prefix: str) -> None:
    for name, kind in kinds.items():
        if name not in values or not isinstance(values[name], kind) or isinstance(values.get(name), bool):
            raise ValueError(f"is invalid: {prefix}`{name}` is missing or of a wrong type")


def _check_flat(values: Any, what: str) -> None:
    if not isinstance(values, dict) or not all(isinstance(value, _SCALARS) for value in values.values()):
        raise ValueError(f"is invalid: {what} is not a flat map of numbers and strings")

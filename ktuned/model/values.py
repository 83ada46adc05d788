"""Plain values: scalars, problems, configs, outcomes, statuses.

All hold only what MessagePack and JSON can carry, so that the same fields appear in the protocol, in ``--json`` and in
exports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

Scalar = bool | int | float | str
"""Value of a problem or a config."""

Problem = Mapping[str, Scalar]
"""All values that a caller asked for, by name.

It is an alias, because people write problems as plain dicts: in kernel files, in calls and on the wire. A type of its
own would wrap each of them without checking anything. Mistakes are costly in keys, and these have a type that cannot be
confused with another text: :data:`~ktuned.model.keys.KeyProblem`.
"""

Config = Mapping[str, Scalar]
"""A value for each knob, by name; an alias for the same reason."""


def canonical(values: Mapping[str, Any]) -> str:
    """Return the one text that identifies a flat map: JSON with sorted keys and no spaces."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def spell_values(values: Mapping[str, Any]) -> str:
    """Return a problem or a config as people read it: ``M=4096 causal=true``.

    For an application's call, only the types follow the key's own fields: ``M=4096 f16,f16,i64``. The digest that names
    the call is left out.
    """
    fields = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in values.items()
        if not key.startswith("@")
    ]
    return " ".join([*fields, *([str(values["@types"])] if "@types" in values else [])])


def sha256(text: str) -> str:
    """Digest of a text, in hexadecimal digits."""
    # Imported here, because a command that digests nothing should not wait 3 ms for OpenSSL.
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def is_among(value: object, values: Sequence[Scalar]) -> bool:
    """Return whether a value is in a sequence. Like keys, this distinguishes 1, 1.0 and True."""
    if isinstance(values, range):
        return type(value) is int and value in values
    # ``index`` runs at C's speed: an axis may have thousands of values, and each trial asks.
    place = values.index(value) if value in values else len(values)
    return any(type(value) is type(other) and value == other for other in islice(values, place, None))


def median(values: Iterable[float]) -> float:
    """Return the median of values; of an even number of them, the mean of the two in the middle.

    The standard library's ``statistics`` would import ``fractions`` and ``decimal``, 0.7 MiB.

    Raises:
        ValueError: there is no value.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of no values")
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Outcome(StrEnum):
    """How a trial ended; each has exactly one outcome."""

    MEASURED = "measured"
    SLOWER = "slower"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    UNSUPPORTED = "unsupported"
    MISMATCH = "mismatch"
    LAUNCH_ERROR = "launch_error"
    CRASHED = "crashed"
    HUNG = "hung"
    CONTENDED = "contended"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


NOT_TRIED = frozenset({Outcome.CANCELLED, Outcome.INTERRUPTED})
"""Outcomes of configs whose trial did not end, because the job stopped or the daemon died."""

RETRIED_BY_NEXT_JOB = NOT_TRIED | {Outcome.CONTENDED}
"""Outcomes that do not depend on the config, so that the next job tries it again."""

FAILURES = frozenset(Outcome) - RETRIED_BY_NEXT_JOB - {Outcome.MEASURED, Outcome.SLOWER}
"""Outcomes of configs that do not work."""

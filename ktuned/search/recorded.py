"""Recorded spaces: every config of a kernel with its result, so that strategies can be compared without a device.

Two file formats are read, each also compressed (``.gz``):

- a Kernel Tuner cache file: ``{"tune_params_keys": […], "cache": {"…": {"BM": 32, …, "time": 1.25}}}``, where the
  objective of a failed config is a string;
- a T4 file of the autotuning community (https://github.com/autotuning/schemas): ``{"results": [{"configuration": …,
  "measurements": [{"name": "time", "value": 1.25}], "invalidity": "correct"}]}``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.model import Config, Record, Scalar, UsageError, canonical, record
from ktuned.spec import BoundSpace, space

MAX_BYTES = 2 * 2**30
"""Most bytes of an unpacked recorded space. The largest ones of the benchmark hub have some hundred MiB."""

NEVER = 1e18
"""Larger values stand for failures, in files that cannot mark them in another way."""


@record
class RecordedSpace(Record):
    """The configs of a space with their objectives, smaller being better; ``None`` for those that failed."""

    name: str
    configs: tuple[Config, ...]
    objectives: tuple[float | None, ...]

    @property
    def optimum(self) -> float:
        """The smallest objective."""
        return min(value for value in self.objectives if value is not None)

    def to_space(self) -> BoundSpace:
        """Return the recorded configs as a space."""
        return space(list(self.configs)).bind({})

    def objectives_by_config(self) -> dict[str, float | None]:
        """Return the objectives by the configs' canonical texts."""
        return {canonical(config): value for config, value in zip(self.configs, self.objectives, strict=True)}


def record_space(name: str, results: Sequence[tuple[Config, float | None]]) -> RecordedSpace:
    """Return a recorded space with some results. If a config occurs twice, the last result counts.

    Raises:
        UsageError: There is no result, or no config was measured.
    """
    last = {canonical(config): (config, value) for config, value in results}
    if not any(value is not None for _, value in last.values()):
        raise UsageError(f"{name} holds no measured config", hint="give a space of which every config was tried")
    return RecordedSpace(name, tuple(config for config, _ in last.values()), tuple(value for _, value in last.values()))


def read_recorded_space(path: Path) -> RecordedSpace:
    """Read a Kernel Tuner cache file or a T4 file.

    Raises:
        UsageError: The file cannot be read, or is in neither format.
    """
    data = _load_json(path)
    if isinstance(data, dict) and isinstance(data.get("cache"), dict):
        found = _parse_kernel_tuner_cache(path, data)
    elif isinstance(data, dict) and isinstance(data.get("results"), list):
        found = [_parse_t4_result(path, result) for result in data["results"]]
    else:
        raise _unreadable_file(path, "it has neither `cache` nor `results`")
    space_of_it = record_space(str(path), found)
    knobs = {tuple(sorted(config)) for config in space_of_it.configs}
    if len(knobs) > 1:
        raise _unreadable_file(path, "its configs differ in their knobs")
    return space_of_it


def _load_json(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            unpacker = zlib.decompressobj(wbits=31)
            raw = unpacker.decompress(raw, MAX_BYTES)
            if unpacker.unconsumed_tail:
                raise _unreadable_file(path, "it is too large")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="give a Kernel Tuner cache file or a T4 file"
        ) from None
    except (zlib.error, EOFError) as error:
        raise _unreadable_file(path, f"it is not a whole gzip file: {error}") from None
    text = raw.decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        pass
    try:
        # Kernel Tuner writes the closing braces only when it ends, so the cache of an interrupted run lacks them.
        return json.loads(text.rstrip().rstrip(",") + "}\n}")
    except (json.JSONDecodeError, RecursionError) as error:
        raise _unreadable_file(path, f"it is not JSON: {error}") from None


def _parse_kernel_tuner_cache(path: Path, data: Mapping[str, Any]) -> list[tuple[Config, float | None]]:
    knobs = data.get("tune_params_keys")
    if not isinstance(knobs, list):
        raise _unreadable_file(path, "it has no `tune_params_keys`")
    objective = str(data.get("objective", "time"))
    found: list[tuple[Config, float | None]] = []
    for row in data["cache"].values():
        try:
            found.append(({knob: _parse_knob_value(row[knob]) for knob in knobs}, _parse_objective(row.get(objective))))
        except (KeyError, TypeError, AttributeError) as error:
            raise _unreadable_file(path, f"a config of it lacks {error}") from None
    return found


def _parse_t4_result(path: Path, result: Any) -> tuple[Config, float | None]:
    try:
        config = {str(knob): _parse_knob_value(value) for knob, value in result["configuration"].items()}
        wanted = (result.get("objectives") or ["time"])[0]
        measurements = {entry["name"]: entry["value"] for entry in result.get("measurements", ())}
        is_valid = result.get("invalidity", "correct") == "correct"
        return config, _parse_objective(measurements.get(wanted)) if is_valid else None
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise _unreadable_file(path, f"a result of it is malformed: {type(error).__name__}: {error}") from None


def _parse_knob_value(value: Any) -> Scalar:
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} as a knob's value")


def _parse_objective(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < NEVER else None


def _unreadable_file(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} is no recorded space: {why}", hint="give a Kernel Tuner cache file or a T4 file")

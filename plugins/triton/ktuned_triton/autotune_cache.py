"""Triton's own autotune cache, written from winners, for programs without a client.

A program that calls ``triton.autotune`` with ``cache_results=True``, or with ``TRITON_CACHE_AUTOTUNING=1``, finds a
winner there and measures nothing; its machine code lies beside it, so that nothing is compiled either. The format is
that of ``Autotuner.check_disk_cache`` in Triton 3.5 and later.

``python -m ktuned_triton.autotune_cache DIRECTORY`` reads a :class:`Request` as JSON and writes what became of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ktuned.dropin import all_records
from ktuned.model import canonical

_TARGET = re.compile(r"sm_(\d+)[af]?")
_MICROSECONDS: Final = 1e-3
"""Triton's figures are milliseconds."""

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """A config as Triton's cache has it: its text, which is part of the key, and its fields; none if JSON has none."""

    text: str
    fields: Config | None


@dataclass(frozen=True, slots=True)
class Origin:
    """A call as Triton's own autotuner keys it.

    Attributes:
        name: the function's name.
        cache_key: Triton's digest of its source.
        key: the tuning key's text.
        problem: ktuned's name of the key.
        configs: the configs that the pruning left, in order, by their knobs' text.
        has_hooks: whether a config has a hook: Triton keeps no results then.
    """

    name: str
    cache_key: str
    key: str
    problem: Config
    configs: Mapping[str, Listed]
    has_hooks: bool


@dataclass(frozen=True, slots=True)
class Exported:
    """Results of an export: the files that were written, and the reasons why winners were left out."""

    written: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def origin_of(
    tuner: Any,
    function: Any,
    problem: Config,
    configs: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Origin:
    """Return a call as Triton keys it; ``configs`` are those that the pruning left."""
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    key += [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    return Origin(
        name=function.__name__,
        cache_key=function.cache_key,
        key=str(tuple(key)) if key else "",
        problem=dict(problem),
        configs={text: Listed(str(config), _fields(config)) for text, config in configs.items()},
        has_hooks=any(config.pre_hook for config in configs.values()),
    )


def origin_from(fields: Mapping[str, Any] | None) -> Origin | None:
    """Rebuild an origin from its record."""
    if fields is None:
        return None
    return Origin(**{**fields, "configs": {text: Listed(**listed) for text, listed in fields["configs"].items()}})


def _fields(config: Any) -> Config | None:
    try:
        found: Config = json.loads(json.dumps({**config.__dict__, "pre_hook": None}))
    except (TypeError, ValueError):
        return None
    return found


def export(file: Path, winners: Sequence[Mapping[str, Any]], cache: Path) -> Exported:
    """Write the winners of one kernel file into a cache of Triton's; each is a map of ``problem``, ``config``,
    ``latency_us`` and ``artifact``, the artifact's directory or ``None``.

    The program must run with this Triton, on this architecture, with the variables that this process has.
    """
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    by_problem = {canonical(winner["problem"]): winner for winner in winners}
    done = Exported()
    for origin in _origins(file):
        winner = by_problem.get(canonical(origin.problem))
        if winner is None:
            continue
        reason = _why_not(origin, winner)
        if reason:
            done.left_out.append(f"{origin.name} {origin.key}: {reason}")
        else:
            done.written.append(_write(origin, winner))
    if not done.written and not done.left_out:
        done.left_out.append(f"{file.name}: no call of an application is recorded for its winners")
    return done


def _origins(file: Path) -> Iterator[Origin]:
    for text in all_records(file):
        origin = origin_from(json.loads(text).get("origin"))
        if origin is not None and file.stem.startswith(f"tune_{origin.name}_"):
            yield origin


def _why_not(origin: Origin, winner: Mapping[str, Any]) -> str:
    if not origin.key:
        return "it has no tuning key, and Triton keeps nothing without one"
    if origin.has_hooks:
        return "its configs have hooks, and Triton keeps nothing of those"
    listed = origin.configs.get(canonical(winner["config"]))
    if listed is None:
        return "its pruning leaves the winner out"
    if listed.fields is None:
        return "the winner has values that JSON does not have"
    return "" if winner["artifact"] else "its artifact is gone: tune it again"


def _write(origin: Origin, winner: Mapping[str, Any]) -> str:
    from triton.runtime.cache import get_cache_manager

    from ktuned_triton.artifact import LAUNCH_FILE, install
    from ktuned_triton.launch_plan import LaunchPlan

    artifact = Path(winner["artifact"])
    plan = LaunchPlan.from_json((artifact / LAUNCH_FILE).read_text())
    install(artifact)
    timing = winner["latency_us"] * _MICROSECONDS
    listed = origin.configs[canonical(winner["config"])]
    content = {"key": origin.key, "configs_timings": [[listed.fields, [timing, timing, timing]]]}
    path: str = get_cache_manager(_key(origin, plan.target)).put(
        json.dumps(content), f"{origin.name[:150]}.autotune.json", binary=False
    )
    return path


def _key(origin: Origin, target: str) -> str:
    """Return the key under which Triton looks for the results of a call."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    match = _TARGET.fullmatch(target)
    assert match is not None
    parts = [
        triton_key(),
        make_backend(GPUTarget("cuda", int(match[1]), 32)).hash(),
        origin.cache_key,
        str(sorted(get_cache_invalidating_env_vars().items())),
        origin.key,
        *(listed.text for listed in origin.configs.values()),
    ]
    return hashlib.sha256("-".join(parts).encode()).hexdigest()


def main() -> None:
    """Export what standard input asks for: a map of ``file`` and ``winners``."""
    asked = json.load(sys.stdin)
    json.dump(asdict(export(Path(asked["file"]), asked["winners"], Path(sys.argv[1]))), sys.stdout)


if __name__ == "__main__":
    main()

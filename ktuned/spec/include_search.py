"""Include directories of a kernel: those that the flags of its configs' Builds name.

Another config may have another list of them, and find another file by the same name. So many configs are asked that
each value of each knob is among them, and all of a small space; what only two knobs together would add is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ktuned.ipc import lexical
from ktuned.model import Config, KtunedError, Problem, Scalar
from ktuned.spec.declared_kernel import Kernel
from ktuned.spec.spaces import CartesianSpace

MAX_BUILDS = 512
"""Builds that are made to learn their flags: some 10 ms of a kernel function's time."""

WHOLE_SPACE = 64
"""A space of at most this many candidates is asked as a whole."""

MAX_WALKED = 1000
"""Candidates of a larger space that are looked at for values which no other had."""

MAX_VALUES = 64
"""Values of one knob that are asked for: one with more is a size, which names no directory."""


def include_searches(kernel: Kernel, limit: int = MAX_BUILDS) -> list[tuple[Path, ...]]:
    """Return each list of directories that some Build has searched, in its order; one that names none is empty.

    At most ``limit`` Builds are asked for.

    Raises:
        KernelFileError: ``problems`` is at fault.
    """
    found: dict[tuple[Path, ...], None] = {}
    for problem, config in islice(_cases(kernel), limit):
        try:
            flagged = kernel.build(problem, config).include_dirs
        except (KtunedError, TypeError):
            # The config's error is reported when it is tried.
            continue
        found[tuple(lexical(kernel.source_paths[0].parent / name) for name in flagged)] = None
    return list(found) or [()]


def _cases(kernel: Kernel) -> Iterator[tuple[Problem, Config]]:
    """Yield one config of each problem, then their others."""
    problems = kernel.problem_list()
    others = [_telling(kernel, problem) for problem in problems]
    for problem, configs in zip(problems, others, strict=True):
        for config in islice(configs, 1):
            yield problem, config
    for problem, configs in zip(problems, others, strict=True):
        for config in configs:
            yield problem, config


def _telling(kernel: Kernel, problem: Problem) -> Iterator[Config]:
    """Yield configs until each value of each knob was among them."""
    seen: dict[str, set[tuple[type, Scalar]]] = {}
    space = kernel.bound_space(problem)
    is_small = space.size is not None and space.size <= WHOLE_SPACE
    candidates: Iterator[Config | None] = space.walk()
    try:
        if isinstance(kernel.space, CartesianSpace) and not is_small:
            base = kernel.default or next(filter(None, islice(candidates, MAX_WALKED)), None)
            candidates = _one_by_one(kernel.space, base)
        elif kernel.default is not None:
            candidates = chain([kernel.default], candidates)
        for config in islice(candidates, MAX_WALKED):
            if config is not None and (_adds(config, seen) or is_small):
                yield config
    except KtunedError:
        # As with the error of a config, it is reported when the space is explored.
        return


def _one_by_one(space: CartesianSpace, base: Config | None) -> Iterator[Config]:
    """Yield a config, and all that differ from it in one knob, the knobs with few values first."""
    if base is not None:
        yield base
        for knob, values in sorted(space.axes.items(), key=lambda axis: len(axis[1])):
            yield from ({**base, knob: value} for value in islice(values, MAX_VALUES))


def _adds(config: Config, seen: dict[str, set[tuple[type, Scalar]]]) -> bool:
    """Return whether a config has a value that no other had, and note that it was seen."""
    is_new = False
    for knob, value in config.items():
        known = seen.setdefault(knob, set())
        if len(known) < MAX_VALUES and (type(value), value) not in known:
            known.add((type(value), value))
            is_new = True
    return is_new

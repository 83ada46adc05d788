"""Prior: the configs that the kernel file considers promising. They are tried first.

A ``prior`` has one of two forms, either with another parameter called ``device``:

``prior(p)``
    returns configs, the best first, as a compiler's cost model may (TileLang's carver).
``prior(p, c)``
    scores a config, higher being better. It is asked about a sample of the space, and the best are tried.

A prior only changes the order and excludes no config. If all its scores are NaN, or all its configs are outside the
space, it is ignored with a remark.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from random import Random

from ktuned.declaration import BoundSpace, Kernel, find_mapping_fault
from ktuned.model import Config, Device, FrozenStruct, listed, spell_values
from ktuned.search import build_domain

MAX_NAMED = 32
"""Most configs of ``prior(p)`` that are tried: if a cost model is right, it is right among its first configs."""

SCORED = 400
"""Most configs that ``prior(p, c)`` is asked about, which takes some milliseconds."""

BEST_SCORED = 12
"""How many of those with the best scores are tried."""


DEVICE = "device"
"""Name of the parameter for the :class:`~ktuned.model.Device`, at any position."""


class PriorChoice(FrozenStruct):
    """The configs that a prior prefers, the best first; ``fault`` says why it is ignored, if it is."""

    configs: tuple[Config, ...] = ()
    fault: str = ""


def ask_prior(kernel: Kernel, space: BoundSpace, device: Device) -> PriorChoice:
    """Ask a kernel's prior about a space and a device.

    For a job that only compiles, only the device's target is known.

    Raises:
        KernelFileError: the prior raised, or returned neither configs nor a score.
    """
    prior = kernel.prior
    if prior is None:
        return PriorChoice()
    try:
        parameters = inspect.signature(prior).parameters
        further = {DEVICE: device} if DEVICE in parameters else {}
        taken = [
            name for name, parameter in parameters.items() if parameter.default is parameter.empty and name != DEVICE
        ]
        if len(taken) == 1:
            return PriorChoice(
                tuple(
                    _convert_to_plain_config(config)
                    for config in _limit_returned_configs(prior(space.problem_view, **further))
                )
            )
        scored = [
            (float(prior(space.problem_view, space.view(config), **further)), config)
            for config in _sample_configs(space)
        ]
    except (Exception, SystemExit) as error:
        raise kernel.site.make_failure("prior", error) from error
    promised = [pair for pair in scored if not math.isnan(pair[0])]
    if scored and not promised:
        fault = f"prior of kernel {kernel.name!r} is ignored: it gave NaN for all {len(scored)} configs; "
        return PriorChoice(fault=f"{fault}return a number; a higher number is more promising")
    promised.sort(key=lambda pair: -pair[0])
    return PriorChoice(tuple(config for _, config in promised[:BEST_SCORED]))


def describe_stray_prior(kernel: Kernel, named: Sequence[Config], knobs: Collection[str]) -> str:
    """Return the remark on a prior whose configs are all outside the space; ``knobs`` is empty if unknown."""
    unknown = sorted({knob for config in named for knob in config} - set(knobs)) if knobs else []
    missing = sorted(set(knobs) - set(named[0]))
    remedy = "return values of its axes that `where` admits"
    if unknown:
        remedy = f"there is no knob {unknown[0]!r} {listed(knobs, near=unknown[0])}"
    elif missing:
        remedy = f"give the knob {missing[0]!r} a value, too"
    return (
        f"prior of kernel {kernel.name!r} is ignored: none of its configs is in the space, "
        f"such as {spell_values(named[0])}; {remedy}"
    )


def _limit_returned_configs(returned: Iterable[Config] | None) -> Iterable[Config]:
    if returned is None or isinstance(returned, str | bytes | Mapping):
        raise TypeError(f"it returned {returned!r}, not configs: return a list of dicts")
    return islice(returned, MAX_NAMED)


def _convert_to_plain_config(config: Config) -> Config:
    """Return a config with Python's own numbers, because arithmetic of the prior may have given NumPy's."""
    plain = {knob: value.item() if hasattr(value, "item") else value for knob, value in dict(config).items()}
    if fault := find_mapping_fault(plain, "a config that it returned"):
        raise TypeError(fault)
    return plain


def _sample_configs(space: BoundSpace) -> list[Config]:
    domain = build_domain(space)
    if domain.is_exact and domain.count <= SCORED:
        return [domain.config_at(code) for code in domain.walk_points() if code is not None]
    random = Random(0)
    drawn = {code for _ in range(SCORED) if (code := domain.draw_point(random)) is not None}
    return [domain.config_at(code) for code in sorted(drawn)]

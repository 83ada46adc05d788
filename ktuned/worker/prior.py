"""Configs that a kernel file's ``prior`` names as promising.

Two forms: ``prior(p)`` yields configs, the best first, as a compiler's own cost model may (TileLang's carver); or
``prior(p, c)`` scores a config, higher being better, and the best of a sample come first. Either may have a further
parameter called ``device``. A prior orders, and excludes nothing.
"""

from __future__ import annotations

import inspect
import math
from itertools import islice
from random import Random

from ktuned.model import Config, Device, Problem, canonical
from ktuned.search import domain_of
from ktuned.spec import BoundSpace, Kernel

MAX_NAMED = 32
"""Configs of ``prior(p)`` that are tried first: a model of the author's is right early or never."""

SCORED = 400
"""Configs that ``prior(p, c)`` is asked about: some milliseconds of an author's arithmetic."""

BEST_SCORED = 12
"""The best of them, which are tried first."""


DEVICE = "device"
"""The parameter that takes the :class:`~ktuned.model.Device`; its place is free."""


def promising(kernel: Kernel, problem: Problem, space: BoundSpace, device: Device) -> list[Config]:
    """Return the configs that a kernel's prior would have tried first on a device, the best first.

    Where a job only compiles, the device has nothing but its target.

    Raises:
        KernelFileError: the prior raised, or returned something that is neither configs nor a score.
    """
    prior = kernel.prior
    if prior is None:
        return []
    try:
        parameters = inspect.signature(prior).parameters
        further = {DEVICE: device} if DEVICE in parameters else {}
        taken = [name for name, one in parameters.items() if one.default is one.empty and name != DEVICE]
        if len(taken) == 1:
            return [_plain(config) for config in islice(prior(space.problem_view, **further), MAX_NAMED)]
        scored = [
            (float(prior(space.problem_view, space.view(config), **further)), config) for config in _sample(space)
        ]
    except Exception as error:
        raise kernel.site.failure("prior", error) from error
    promised = [pair for pair in scored if not math.isnan(pair[0])]
    promised.sort(key=lambda pair: -pair[0])
    return [config for _, config in promised[:BEST_SCORED]]


def _plain(config: Config) -> Config:
    """Return a config as a space holds it: an author's arithmetic may have made NumPy's numbers of its values."""
    plain = {knob: value.item() if hasattr(value, "item") else value for knob, value in dict(config).items()}
    canonical(plain)
    return plain


def _sample(space: BoundSpace) -> list[Config]:
    domain = domain_of(space)
    if domain.is_exact and domain.count <= SCORED:
        return [domain.config(code) for code in domain.points() if code is not None]
    random = Random(0)
    drawn = {code for _ in range(SCORED) if (code := domain.sample(random)) is not None}
    return [domain.config(code) for code in sorted(drawn)]

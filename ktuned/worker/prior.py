"""Configs that a kernel file's ``prior`` names as promising.

Two forms: ``prior(p)`` yields configs, the best first, as a compiler's own cost model may (TileLang's carver); or
``prior(p, c)`` scores a config, higher being better, and the best of a sample come first. Either may have a further
parameter called ``device``. A prior orders, and excludes nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from random import Random

from ktuned.model import Config, Device, Record, canonical, listed, record
from ktuned.search import build_domain
from ktuned.spec import BoundSpace, Kernel, find_mapping_fault

MAX_NAMED = 32
"""Configs of ``prior(p)`` that are tried first: a model of the author's is right early or never."""

SCORED = 400
"""Configs that ``prior(p, c)`` is asked about: some milliseconds of an author's arithmetic."""

BEST_SCORED = 12
"""The best of them, which are tried first."""


DEVICE = "device"
"""The parameter that takes the :class:`~ktuned.model.Device`; its place is free."""


@record
class Promise(Record):
    """The configs that a prior would have tried first, the best first; ``fault`` says why all of it is ignored."""

    configs: tuple[Config, ...] = ()
    fault: str = ""


def promising(kernel: Kernel, space: BoundSpace, device: Device) -> Promise:
    """Ask a kernel's prior about a space and a device, of which only the target is known where a job only compiles.

    Raises:
        KernelFileError: the prior raised, or returned something that is neither configs nor a score.
    """
    prior = kernel.prior
    if prior is None:
        return Promise()
    try:
        parameters = inspect.signature(prior).parameters
        further = {DEVICE: device} if DEVICE in parameters else {}
        taken = [name for name, one in parameters.items() if one.default is one.empty and name != DEVICE]
        if len(taken) == 1:
            return Promise(tuple(_plain(config) for config in _named(prior(space.problem_view, **further))))
        scored = [
            (float(prior(space.problem_view, space.view(config), **further)), config) for config in _sample(space)
        ]
    except (Exception, SystemExit) as error:
        raise kernel.site.make_failure("prior", error) from error
    promised = [pair for pair in scored if not math.isnan(pair[0])]
    if scored and not promised:
        fault = f"prior of kernel {kernel.name!r} is ignored: it gave NaN for all {len(scored)} configs that it was "
        return Promise(fault=f"{fault}asked about; return a number, the higher the more promising")
    promised.sort(key=lambda pair: -pair[0])
    return Promise(tuple(config for _, config in promised[:BEST_SCORED]))


def stray_fault(kernel: Kernel, named: Sequence[Config], knobs: Collection[str]) -> str:
    """Return the remark on a prior none of whose configs is in the space, whose ``knobs`` are known or empty."""
    unknown = sorted({knob for config in named for knob in config} - set(knobs)) if knobs else []
    missing = sorted(set(knobs) - set(named[0]))
    mend = "return values of its axes that `where` admits"
    if unknown:
        mend = f"there is no knob {unknown[0]!r} {listed(knobs, near=unknown[0])}"
    elif missing:
        mend = f"give the knob {missing[0]!r} a value, too"
    return (
        f"prior of kernel {kernel.name!r} is ignored: of the {len(named)} configs that it named none is in the space, "
        f"such as {canonical(named[0])}; {mend}"
    )


def _named(returned: Iterable[Config] | None) -> Iterable[Config]:
    if returned is None or isinstance(returned, str | bytes | Mapping):
        raise TypeError(f"it returned {returned!r}, not configs: return a list of dicts")
    return islice(returned, MAX_NAMED)


def _plain(config: Config) -> Config:
    """Return a config as a space holds it: an author's arithmetic may have made NumPy's numbers of its values."""
    plain = {knob: value.item() if hasattr(value, "item") else value for knob, value in dict(config).items()}
    if fault := find_mapping_fault(plain, "the config that it named"):
        raise TypeError(fault)
    return plain


def _sample(space: BoundSpace) -> list[Config]:
    domain = build_domain(space)
    if domain.is_exact and domain.count <= SCORED:
        return [domain.config_at(code) for code in domain.walk_points() if code is not None]
    random = Random(0)
    drawn = {code for _ in range(SCORED) if (code := domain.draw_point(random)) is not None}
    return [domain.config_at(code) for code in sorted(drawn)]

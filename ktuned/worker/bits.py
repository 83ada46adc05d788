"""The bits that a config leaves: digests of its outputs on several inputs, and whether launches agree on them.

The first digest is of the launch that is judged before timing, and costs no launch of its own. The other inputs are
launched after timing, those of ordinary numbers twice: two launches of one input that differ show atomics and races.
They are not judged, because what is right for a denormal or a NaN no tolerance says.

That takes as long as some ten launches, and as many digests. So only the anchor and the finalists get them, as the
finalists alone are checked with other seeds, and a config whose launches are over at once. Of the others the first
digest alone is known, which decides which of them race against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ktuned.backends import Launch
from ktuned.ipc import replies, requests
from ktuned.model import Record, have_same_bits, record
from ktuned.worker.problem import ProblemData

LAUNCHES = 2
"""Launches of an input that may show a race: of ordinary numbers. Hard ones are launched once."""

FREE_US = 5_000.0
"""Time that the other inputs may take of a lane where nothing is won by them but knowledge of the classes."""


@record
class LaunchDigests(Record):
    """What launches left: a digest for each input, and whether two launches of one input have differed.

    ``rows`` are the digests of the rows that each smaller problem of a batch-invariant group has, by problem.
    """

    bits: tuple[str, ...]
    has_differed: bool
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def launch_inputs(
    data: ProblemData,
    launch: Launch,
    synchronize: Callable[[], None],
    own: Sequence[Any],
    inputs: int,
    on_input: Callable[[], None],
) -> LaunchDigests:
    """Launch a config on the first so many inputs, and return what it left.

    ``own`` are digests of outputs that it has left on the problem's own inputs already; ``on_input`` is called before
    each input is launched.
    """
    from ktuned.spec import HARD_FILLS

    digests: list[list[Any]] = []
    wants_rows = data.has_smaller_batches and inputs > 1
    rows: list[dict[str, Any]] = []
    for number in range(inputs):
        digests.append([] if number else list(own))
        rows.append({})
        with data.holding_inputs(number) as are_other:
            if number and not are_other:
                continue
            on_input()
            launches = 1 if 0 < number <= len(HARD_FILLS) else LAUNCHES
            # The rows of a launch that was judged before were not digested.
            while len(digests[-1]) < launches or (wants_rows and not rows[-1]):
                data.begin_checked_launch()
                launch()
                synchronize()
                digests[-1].append(data.digest_outputs())
                if wants_rows and not rows[-1]:
                    rows[-1] = data.digest_rows()
    read = iter(data.read_digests([one for found in (*digests, *(each.values() for each in rows)) for one in found]))
    texts = [[next(read) for _ in found] for found in digests]
    row_texts = [{problem: next(read) for problem in each} for each in rows]
    return LaunchDigests(
        tuple(found[0] if found else "" for found in texts),
        any(len(set(found)) > 1 for found in texts),
        {problem: tuple(each.get(problem, "") for each in row_texts) for problem in row_texts[0]},
    )


def is_cheap(timed: replies.Measurement, digest_us: float, inputs: int) -> bool:
    """Return whether a config is launched on so many inputs in no time; to bring one takes as long as to digest it."""
    return inputs * LAUNCHES * ((timed.latency_us or 0.0) + 2 * digest_us) <= FREE_US


def add_bits(timed: replies.Measurement, found: LaunchDigests, wanted: requests.SameBits) -> replies.Measurement:
    """Return a measurement with what the launches have left, compared with the anchor's bits."""
    differs = timed.nondeterministic or found.has_differed
    same = False if differs else have_same_bits(found.bits, wanted.anchor) if wanted.anchor else None
    return replace(
        timed, bits=found.bits, row_bits=found.rows or None, same_bits=same, nondeterministic=differs or None
    )

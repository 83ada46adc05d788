"""Exact numerics: digests of a config's outputs on several inputs, and whether its launches agree on them.

The first digest is made of the launch that is judged before timing, so it costs no further launch. It decides which
configs race against each other. Launches on further inputs follow after timing. On inputs of ordinary numbers there are
two launches each: outputs that differ reveal atomics or a race. None of these launches is judged, since no tolerance
says what is right for a denormal or a NaN.

All inputs together take some ten launches and as many digests. So only the anchor, the finalists, and configs so quick
that it does not matter (:data:`FREE_US`) run on all of them. All other configs only have the first digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from ktuned.backends import Launch
from ktuned.checking.problem_data import ProblemData
from ktuned.ipc import requests
from ktuned.model import FrozenStruct, TrialResult, have_same_bits

LAUNCHES = 2
"""Launches of each input of ordinary numbers, to reveal a race. Hard inputs are launched once."""

FREE_US = 5_000.0
"""Time, in µs, that further inputs may take for a config that need not run on them. They show which configs agree."""


class LaunchDigests(FrozenStruct):
    """Digests of what launches left.

    Attributes:
        bits: a digest for each input; empty texts for inputs that the kernel does not have.
        has_differed: whether two launches of the same input have left different bits.
    """

    bits: tuple[str, ...]
    has_differed: bool


def digest_launches_on_inputs(
    data: ProblemData,
    launch: Launch,
    synchronize: Callable[[], None],
    known_digests: Sequence[Any],
    inputs: int,
    on_input: Callable[[], None],
) -> LaunchDigests:
    """Launch a config on several inputs, and return the digests of what it left.

    Args:
        data: the open problem.
        launch: the config's launch on the problem's tensors.
        synchronize: waits for the device.
        known_digests: digests of the outputs that the config has already left on the problem's own inputs.
        inputs: how many inputs to launch on, counted from number 0, the problem's own.
        on_input: called before each input.
    """
    from ktuned.declaration import HARD_FILLS

    pending = [list(known_digests), *([] for _ in range(1, inputs))]
    for number, digests in enumerate(pending):
        with data.use_numbered_inputs(number) as are_other:
            if number and not are_other:
                continue
            on_input()
            launches = 1 if 0 < number <= len(HARD_FILLS) else LAUNCHES
            while len(digests) < launches:
                data.prepare_checked_launch()
                launch()
                synchronize()
                digests.append(data.digest_outputs())
    # Wait for the device only once.
    texts = iter(data.library.read_digests([digest for digests in pending for digest in digests]))
    found = [[next(texts) for _ in digests] for digests in pending]
    return LaunchDigests(
        tuple(digests[0] if digests else "" for digests in found),
        any(len(set(digests)) > 1 for digests in found),
    )


def add_bits(timed: TrialResult, found: LaunchDigests, wanted: requests.SameBits) -> TrialResult:
    """Return a result with the digests of its launches, and whether they equal the anchor's."""
    differs = timed.detail.numerics.nondeterministic or found.has_differed
    same = False if differs else have_same_bits(found.bits, wanted.anchor) if wanted.anchor else None
    return timed.add_facts("numerics", bits=found.bits, same_bits=same, nondeterministic=differs)


class BitsComparison(msgspec.Struct, eq=False):
    """Collects the digests of one config's outputs, and compares them with the anchor's.

    Args:
        data: the open problem's data.
        launch: the config's launch on the problem's tensors.
        wanted: on how many inputs, and what the anchor's digests are.
    """

    data: ProblemData
    launch: Launch
    wanted: requests.SameBits
    _known_digests: list[Any] = []
    _digest_us: float = 0.0

    def digest_last_outputs(self) -> None:
        """Digest the outputs that the last launch has left on the problem's own inputs, before they are poisoned."""
        began = perf_counter()
        self._known_digests.append(self.data.digest_outputs())
        self._digest_us = (perf_counter() - began) * 1e6

    def complete_result(
        self, timed: TrialResult, synchronize: Callable[[], None], on_input: Callable[[], None]
    ) -> TrialResult:
        """Add the digests of a timed config's outputs, on all inputs if that is wanted or takes next to no time."""
        inputs = self.wanted.inputs
        # Copying an input into place takes as long as digesting it.
        takes_us = inputs * LAUNCHES * ((timed.latency_us or 0.0) + 2 * self._digest_us)
        if not self.wanted.on_all_inputs and takes_us > FREE_US:
            inputs = 1
        digests = digest_launches_on_inputs(self.data, self.launch, synchronize, self._known_digests, inputs, on_input)
        return add_bits(timed, digests, self.wanted)

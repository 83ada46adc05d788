"""States of kernels that no daemon has made, for tests of the ladder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ktuned.answers.kernel_state import KernelState, Place
from ktuned.fleet import Environment
from ktuned.model.device import Device
from ktuned.model.kernel import KernelInfo
from ktuned.model.keys import DeviceName, Target
from ktuned.store.contexts import Context
from ktuned.store.winners import Winner


def make_state(kernel: KernelInfo, winners: Iterable[Winner], context: Context | None, **facts: Any) -> KernelState:
    """Return the state of a kernel with some winners, on the device of a context; with None, the device is gone."""
    places = (
        () if context is None else (Place(Device(DeviceName("cpu:0"), context.device, Target("x86")), context, ""),)
    )
    nothing: dict[str, Any] = {
        "measured": {},
        "best_us": {},
        "artifacts": {},
        "anchors": {},
        "verdicts": {},
        "failed": frozenset(),
        "failed_jobs": {},
    }
    return KernelState(
        kernel=kernel,
        environment=Environment("python", "/p"),
        fault="",
        suspicion="",
        notice="",
        places=tuple(places),
        winners={winner.key: winner for winner in winners},
        **{**nothing, **facts},
    )

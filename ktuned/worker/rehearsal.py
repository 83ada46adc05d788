"""A problem of a few numbers, which a spare opens on its GPU: it loads there what every problem needs.

A GPU's libraries load each of their kernels when it is first used: 20 ms for each of some twenty, as much as a lane
that lost its worker may take in all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ktuned.model import Device, KernelFileError
from ktuned.spec import kernel, space, tensor
from ktuned.worker.problem import ProblemData

_SIDE = 16
"""As little as loads them: the lanes of the GPU wait meanwhile."""


@kernel(
    backend="none",
    space=space(side=[_SIDE]),
    inputs=lambda p: dict(
        half=tensor((_SIDE, _SIDE), "float16"),
        single=tensor((_SIDE, _SIDE)),
        product=tensor((_SIDE, _SIDE), output=True),
    ),
    reference=lambda half, single: dict(product=half.float() @ single),
)
def rehearsed(p: Any, c: Any) -> Any:
    """Return nothing: no config of it is ever built."""


def rehearse_problem(device: Device) -> None:
    """Open the problem on a device, judge its expected outputs as a trial's are judged, and give the memory back.

    Raises:
        RuntimeError: the device refuses, for example for want of memory.
    """
    import torch

    _open_problem(device)
    torch.cuda.empty_cache()


def _open_problem(device: Device) -> None:
    try:
        data = ProblemData(rehearsed, {}, device)
        data.provide_expected_outputs(Path(os.devnull))
    except KernelFileError as error:
        raise error.__cause__ or error from None
    data.rehearse_judging()

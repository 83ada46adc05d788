"""Rehearsal: a tiny problem that a spare worker opens on its GPU, to load what every problem needs.

A GPU's libraries load each of their kernels on its first use. That takes 20 ms for each of some twenty kernels, which
is all the time that a lane may take to replace a lost worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ktuned.checking import ProblemData
from ktuned.model import Device, KernelFileError
from ktuned.spec import kernel, space, tensor

_SIDE = 16
"""Rows and columns: just enough to load the kernels, because the GPU's lanes wait for the rehearsal."""


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
    """Return nothing: no config of this kernel is ever built."""


def rehearse_problem(device: Device) -> None:
    """Open the problem on a device, judge its outputs once as a trial does, and free the memory.

    Raises:
        RuntimeError: the device refuses, for example because its memory is short.
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

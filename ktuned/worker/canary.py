"""Canary: something tiny that runs on a device, to see whether it still works after a worker on it was killed.

A spare worker also *rehearses*: it opens a tiny problem on its GPU, to load what every problem needs. A GPU's libraries
load each of their kernels on its first use. That takes 20 ms for each of some twenty kernels, which is all the time
that a lane may take to replace a lost worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

from ktuned.checking import ProblemData, require_free_memory_for_spare
from ktuned.declaration import kernel, space, tensor
from ktuned.ipc import replies, requests
from ktuned.measuring import is_device_free
from ktuned.model import Device, KernelFileError

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


def run_canary(request: requests.Canary) -> replies.DeviceSeen:
    """Run something tiny on a device; a CPU needs no more than the answer. A spare rehearses as well.

    Raises:
        RuntimeError: the device fails, or has too little memory for a spare.
    """
    if request.device.kind == "cpu":
        return replies.DeviceSeen()
    if request.warms_up:
        require_free_memory_for_spare(request.device.name)
    import torch

    numbers = torch.arange(8, device=request.device.name)
    total = int(numbers.sum())
    if total != 28:
        raise RuntimeError(f"{request.device.name} counts 0 + … + 7 as {total}")
    if request.warms_up:
        rehearse_problem(request.device)
    began = monotonic()
    is_free = not request.looks or is_device_free(request.device.name, request.looks)
    return replies.DeviceSeen(0.0 if is_free else monotonic() - began)


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

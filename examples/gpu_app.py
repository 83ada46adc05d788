"""Application that launches the tuned GEMM with torch, the CUDA driver, and the artifact of a lookup.

Run it after ``ktuned tune examples/gpu_gemm``. Of ktuned it needs the client; of the artifact it needs
``kernel.cubin`` and the launch parameters in ``kernel.json``.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch
from cuda.bindings import driver

from ktuned_client import Client

PROBLEM = {"M": 4096, "N": 4096, "K": 4096}


def main() -> None:
    """Multiply once, and print the config and the difference from torch."""
    # A second is affordable once, at the start; elsewhere the default deadline of 5 ms suffices.
    hit = Client(deadline_s=1.0).lookup("gpu_gemm:gemm", PROBLEM)
    if hit.artifact is None:
        raise SystemExit(f"nothing to launch yet ({hit.status}); first: ktuned tune examples/gpu_gemm")
    a, b = (torch.rand(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty(4096, 4096, device="cuda")
    multiply(Path(hit.artifact), a, b, c)
    error = (c - a.float() @ b.float()).abs().max().item()
    print(f"{hit.status} {hit.config} {hit.latency_us:.1f} us, largest difference from torch {error:.2g}")


def multiply(artifact: Path, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """Launch the artifact's kernel on torch's current stream: c = a @ b.

    Raises:
        RuntimeError: the driver refuses; the message is its error.
    """
    how = json.loads((artifact / "kernel.json").read_text())
    module = _done(driver.cuModuleLoadData((artifact / "kernel.cubin").read_bytes()))
    kernel = _done(driver.cuModuleGetFunction(module, how["lowered"].encode()))
    more_shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _done(driver.cuFuncSetAttribute(kernel, more_shared, how["shared_bytes"]))
    values = (a.data_ptr(), b.data_ptr(), c.data_ptr(), a.shape[0], b.shape[1], a.shape[1])
    types = (ctypes.c_void_p,) * 3 + (ctypes.c_int,) * 3
    stream = torch.cuda.current_stream().cuda_stream
    _done(driver.cuLaunchKernel(kernel, *how["grid"], *how["block"], how["shared_bytes"], stream, (values, types), 0))


def _done(result: tuple[object, ...]) -> object:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver: {result[0]}")
    return result[1] if len(result) > 1 else None


if __name__ == "__main__":
    main()

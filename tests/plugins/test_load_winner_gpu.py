"""``hit.load()`` on a GPU, with the same two lines for each backend that has kernels there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ktuned.backends import Absent, Registry
from tests.e2e.harness import Daemon

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DIRECTORY = Path(__file__).parent
SIZE = 1000

COMMON_CODE = """
from ktuned import kernel, space, tensor

def inputs(p):
    return dict(x=tensor((p.n,)), y=tensor((p.n,), output=True))

def twice(x, y):
    return dict(y=2 * x)

def tuned(backend, **options):
    return kernel(backend=backend, problems=[dict(n=1000)], inputs=inputs, reference=twice, preset="fast", **options)
"""

KERNEL_FILES = {
    "triton": """
import triton
import triton.language as tl
from ktuned_triton import Build

@triton.jit
def scale(x, y, size, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < size) * factor, mask=offsets < size)

@tuned("triton", space=space(BLOCK=[128, 256]), name="by_triton")
def by_triton(p, c):
    return Build(scale, ("x", "y", p.n, 2.0), dict(c), grid=(triton.cdiv(p.n, c.BLOCK),))
""",
    "nvrtc": """
from ktuned_nvrtc import Build

@tuned("nvrtc", space=space(TILE=[1, 2]), sources=["scale.cu"], name="by_nvrtc")
def by_nvrtc(p, c):
    return Build(f"scale<float, {c.TILE}>", ("x", "y", 2.0, p.n), grid=(-(-p.n // 256),), block=(256,))
""",
    "cutedsl": """
import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from ktuned_cutedsl import Build

@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    index = block * threads + thread
    if index < cute.size(x):
        y[index] = x[index] * factor

@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, stream: CUstream, THREADS: cutlass.Constexpr = 128):
    scale_kernel(x, y, factor).launch(
        grid=(cute.ceil_div(cute.size(x), THREADS), 1, 1), block=(THREADS, 1, 1), stream=stream
    )

@tuned("cutedsl", space=space(THREADS=[64, 128]), name="by_cutedsl")
def by_cutedsl(p, c):
    return Build(function=scale, args=("x", "y", 2.0), constants=dict(c))
""",
    "tvm_ffi_cuda": """
from ktuned_tvm_ffi import Build

@tuned("tvm_ffi", space=space(THREADS=[64, 128]), sources=["twice.cu"], name="by_tvm_ffi_cuda")
def by_tvm_ffi_cuda(p, c):
    return Build("twice", ("x", "y", c.THREADS))
""",
    "torch": """
import torch
import ktuned_torch

def write_twice(x, factor, y):
    torch.mul(x, factor, out=y)

@tuned("torch", space=space(F=[2]), name="by_torch")
def by_torch(p, c):
    return ktuned_torch.Build(function=write_twice, args=("x", c.F), kwargs=dict(y="y"))
""",
}

TWICE_SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

__global__ void twice_each(const float* x, float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = 2 * x[i];
}

void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t threads) {
  const DLDevice device = x.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  twice_each<<<(x.numel() + threads - 1) / threads, threads, 0, stream>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.numel());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, twice);
"""

APPLICATION = """
import sys
import torch
from ktuned_client import Client

x, y = torch.rand(1000, device="cuda"), torch.empty(1000, device="cuda")
before = set(sys.modules)
hit = Client(deadline_s=10.0).lookup(sys.argv[1], {"n": 1000})
call = hit.load()
call(x=x, y=y)
print(hit.status, sorted({"triton", "cutlass"} & set(sys.modules) - before))
torch.testing.assert_close(y, 2 * x)
"""

COMPILER_MODULES = {"triton": "triton", "cutedsl": "cutlass", "tvm_ffi_cuda": "tvm_ffi"}
"""The modules that backends compile with, if not every machine with a GPU has them."""


def explain_missing_backend(backend: str) -> str:
    """Return why a backend cannot be tested here, or an empty string."""
    module = COMPILER_MODULES.get(backend)
    if module is not None and find_spec(module) is None:
        return f"{module} is not installed"
    devices = Registry().load(backend).devices()
    return devices.message if isinstance(devices, Absent) else ""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for all tests of this module."""
    with Daemon(tmp_path_factory.mktemp("load"), tensors="torch", spares=True) as running:
        # Its connection is the fixture's, and no test's leak.
        running.client.lookup("none", {})
        yield running


@pytest.fixture(scope="module", params=KERNEL_FILES)
def kernel(request: pytest.FixtureRequest, daemon: Daemon) -> str:
    """The name of a tuned kernel, one for each backend."""
    backend: str = request.param
    if reason := explain_missing_backend(backend):
        pytest.skip(reason)
    path = daemon.write_kernel(COMMON_CODE + KERNEL_FILES[backend], f"tune_{backend}.py")
    for source in ("scale.cu", "scale.cuh"):
        shutil.copy(DIRECTORY / source, path.parent)
    (path.parent / "twice.cu").write_text(TWICE_SOURCE)
    _, jobs = daemon.tune(path=path)
    assert [job["state"] for job in jobs] == ["done"], [(job["message"], job["outcomes"]) for job in jobs]
    assert set(jobs[0]["outcomes"]) <= {"measured", "slower"}, jobs
    return f"by_{backend}"


def test_a_winner_is_called_with_its_tensors(daemon: Daemon, kernel: str) -> None:
    """Calls by name, in order, or bound once all work, in torch's current stream and in a graph."""
    call = daemon.client.lookup(kernel, {"n": SIZE}).load()
    x = torch.rand(SIZE, device="cuda")
    for call_style in ("named", "in order", "bound"):
        y = torch.empty_like(x)
        if call_style == "named":
            call(x=x, y=y)
        elif call_style == "in order":
            call(x, y)
        else:
            call.bind(x, y=y)()
        torch.testing.assert_close(y, 2 * x)
    y, launch = torch.zeros_like(x), None
    launch = call.bind(x=x, y=y)
    launch()
    torch.cuda.synchronize()
    y.zero_()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
        launch()
        assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(y, 2 * x)
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, 2 * x)


def test_another_process_loads_a_winner_and_compiles_nothing(daemon: Daemon, kernel: str) -> None:
    """No compiler's package is imported."""
    command = [sys.executable, "-c", APPLICATION, kernel]
    process = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "fresh []"

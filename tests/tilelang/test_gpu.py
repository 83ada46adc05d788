"""TileLang's kernels on a GPU: each execution backend loads, computes and is timed without compiling."""

from pathlib import Path

import pytest
import torch

from ktuned.backends import Absent, cuda_devices
from ktuned.model import Device
from ktuned_tilelang import TileLang, load
from tests.tilelang.kernels import EXAMPLE, SIZE, build, inputs, verify

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Device:
    """Return the first GPU."""
    found = cuda_devices()
    assert not isinstance(found, Absent)
    return found[0]


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_a_lane_loads_and_launches_it(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """It writes into the tensors that it is given."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    tensors = inputs("cuda:0")
    launch = TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)
    assert launch() is None
    torch.cuda.synchronize()
    verify(tensors)


@pytest.mark.parametrize("execution_backend", ["nvrtc", "tvm_ffi", "cython"])
def test_an_application_gets_tilelangs_kernel(execution_backend: str, gpu: Device, tmp_path: Path) -> None:
    """With its output index, for any size where the shape is symbolic."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale_any", execution_backend), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    kernel = load(tmp_path / "key")
    for size in (SIZE, 1000):
        x = torch.arange(float(size), device="cuda:0")
        assert torch.equal(kernel(x), 3 * x)


def test_cutedsl_is_compiled_ahead_of_time(gpu: Device, tmp_path: Path) -> None:
    """Its cubin is in the artifact."""
    (tmp_path / "key").mkdir()
    unit = EXAMPLE.unit("key", build("scale", "cutedsl"), gpu.target)
    (result,) = TileLang().compile([unit], tmp_path)
    if result.outcome is not None and "is not available" in result.message:
        pytest.skip(result.message.splitlines()[0])
    assert result.outcome is None, result.message
    tensors = inputs("cuda:0")
    TileLang().load(tmp_path / "key", unit, gpu).bind(tensors)()
    torch.cuda.synchronize()
    verify(tensors)

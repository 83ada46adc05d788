"""The nvrtc backend on a GPU: arguments arrive, launches run correctly, impossible launches are refused first."""

import json
import struct as packing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends.contract import Launch, Unit
from ktuned.model.errors import Unsupported
from ktuned_nvrtc import Build, Nvrtc, NvrtcKernel, bf16, f16, f32, fields, i8, i16, pointer, struct, texture, u16
from tests.plugins import scale
from tests.plugins.examples_on_gpus import find_first_gpu, run_python

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("launches.cu")

LoadKernel = Callable[..., NvrtcKernel]


@pytest.fixture(scope="module")
def get_artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns each kernel's artifact; all kernels are one program."""
    into = tmp_path_factory.mktemp("launches")
    names = ("scalars", "last_of_shared", "cluster_sizes", "at_most_128_threads", "plain", "add_one")
    builds = {name: Build(name) for name in (*names, "through_pointers", "through_textures")}
    builds["sum_of_constants"] = Build("sum_of_constants", constants={"weights": "w", "tables::steps": "s"})
    units = [
        Unit(name, build, (SOURCE,), SOURCE, name, find_first_gpu(Nvrtc()).target) for name, build in builds.items()
    ]
    for unit in units:
        (into / unit.key).mkdir()
    for result in Nvrtc().compile(units, into):
        assert result.outcome is None, result.message
    return lambda name: into / name


@pytest.fixture
def load_kernel(get_artifact: Callable[[str], Path]) -> LoadKernel:
    """Return a function that loads a kernel to be launched as a Build says."""

    def load_kernel(build: Build) -> NvrtcKernel:
        return Nvrtc().load(
            get_artifact(build.entry),
            Unit("key", build, (SOURCE,), SOURCE, "k", find_first_gpu(Nvrtc()).target),
            find_first_gpu(Nvrtc()),
        )

    return load_kernel


def make_zeros(count: int, dtype: str = "int32") -> Any:
    """Return zeros on the GPU."""
    import torch

    return torch.zeros(count, dtype=getattr(torch, dtype), device=find_first_gpu(Nvrtc()).name)


def test_scalars_of_every_type_arrive(load_kernel: LoadKernel) -> None:
    """The types are bool, all integers, float, double, both halves and a structure."""
    import torch

    pair = struct(packing.pack("<i4xd", 7, 0.125))
    integers = (True, i8(-5), u16(60000), -70000, 4_000_000_000, -(1 << 40), 1 << 50)
    args = ("out", *integers, f32(3), 0.1, f16(1.5), bf16(2.5), pair)
    out = make_zeros(13, "float64")
    load_kernel(Build("scalars", args)).bind({"out": out})()
    halves = [torch.tensor(1.5, dtype=torch.float16), torch.tensor(2.5, dtype=torch.bfloat16)]
    bits = [half.view(torch.int16).item() for half in halves]
    expected = [1, -5, 60000, -70000, 4e9, -(2.0**40), 2.0**50, 3, 0.1, *bits, 7, 0.125]
    assert out.tolist() == expected


def test_constants_are_copied_into_their_variables(load_kernel: LoadKernel) -> None:
    """Variables may be `__constant__` arrays and lie in namespaces; binding another tensor copies it."""
    import torch

    build = Build("sum_of_constants", ("out",), constants={"weights": "w", "tables::steps": "s"})
    kernel, out = load_kernel(build), make_zeros(1, "float32")
    steps = torch.tensor([10, 20, 30], dtype=torch.int32, device=find_first_gpu(Nvrtc()).name)
    for weights, expected in (([1.0, 2.0, 3.0, 4.0], 70.0), ([5.0, 5.0, 5.0, 5.0], 80.0)):
        kernel.bind({"out": out, "w": torch.tensor(weights, device=find_first_gpu(Nvrtc()).name), "s": steps})()
        assert out.item() == expected
    with pytest.raises(ValueError, match="'w' has 20 bytes, and its variable 16"):
        kernel.bind({"out": out, "w": make_zeros(5, "float32"), "s": steps})
    with pytest.raises(KeyError, match="'s'"):
        kernel.bind({"out": out, "w": make_zeros(4, "float32")})


def test_pointers_have_offsets_and_structures_hold_them(load_kernel: LoadKernel) -> None:
    """A structure is laid out as in C, with a pointer between members of other sizes."""
    import torch

    data, out = torch.arange(8, dtype=torch.int32, device=find_first_gpu(Nvrtc()).name), make_zeros(2, "float32")
    view = fields(i16(3), pointer("data", 8), f32(0.5))
    load_kernel(Build("through_pointers", ("out", pointer("data", 16), view))).bind({"out": out, "data": data})()
    assert out.tolist() == [4.0, 9.5]
    with pytest.raises(ValueError, match="past the end of data"):
        load_kernel(Build("through_pointers", ("out", pointer("data", 64), view))).bind({"out": out, "data": data})


def test_textures_are_made_of_tensors(load_kernel: LoadKernel) -> None:
    """Linear memory is read as it is; rows are filtered and clamped at their edges."""
    import torch

    line = torch.arange(8, dtype=torch.int32, device=find_first_gpu(Nvrtc()).name)
    image = torch.arange(128, dtype=torch.float32, device=find_first_gpu(Nvrtc()).name).reshape(2, 64)
    args = ("out", texture("line"), texture("image", filter_mode="linear"))
    out = make_zeros(3, "float32")
    load_kernel(Build("through_textures", args)).bind({"out": out, "line": line, "image": image})()
    assert out.tolist() == [3.0, 64.5, 63.0]
    with pytest.raises(ValueError, match="no texture can be made of line"):
        load_kernel(Build("through_textures", args)).bind({"out": out, "line": line.double(), "image": image})


def test_the_parameters_sizes_are_the_kernels(load_kernel: LoadKernel) -> None:
    """They are those of the C compiler, with the structure's padding."""
    kernel = load_kernel(Build("scalars"))  # its library is unloaded with it
    assert kernel.read_parameter_sizes() == [8, 1, 1, 2, 4, 4, 8, 8, 4, 8, 2, 2, 16]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("out", 1), "args has 2 arguments; plain has 1 parameters"),
        ((), "args has 0 arguments; plain has 1 parameters"),
        ((f32(1.0),), "argument 1 of plain: f32 has 4 bytes, the parameter has 8"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: tuple[Any, ...], message: str, load_kernel: LoadKernel) -> None:
    """A launch with wrong arguments would read foreign memory."""
    with pytest.raises(ValueError, match=message):
        load_kernel(Build("plain", args)).bind({"out": make_zeros(1)})


def test_a_missing_tensor_is_a_key_error(load_kernel: LoadKernel) -> None:
    """The message lists the tensors."""
    with pytest.raises(KeyError, match=r"'out', which inputs.p. does not make .there are: x"):
        load_kernel(Build("plain", ("out",))).bind({"x": make_zeros(1)})


@pytest.mark.parametrize("kib", [1, 48, 49, 100, 227])
def test_dynamic_shared_memory_may_exceed_48_kib(kib: int, load_kernel: LoadKernel) -> None:
    """The kernel writes to the last byte."""
    out = make_zeros(1)
    build = Build("last_of_shared", ("out", kib * 1024), block=(32,), shared_bytes=kib * 1024)
    load_kernel(build).bind({"out": out})()
    assert out.item() == 7 + kib * 256 - 1


@pytest.mark.parametrize("blocks", [2, 8, 16])
def test_clusters_are_launched(blocks: int, load_kernel: LoadKernel) -> None:
    """Sizes may be portable or larger; each block sees its cluster's size."""
    out = make_zeros(32)
    load_kernel(Build("cluster_sizes", ("out",), grid=(32,), cluster=(blocks,))).bind({"out": out})()
    assert out.tolist() == [blocks] * 32


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Build("plain", shared_bytes=300 * 1024), "\\d+ \\+ 307200 bytes of static and dynamic shared memory"),
        (Build("at_most_128_threads", block=(256,)), "a block has 256 threads; .* allows 128"),
        (Build("plain", block=(1024, 2)), "a block has 2048 threads"),
        (Build("plain", block=(1, 1, 65)), "the block is 65 in z; .* allows 64"),
        (Build("plain", grid=(1, 1 << 16)), "the grid is 65536 in y; .* allows 65535"),
        (Build("plain", grid=(6,), cluster=(4,)), "cannot be cut into clusters"),
        (Build("plain", grid=(64,), cluster=(64,)), "a cluster of 64 blocks does not fit"),
    ],
)
def test_what_the_device_cannot_launch_is_unsupported_when_it_is_loaded(
    build: Build, message: str, load_kernel: LoadKernel
) -> None:
    """Nothing has run by then, and the context stays usable."""
    with pytest.raises(Unsupported, match=message):
        load_kernel(build)
    out = make_zeros(1)
    load_kernel(Build("plain", ("out",))).bind({"out": out})()
    assert out.item() == 3


def test_many_kernels_come_and_go(load_kernel: LoadKernel) -> None:
    """A module is unloaded after the last launch that needs it, not before."""
    out = make_zeros(1)
    launches: list[Launch] = []
    for _ in range(200):
        launches = [*launches[-2:], load_kernel(Build("add_one", ("out",))).bind({"out": out})]
        launches[0]()
    assert out.item() == 200


def test_an_application_of_twenty_lines_can_launch_an_artifact(tmp_path: Path) -> None:
    """It needs the artifact's two files, torch and cuda-bindings, and no part of ktuned."""
    unit = Unit("key", scale.EXAMPLE.good, (scale.SOURCE,), scale.SOURCE, "scale", find_first_gpu(Nvrtc()).target)
    (tmp_path / "key").mkdir()
    (result,) = Nvrtc().compile([unit], tmp_path)
    assert result.outcome is None, result.message
    code = """if True:
        import ctypes, json, sys
        from pathlib import Path
        import torch
        from cuda.bindings import driver
        artifact = Path(sys.argv[1])
        how = json.loads((artifact / "kernel.json").read_text())
        x = torch.arange(1000.0, device="cuda")
        y = torch.zeros_like(x)
        _, module = driver.cuModuleLoadData((artifact / "kernel.cubin").read_bytes())
        _, kernel = driver.cuModuleGetFunction(module, how["lowered"].encode())
        values = (x.data_ptr(), y.data_ptr(), 3.0, 1000)
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
        stream = torch.cuda.current_stream().cuda_stream
        sizes = (*how["grid"], *how["block"], how["shared_bytes"])
        (error,) = driver.cuLaunchKernel(kernel, *sizes, stream, (values, types), 0)
        assert error == driver.CUresult.CUDA_SUCCESS, error
        assert torch.equal(y, 3 * x)
    """
    run_python(code, tmp_path / "key")
    assert "ktuned" not in code
    assert json.loads((tmp_path / "key" / "kernel.json").read_text())["grid"] == [2, 1, 1]

"""``hit.load()`` gives the winner as a callable, with the same two lines for each backend."""

import timeit
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ktuned.backends import load_winner
from ktuned.backends.winner import _fits_strides
from ktuned_client import Client, Hit, LoadError
from tests.e2e.harness import Daemon

KERNEL_FILE = """
from ktuned import kernel, space, tensor
import ktuned_command, ktuned_torch, ktuned_tvm_ffi

def inputs(p):
    return dict(x=tensor((p.n,)), y=tensor((p.n,), output=True))

def reference(x, y):
    return dict(y=2 * x)

@kernel(backend="tvm_ffi", sources=["twice.cc"], space=space(F=[2]), problems=[dict(n=64)], inputs=inputs,
        reference=reference, preset="fast")
def compiled(p, c):
    return ktuned_tvm_ffi.Build(function="twice", args=("x", "y"), defines=dict(FACTOR=c.F))

def write_twice(x, factor, y):
    y.copy_(x * factor)

@kernel(backend="torch", space=space(F=[2]), problems=[dict(n=64)], inputs=inputs, reference=reference, preset="fast",
        specialize=())
def eager(p, c):
    return ktuned_torch.Build(function=write_twice, args=("x", c.F), kwargs=dict(y="y"))

@kernel(backend="command", space=space(F=[2]), problems=[dict(n=1)], check=None, preset="fast", depends=["*.none"])
def told(p, c):
    return ktuned_command.Build(argv=("echo", "took", c.F, "ms"), pattern=r"took (\\d+)")
"""

SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.data_ptr())[i] = FACTOR * static_cast<const float*>(x.data_ptr())[i];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, twice);
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has tuned one kernel of each backend that needs no GPU."""
    with Daemon(tmp_path_factory.mktemp("load"), tensors="torch") as daemon:
        path = daemon.write_kernel(KERNEL_FILE)
        path.with_name("twice.cc").write_text(SOURCE)
        _, jobs = daemon.tune(path=path)
        assert [job["state"] for job in jobs] == ["done"] * 3, jobs
        # Its connection is the fixture's, and no test's leak.
        daemon.client.lookup("none", {})
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Client:
    """The client of an application."""
    return daemon.client


@pytest.mark.parametrize("kernel", ["compiled", "eager"])
def test_a_winner_is_called_with_its_tensors(client: Client, kernel: str) -> None:
    """Tensors are passed by name, in order, or bound once for many calls; only the artifact decides what runs."""
    call = client.lookup(kernel, {"n": 64}).load()
    x = torch.rand(64)
    for is_named, is_bound in ((True, False), (False, False), (False, True)):
        y = torch.empty(64)
        if is_bound:
            call.bind(x, y=y)()
        elif is_named:
            call(x=x, y=y)
        else:
            call(x, y)
        torch.testing.assert_close(y, 2 * x)


def test_a_program_is_run(client: Client) -> None:
    """The callable takes no arguments and returns the printed time in µs."""
    assert client.lookup("told", {"n": 1}).load()() == 2000.0


@pytest.mark.parametrize(
    ("args", "tensors", "words"),
    [((), ("x",), "lacks the tensor y"), ((), ("x", "y", "z"), "no such tensor"), ((0,), ("x", "y"), "got it twice")],
)
def test_wrong_tensors_are_named(client: Client, args: tuple[int, ...], tensors: tuple[str, ...], words: str) -> None:
    """A tensor may be missing, unknown or given twice."""
    call = client.lookup("compiled", {"n": 64}).load()
    with pytest.raises(TypeError, match=words):
        call(*args, **dict.fromkeys(tensors, torch.empty(64)))


def test_without_a_winner_there_is_the_default_or_a_reason(client: Client) -> None:
    """A problem that was never tuned has no compiled winner."""
    hit = client.lookup("compiled", {"n": 65})
    with pytest.raises(LoadError, match="no winner to load for n=65: the answer is 'near': the winner is another"):
        hit.load()
    assert hit.load(default=torch.add) is torch.add


def test_another_problems_winner_is_not_launched_for_this_one(client: Client) -> None:
    """If ``specialize`` omits a key, the launch may differ: the answer names the measured problem."""
    hit = client.lookup("eager", {"n": 100})
    assert (hit.status, hit.measured) == ("fresh", {"n": 64})
    with pytest.raises(LoadError, match="measured for n=64"):
        hit.load()


@pytest.mark.parametrize("kernel", ["compiled", "eager"])
def test_a_winner_refuses_other_tensors(client: Client, kernel: str) -> None:
    """Another dtype would give a wrong result, and a shorter tensor would be read past its end."""
    call = client.lookup(kernel, {"n": 64}).load()
    x, y = torch.rand(64), torch.empty(64)
    with pytest.raises(TypeError, match="x is float64, and the winner was measured with float32"):
        call(x.double(), y)
    for run in (call, call.bind):
        with pytest.raises(ValueError, match=r"y has the shape \(100,\), and the problem has \(64,\)"):
            run(x=x, y=torch.empty(100))
    with pytest.raises(ValueError, match="x is on meta, and the winner was loaded for cpu:0"):
        call(torch.empty(64, device="meta"), y)
    call(x, y)
    assert torch.equal(y, 2 * x)


def test_a_compiled_winner_refuses_views(client: Client) -> None:
    """A kernel that was compiled for contiguous tensors reads a view's neighbours; a function of torch does not."""
    call, eager = (client.lookup(kernel, {"n": 64}).load() for kernel in ("compiled", "eager"))
    y, strided = torch.empty(64), torch.rand(128)[::2]
    for run in (call, call.bind):
        with pytest.raises(ValueError, match=r"x has the strides \(2,\), and the winner was measured with \(1,\)"):
            run(strided, y)
    with pytest.raises(ValueError, match=r"x has the strides \(2,\)"):
        call(strided.numpy(), y.numpy())
    eager(strided, y)
    assert torch.equal(y, 2 * strided)
    call(strided.contiguous().numpy(), y)
    assert torch.equal(y, 2 * strided)


def test_what_is_no_writable_tensor_is_refused(client: Client) -> None:
    """A list and a read-only array each get one line that names them."""
    call = client.lookup("compiled", {"n": 64}).load()
    x, y = np.zeros(64, "float32"), np.empty(64, "float32")
    for _ in range(2):
        with pytest.raises(TypeError, match="x is a list, not a tensor"):
            call([0.0] * 64, y)
    call(x, y)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="x is a read-only array: pass a copy of it"):
        call(x, y)


def test_an_artifact_that_is_loaded_for_any_size_checks_the_rest(client: Client) -> None:
    """The number of dimensions and the dtypes are those that it was measured with."""
    hit = client.lookup("eager", {"n": 32})
    call = load_winner(str(hit.artifact), hit.file)
    x, y = torch.rand(32), torch.empty(32)
    call(x, y)
    assert torch.equal(y, 2 * x)
    with pytest.raises(ValueError, match=r"x has the shape \(4, 8\), and the problem has \(any,\)"):
        call(x.view(4, 8), y)
    with pytest.raises(TypeError, match="float16"):
        call(x.half(), y)


@pytest.mark.parametrize(
    ("known", "shape", "strides", "fits"),
    [
        (((4, 8), (8, 1)), (4, 8), (8, 1), True),
        (((4, 8), (8, 1)), (4, 8), (1, 4), False),
        (((4, 8), (1, 4)), (4, 8), (1, 4), True),
        (((4, 8), (1, 4)), (4, 8), (8, 1), False),
        (((4, 8), (8, 1)), (1, 8), (99, 1), True),
        (((4, 8), (8, 1)), (2, 16), (16, 1), True),
        (((4, 8), (0, 1)), (4, 8), (0, 1), True),
    ],
)
def test_strides_fit_what_was_measured(
    known: tuple[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], strides: tuple[int, ...], fits: bool
) -> None:
    """A size of 1 needs no stride, and contiguous tensors of other sizes fit each other."""
    assert _fits_strides(shape, strides, ("float32", *known)) is fits


def test_the_check_of_known_shapes_is_cheap(client: Client) -> None:
    """It compares with what was accepted before, in a few microseconds."""
    call = client.lookup("compiled", {"n": 64}).load()
    tensors = {"x": torch.rand(64), "y": torch.empty(64)}
    call(**tensors)
    counted = timeit.repeat(lambda: call._name_tensors((), tensors), number=1000, repeat=5)
    assert min(counted) / 1000 < 50e-6


def test_a_damaged_artifact_is_not_loaded(client: Client) -> None:
    """Its files are compared with its manifest."""
    hit = client.lookup("compiled", {"n": 64})
    file = Path(str(hit.artifact)) / "kernel.so"
    # Another file, because this process has mapped the one that other tests have loaded.
    kept = file.rename(file.with_name("kept"))
    try:
        file.write_bytes(kept.read_bytes()[:-1])
        with pytest.raises(Exception, match="differs from its digest in the manifest"):
            hit.load()
    finally:
        kept.replace(file)


def test_exported_winners_are_loaded_without_a_daemon(daemon: Daemon, tmp_path: Path) -> None:
    """An exported artifact holds all that a call needs; a function of a kernel file is not exported."""
    process = daemon.run_ktuned(
        "export", "--all", str(tmp_path / "winners"), "--with-artifacts", str(tmp_path / "artifacts")
    )
    assert process.returncode == 0, process.stderr
    offline_client = Client(str(tmp_path / "no.sock"), winners=tmp_path / "winners")
    x, y = torch.rand(64), torch.empty(64)
    exported = offline_client.lookup("compiled", {"n": 64})
    assert isinstance(exported, Hit)
    with pytest.raises(LoadError, match=r"is 'stale': from .*: not checked against .*; load\(stale=True\) loads it"):
        exported.load()
    exported.load(stale=True)(x, y)
    torch.testing.assert_close(y, 2 * x)

"""Candidates on a GPU, through a real bench worker: honest ones are right, and dishonest ones are found out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from ktuned.backends import Absent, cuda_devices
from ktuned.model import JudgeVerdict, TrialResult
from ktuned.tuning.limits import merge_deadlines
from tests.judging.court import Court, open_court

pytestmark = pytest.mark.gpu

N = 1 << 16

START = """
import ctypes, gc, os, sys, threading, time
import torch

def compute(x, y, out):
    torch.addcmul(x, x, y, out=out)

def compile_kernel(body, arguments="const float* x, const float* y, float* out, int n"):
    source = 'extern "C" __global__ void it(' + arguments + ") {" + body + "}"
    return torch.cuda._compile_kernel(source, "it")

count = 0
known = {}
"""
"""What each candidate begins with."""

HONEST = {
    "one kernel": "def run(x, y, out):\n    compute(x, y, out)\n",
    "two streams that are joined": """
        side = []
        def run(x, y, out):
            side[:] = side or [torch.cuda.Stream()]
            half, main = x.numel() // 2, torch.cuda.current_stream()
            side[0].wait_stream(main)
            with torch.cuda.stream(side[0]):
                compute(x[half:], y[half:], out[half:])
            compute(x[:half], y[:half], out[:half])
            main.wait_stream(side[0])
        """,
    "workspace of its own": """
        def run(x, y, out):
            product = torch.empty_like(x)
            torch.mul(x, y, out=product)
            torch.add(product, x, out=out)
        """,
    "adds atomically": """
        places = []
        def run(x, y, out):
            places[:] = places or [torch.arange(x.numel(), device=x.device).repeat(2)]
            out.zero_()
            out.index_add_(0, places[0], torch.cat([x * y, x]))
        """,
    "persistent kernel": """
        kernel = []
        def run(x, y, out):
            kernel[:] = kernel or [compile_kernel(
                "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
                " out[i] = x[i] * y[i] + x[i];")]
            kernel[0]((132, 1, 1), (256, 1, 1), (x, y, out, x.numel()))
        """,
    "waits for the GPU": """
        def run(x, y, out):
            compute(x, y, out)
            out[0].item()
        """,
    "graph for each address": """
        def run(x, y, out):
            if out.data_ptr() not in known:
                compute(x, y, out)
                torch.cuda.synchronize()
                known[out.data_ptr()] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(known[out.data_ptr()]):
                    compute(x, y, out)
            known[out.data_ptr()].replay()
        """,
    "many small kernels": """
        def run(x, y, out):
            out.copy_(x)
            for part in range(8):
                out[part::8].mul_(y[part::8])
            out.add_(x)
        """,
}

WRONG, CHEATING, CRASHED, HUNG = JudgeVerdict.WRONG, JudgeVerdict.CHEATING, JudgeVerdict.CRASHED, JudgeVerdict.HUNG

CHEATS = {
    "nothing": ("def run(x, y, out):\n    pass\n", {WRONG}),
    "replays by address": (
        """
        def run(x, y, out):
            if out.data_ptr() in known:
                out.copy_(known[out.data_ptr()])
            else:
                compute(x, y, out)
                known[out.data_ptr()] = out.clone()
        """,
        {WRONG, CHEATING},
    ),
    "replays by checksum": (
        """
        def run(x, y, out):
            key = x[:8].sum().item()
            if key in known:
                out.copy_(known[key])
            else:
                compute(x, y, out)
                known[key] = out.clone()
        """,
        {WRONG, CHEATING},
    ),
    "replays by count": (
        """
        def run(x, y, out):
            global count
            count += 1
            if count > 20:
                out.copy_(known[count % 20])
            else:
                compute(x, y, out)
                known[count % 20] = out.clone()
        """,
        {WRONG, CHEATING},
    ),
    "drifts": (
        """
        def run(x, y, out):
            global count
            compute(x, y, out)
            count += 1
            if count > 300:
                out[:256] += 1
        """,
        {WRONG},
    ),
    "works in a stream that nobody waits for": (
        """
        side = []
        def run(x, y, out):
            side[:] = side or [torch.cuda.Stream()]
            side[0].wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side[0]):
                torch.cuda._sleep(4000000)
                compute(x, y, out)
        """,
        {WRONG, CHEATING},
    ),
    "works in a thread": (
        """
        def work(x, y, out, stream):
            with torch.cuda.stream(stream):
                time.sleep(0.01)
                compute(x, y, out)
        def run(x, y, out):
            threading.Thread(target=work, args=(x, y, out, torch.cuda.current_stream())).start()
        """,
        {WRONG, CHEATING},
    ),
    "patches what waits": (
        """
        def run(x, y, out):
            # The worker of these tests also imports this module.
            torch.cuda.synchronize = torch.cuda.Stream.synchronize = lambda *_, **__: None
            torch.cuda._sleep(2000000)
            compute(x, y, out)
        """,
        {WRONG, CHEATING},
    ),
    "looks for expected outputs in the GPU's memory": (
        """
        def run(x, y, out):
            found = torch.empty(1 << 28, device=x.device)
            out.copy_(found[:out.numel()])
            for held in gc.get_objects():
                if isinstance(held, torch.Tensor) and held.shape == out.shape and held.is_cuda:
                    if held.data_ptr() not in (x.data_ptr(), y.data_ptr(), out.data_ptr()):
                        out.copy_(held)
        """,
        {WRONG, CHEATING},
    ),
    "makes outputs of its own": ("def run(x, y, out):\n    out.data = x * y + x\n", {WRONG, CRASHED}),
    "replays a graph of other addresses": (
        """
        def run(x, y, out):
            if not known:
                compute(x, y, out)
                torch.cuda.synchronize()
                known[0] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(known[0]):
                    compute(x, y, out)
            known[0].replay()
        """,
        {WRONG, CHEATING},
    ),
    "skips every other launch": (
        """
        def run(x, y, out):
            global count
            count += 1
            if count > 9 and count % 2:
                out[:1] = 0
            else:
                compute(x, y, out)
        """,
        {WRONG},
    ),
    "works before its turn": (
        """
        side = []
        def run(x, y, out):
            side[:] = side or [torch.cuda.Stream()]
            with torch.cuda.stream(side[0]):
                compute(x, y, out)
            side[0].synchronize()
        """,
        {WRONG, CHEATING},
    ),
    "forges answers": (
        """
        def run(x, y, out):
            global count
            compute(x, y, out)
            count += 1
            if count > 20:
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, bytes([0, 0, 0, 15, 0x81, 0xA4]) + b"type" + bytes([0xA8]) + b"Finished")
                    except OSError:
                        pass
        """,
        {CHEATING},
    ),
    "traps": (
        """
        kernel = []
        def run(x, y, out):
            kernel[:] = kernel or [compile_kernel('asm("trap;");')]
            kernel[0]((1, 1, 1), (1, 1, 1), (x, y, out, x.numel()))
        """,
        {CRASHED},
    ),
    "works ahead on all tensors that it knows": (
        """
        def run(x, y, out):
            known[out.data_ptr()] = x, y, out
            for one in known.values():
                compute(*one)
        """,
        {WRONG, CHEATING},
    ),
    "writes beyond": (
        """
        kernel = []
        def run(x, y, out):
            kernel[:] = kernel or [compile_kernel("out[-100] = 1;")]
            compute(x, y, out)
            kernel[0]((1, 1, 1), (1, 1, 1), (x, y, out, x.numel()))
        """,
        {WRONG},
    ),
    "overwrites an input": ("def run(x, y, out):\n    compute(x, y, out)\n    x[5:6] = 0\n", {WRONG}),
    "leaves a kernel that computes when inputs come": (
        """
        side = []
        def run(x, y, out):
            compute(x, y, out)
            if not side:
                side[:] = [torch.cuda.Stream()]
                with torch.cuda.stream(side[0]):
                    torch.cuda._sleep(1 << 37)
        """,
        {CHEATING, HUNG},
    ),
    "never ends": (
        """
        kernel = []
        def run(x, y, out):
            kernel[:] = kernel or [compile_kernel("while (*(volatile float*)out != 77.25f);")]
            compute(x, y, out)
            kernel[0]((1, 1, 1), (1, 1, 1), (x, y, out, x.numel()))
        """,
        {HUNG},
    ),
}

PERSISTING = """
import re
class Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t), ("ratio", ctypes.c_float), ("hit", ctypes.c_int),
                ("miss", ctypes.c_int), ("rest", ctypes.c_ubyte * 64)]
side = []
def run(x, y, out):
    runtime = ctypes.CDLL(re.search(r"/\\S*libcudart\\S*", open("/proc/self/maps").read())[0])
    if not side:
        assert runtime.cudaDeviceSetLimit(6, ctypes.c_size_t(30 << 20)) == 0
        side[:] = [torch.cuda.Stream()]
    window = Window(x.data_ptr(), x.nbytes, 1.0, 2, 1)
    assert runtime.cudaStreamSetAttribute(ctypes.c_void_p(side[0].cuda_stream), 1, ctypes.byref(window)) == 0
    side[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side[0]):
        compute(x, y, out)
    torch.cuda.current_stream().wait_stream(side[0])
"""
"""The GPU's cache is to keep the inputs of the last orders."""

JOINED = PERSISTING.replace("cudaStreamSetAttribute(", "cudaStreamGetAttribute(")


def judge(court: Court, body: str, **options: Any) -> TrialResult:
    """Judge a candidate in Python."""
    return court.judge_function(START + textwrap.dedent(body), **{"n": N, **options})


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    """A worker that all tests here share."""
    devices = cuda_devices()
    assert not isinstance(devices, Absent)
    with open_court(tmp_path_factory.mktemp("court"), device=devices[0]) as court:
        court.deadlines = merge_deadlines({"first_launch": 3.0})
        yield court


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_function_is_right(court: Court, name: str) -> None:
    result = judge(court, HONEST[name])
    assert result.detail.judged.verdict == JudgeVerdict.RIGHT, result.message
    assert result.latency_us is not None


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_not_right(court: Court, name: str) -> None:
    body, expected = CHEATS[name]
    result = judge(court, body)
    assert result.detail.judged.verdict in expected, result.message
    assert result.latency_us is None


def test_a_cache_that_persists_gains_nothing(court: Court) -> None:
    honest, persisting = (judge(court, body, n=1 << 22).latency_us for body in (JOINED, PERSISTING))
    assert honest is not None
    assert persisting is None or persisting > 0.8 * honest

"""A real bench worker that judges candidates: C++ sources, or functions of torch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ktuned.backends import cpu
from ktuned.ipc import JOURNAL_VARIABLE, Journal, Places, frames, replies, requests
from ktuned.model import PRESETS, Device, Peaks, Plan, Problem, Role, TrialResult
from ktuned.tuning.limits import merge_deadlines

PROJECT = "court"
SOURCE = "candidates.cc"

HEADER = """
#include <tvm/ffi/tvm_ffi.h>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <unistd.h>
#include <vector>
using tvm::ffi::TensorView;
inline float* at(TensorView t) { return static_cast<float*>(t.data_ptr()); }
"""
"""What the library of all candidates in C++ begins with."""

KERNEL_FILE = """
import torch
from ktuned import kernel, space, tensor
from ktuned_{backend} import Build

def reference(x, y):
    return x * y + x

{before}
@kernel(backend={backend!r}, sources={sources!r}, space=space(n=[1]), problems=[dict(n=1)], {declared})
def it(p, c):
    return Build({build})
"""

INPUTS = "inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n), out=tensor(p.n, output=True)), reference=reference"


class Court:
    """A worker, and a directory with kernel files for it."""

    def __init__(self, root: Path, scratch: Path, pid: int, read_fd: int, write_fd: int, device: Device) -> None:
        self.root = root
        self.scratch = scratch
        self.pid = pid
        self.device = device
        self.peaks: Peaks | None = None
        self.deadlines = merge_deadlines()
        self._read_fd, self._write_fd = read_fd, write_fd
        self._decoder = frames.Decoder()
        self._messages: list[bytes] = []
        self._numbers = itertools.count()
        self._library: str | None = None

    def write_candidates(self, bodies: Mapping[str, str], common: str = "") -> None:
        """Write candidates in C++, each of which defines ``run(TensorView x, TensorView y, TensorView out)``.

        They are one library, because compiling each by itself would take most of the time.
        """
        candidates = "".join(
            f"namespace {name} {{\n{textwrap.dedent(body)}\n}}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name}::run);\n"
            for name, body in bodies.items()
        )
        (self.root / SOURCE).write_text(HEADER + common + candidates)

    def judge_source(self, name: str, *, n: int = 2048, is_quick: bool = True, declared: str = INPUTS) -> TrialResult:
        """Judge one of the candidates in C++ on ``n`` elements."""
        build = f"{name!r}, args=('x', 'y', 'out')"
        return self.judge_kernel(
            KERNEL_FILE.format(backend="tvm_ffi", sources=(SOURCE,), build=build, declared=declared, before=""),
            {"n": n},
            is_quick=is_quick,
        )

    def judge_function(
        self, body: str, *, n: int = 2048, is_quick: bool = True, is_judged: bool = True, declared: str = INPUTS
    ) -> TrialResult:
        """Judge a module of Python that defines ``run(x, y, out)``, on torch's tensors of ``n`` elements."""
        module = f"candidate_{next(self._numbers)}"
        (self.root / f"{module}.py").write_text(textwrap.dedent(body))
        build = f"'{module}:run', args=('x', 'y', 'out')"
        return self.judge_kernel(
            KERNEL_FILE.format(backend="torch", sources=(), build=build, declared=declared, before=""),
            {"n": n},
            is_quick=is_quick,
            is_judged=is_judged,
        )

    def judge_kernel(
        self, text: str, problem: Problem, *, is_quick: bool = True, is_judged: bool = True
    ) -> TrialResult:
        """Judge the config of a kernel file's kernel, which is named ``it``."""
        file = f"tune_{next(self._numbers)}.py"
        (self.root / file).write_text(text)
        (inspected,) = self.send_request(requests.Inspect(PROJECT, (file,)))[:-1]
        assert inspected.errors == ()
        (info,) = inspected.kernels
        kernel = requests.KernelRef(PROJECT, file, "it", info.backend, info.sources, info.stamps, version=info.version)
        return self.judge_config(kernel, problem, is_quick=is_quick, is_judged=is_judged)

    def judge_config(
        self, kernel: requests.KernelRef, problem: Problem, *, is_quick: bool, is_judged: bool = True
    ) -> TrialResult:
        """Compile and judge the kernel's config, or measure it as a tuning does."""
        space = requests.Explore(kernel, problem, Plan(), device=self.device)
        self.send_request(space)
        (proposals,) = self.send_request(requests.Ask(1))
        (proposal,) = proposals.proposals
        key = f"{next(self._numbers):08x}"
        artifact = self._library if kernel.sources else None
        if artifact is None:
            compiling = requests.Compile(
                kernel, self.device.target, f"staging{key}", (requests.UnitRef(key, proposal.build or {}),)
            )
            compiled = self.send_request(compiling)[0]
            if compiled.outcome is not None:
                return TrialResult(compiled.outcome, message=compiled.message)
            artifact = compiled.artifact or key
        if kernel.sources:
            self._library = artifact
        unit = requests.UnitRef(artifact, proposal.build or {})
        opened = self.send_request(requests.Open(kernel, problem, self.device.target, self.device, key))[0]
        assert not opened.unusable
        options = dict[str, Any](judged=is_judged, quick=is_quick, deadlines=self.deadlines, peaks=self.peaks)
        trial = requests.Trial((unit,), PRESETS["default"], False, **options)
        measured: replies.Measurement = self.send_request(trial)[-1]
        return measured.result

    def send_request(self, request: requests.Request[Any, Any]) -> list[Any]:
        """Return the items of a request, and its reply."""
        reply_type, item_type = requests.find_answer_types(type(request))
        os.write(self._write_fd, requests.encode(request))
        found: list[Any] = []
        while True:
            match replies.decode(self._read_message(), reply_type, item_type):
                case replies.Item(value):
                    found.append(value)
                case replies.Done(value):
                    return [*found, value]
                case replies.Failed(failure):
                    raise AssertionError(f"{failure.message}\n{failure.trace}")

    def _read_message(self) -> bytes:
        while not self._messages:
            data = os.read(self._read_fd, 1 << 16)
            assert data, "the worker has ended"
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)


@contextmanager
def open_court(
    directory: Path, environment: Mapping[str, str] | None = None, device: Device | None = None
) -> Iterator[Court]:
    """Start a worker for kernel files in a directory, on the CPU or another device, and kill it afterwards."""
    root, scratch = directory / "root", directory / "scratch"
    for one in (root, scratch, directory / "expected"):
        one.mkdir(parents=True)
    places = Places({PROJECT: str(root)}, str(directory / "artifacts"), str(directory / "expected"))
    journal = Journal.create()
    worker = sys.executable, "-P", "-m", "ktuned.worker", Role.BENCH
    (child_read, write_fd), (read_fd, child_write) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [*worker, str(child_read), str(child_write), str(os.getpid()), places.to_argument()],
        stdin=subprocess.DEVNULL,
        pass_fds=(child_read, child_write, journal.descriptor),
        start_new_session=True,
        env={**os.environ, **(environment or {}), "TMPDIR": str(scratch), JOURNAL_VARIABLE: str(journal.descriptor)},
    )
    try:
        os.close(child_read)
        os.close(child_write)
        court = Court(root, scratch, process.pid, read_fd, write_fd, device or cpu.device())
        replies.decode(court._read_message(), replies.Ready, None)
        yield court
    finally:
        process.kill()
        process.wait()
        journal.close()
        os.close(read_fd)
        os.close(write_fd)

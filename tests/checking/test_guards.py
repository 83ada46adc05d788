"""Guards around tensors: what is written or read outside of them is noticed, named, and harms no other config."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable

import pytest
import torch

from ktuned.checking.guard_bands import BAND_BYTES, GuardBands
from ktuned.checking.guard_pages import GUARD_BYTES, GuardPages
from ktuned.checking.guards import Guards
from ktuned.checking.placement import make_single_span
from ktuned.checking.torch_tensors import count_bytes
from ktuned.ipc import Journal
from ktuned.observer import build_library
from ktuned.worker.fault_reporter import FaultReporter

MEMORIES = (GuardPages, GuardBands)
"""The guards of a GPU are made of torch's operations, which a CPU has as well."""


def place(guards: Guards, value: torch.Tensor, name: str = "y") -> torch.Tensor:
    """Return a guarded copy of one tensor."""
    placed: torch.Tensor = guards.place_tensors({name: value}, guards.find_spans({name: value}))[name]
    return placed


def place_in(memory: GuardPages | GuardBands, value: torch.Tensor) -> torch.Tensor:
    """Return a copy in one kind of memory."""
    placed: torch.Tensor = memory.place_span(make_single_span("y", value), {"y": value})["y"]
    return placed


def fault_of(launch: Callable[[Guards, torch.Tensor, torch.Tensor], object]) -> tuple[int, str]:
    """Return the signal that ended a child in which a launch ran, and what the child reported."""
    journal, library = Journal.create(), build_library()
    guards = Guards()
    kept, y = guards.keep_copy("ktuned's copy of x", torch.arange(10.0)), place(guards, torch.zeros(1000))
    guards.seal_copies()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # A worker has it preloaded.
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        reporter = FaultReporter(journal.descriptor)
        reporter.watch_regions(guards.list_guarded_regions())
        launch(guards, kept, y)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    with contextlib.closing(journal):
        return os.waitstatus_to_exitcode(status), journal.read_fault()


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            lambda guards, kept, y: ctypes.memset(y.data_ptr() + 4000 + 8192, 1, 4),
            "wrote outside its tensors: 8192 bytes after y",
        ),
        (
            lambda guards, kept, y: ctypes.memset(y.data_ptr() - 8192, 1, 4),
            "wrote outside its tensors: 8192 bytes before y",
        ),
        (
            lambda guards, kept, y: ctypes.string_at(y.data_ptr() + 4000 + 96, 4),
            "read outside its tensors: 96 bytes after y",
        ),
        (lambda guards, kept, y: kept.fill_(1), "wrote outside its tensors: at byte 0 of ktuned's copy of x"),
        (lambda guards, kept, y: ctypes.string_at(8, 4), ""),
        (lambda guards, kept, y: os.kill(os.getpid(), signal.SIGSEGV), ""),
    ],
    ids=["after", "before", "read", "own-copy", "elsewhere", "sent"],
)
def test_a_fault_names_the_tensor(launch: Callable[..., object], message: str) -> None:
    """The process dies of its signal, and the daemon gets the tensor's name and the distance."""
    assert fault_of(launch) == (-signal.SIGSEGV, message)


def test_a_fault_in_a_forked_child_is_not_the_workers() -> None:
    """The child dies of it, and the worker that ends later has reported nothing."""

    def launch(guards: Guards, kept: torch.Tensor, y: torch.Tensor) -> None:
        pid = os.fork()
        if pid == 0:
            ctypes.memset(y.data_ptr() + 4000 + 8192, 1, 4)
        os._exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    assert fault_of(launch) == (signal.SIGSEGV, "")


@pytest.mark.parametrize("threads", [1, 4])
def test_a_fault_in_a_thread_without_the_interpreters_lock_is_reported(threads: int) -> None:
    """The main thread holds the lock and waits for the thread: a handler in Python would wait for ever."""

    def launch(guards: Guards, kept: torch.Tensor, y: torch.Tensor) -> None:
        libc = ctypes.PyDLL(None)
        started = [ctypes.c_ulong() for _ in range(threads)]
        for thread in started:
            outside = ctypes.c_void_p(y.data_ptr() + 4000 + 4096)
            libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.strlen, ctypes.c_void_p), outside)
        for thread in started:
            libc.pthread_join(thread, None)

    assert fault_of(launch) == (-signal.SIGSEGV, "read outside its tensors: 4096 bytes after y")


@pytest.mark.parametrize("memory_type", MEMORIES)
@pytest.mark.parametrize("numel", [1, 3, 5, 15, 1000, 1024])
@pytest.mark.parametrize("offset", [0, 1])
def test_damage_beside_a_tensor_is_named_and_repaired(
    memory_type: type[GuardPages | GuardBands], numel: int, offset: int
) -> None:
    """By its distance, where it is nearest; the next config is innocent."""
    memory = memory_type()
    y = place_in(memory, torch.ones(numel, dtype=torch.float16))
    memory.seal_copies()
    assert memory.find_damage() is None
    size, start = 2 * numel, y.data_ptr()
    slack_after = BAND_BYTES if memory_type is GuardBands else -size % 64
    slack_before = BAND_BYTES if memory_type is GuardBands else start % 4096
    for distance, begins, place in (
        (slack_after, start + size + offset, f"{offset} bytes after y"),
        (slack_before, start - 2 - offset, f"{2 + offset} bytes before y"),
    ):
        if distance < 2 + offset:
            continue
        ctypes.memset(begins, 1, 2)
        damage = memory.find_damage()
        assert damage is not None
        assert damage.message == f"wrote outside its tensors: {place}"
        assert damage.is_contained
        assert memory.find_damage() is None
    assert bool((y == 1).all())


def test_damage_to_the_outer_end_of_a_band_is_not_contained() -> None:
    """So it is not contained: the worker is replaced."""
    memory = GuardBands()
    y = place_in(memory, torch.ones(16))
    memory.seal_copies()
    for start, size in ((y.data_ptr() + 64, BAND_BYTES), (y.data_ptr() - BAND_BYTES, 4)):
        ctypes.memset(start, 1, size)
        damage = memory.find_damage()
        assert damage is not None
        assert not damage.is_contained


def test_damage_to_what_ktuned_owns_is_not_contained() -> None:
    """The pristine inputs and the expected outputs are watched as a whole, with their bands."""
    memory = GuardBands()
    place_in(memory, torch.ones(16))
    kept = memory.keep_copy("ktuned's copy of x", torch.ones(16))
    memory.seal_copies()
    assert memory.find_damage() is None
    kept[3] = 5
    damage = memory.find_damage()
    assert damage is not None
    assert (damage.message, damage.is_contained) == ("wrote outside its tensors: into ktuned's copy of x", False)


@pytest.mark.parametrize("memory_type", MEMORIES)
def test_user_code_may_write_to_unsealed_copies(memory_type: type[GuardPages | GuardBands]) -> None:
    """A check that writes to its inputs is no config that writes outside its tensors."""
    memory = memory_type()
    kept = memory.keep_copy("ktuned's copy of x", torch.ones(16))
    memory.seal_copies()
    memory.unseal_copies()
    kept.zero_()
    memory.seal_copies()
    assert memory.find_damage() is None


DTYPES = (torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16, torch.complex64)


@pytest.mark.parametrize("memory_type", MEMORIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 2)], ids=str)
def test_a_guarded_tensor_is_laid_out_as_the_given_one(
    memory_type: type[GuardPages | GuardBands], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Of every dtype, shape and layout: content, strides, an aligned start, a storage of what it spans alone."""
    value = (torch.rand(shape) * 3).to(dtype)
    for original in (value, value.permute(2, 0, 1) if len(shape) == 3 else value, value[..., :1] if shape else value):
        copy, clone = place_in(memory_type(), original), original
        assert torch.equal(copy, clone)
        assert (copy.stride(), copy.storage_offset()) == (clone.stride(), 0)
        assert copy.untyped_storage().nbytes() == count_bytes(original)
        assert copy.data_ptr() % 64 == 0
        assert copy._base is None


def test_tensors_that_are_not_plain_numbers_are_cloned() -> None:
    """Sparse tensors, tensors with a gradient or without an element stay what they are."""
    guards = Guards()
    sparse, gradient = torch.eye(3).to_sparse(), torch.ones(3, requires_grad=True)
    assert place(guards, sparse).layout is torch.sparse_coo
    assert place(guards, gradient).requires_grad
    assert place(guards, torch.ones(0)).shape == (0,)
    assert not list(guards.list_guarded_regions())


def test_memory_lives_as_long_as_a_tensor_uses_it() -> None:
    """A launch may be bound to tensors whose problem was closed; after it the pages are given back."""
    guards = Guards()
    y = place(guards, torch.ones(1000))
    (region,) = guards.list_guarded_regions()
    del guards
    assert float(y.sum()) == 1000
    del y
    with open("/proc/self/maps", encoding="ascii") as stream:
        ranges = [line.split()[0].split("-") for line in stream]
    assert not any(int(first, 16) <= region.start < int(end, 16) for first, end in ranges)


def test_guards_cost_addresses_and_no_memory() -> None:
    """Of a thousand tensors as of one."""
    before = _resident()
    guards = Guards()
    for number in range(500):
        place(guards, torch.ones(1), str(number))
    assert _resident() - before < 500 * GUARD_BYTES / 1000


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096

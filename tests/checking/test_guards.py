"""Guards around tensors: an access outside is noticed, named, and harms no other config."""

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

MEMORY_TYPES = (GuardPages, GuardBands)
"""A GPU's guards use torch operations only, so a CPU can test them."""


def place_tensor(guards: Guards, value: torch.Tensor, name: str = "y") -> torch.Tensor:
    """Return a guarded copy of one tensor."""
    tensor: torch.Tensor = guards.place_tensors({name: value}, guards.find_spans({name: value}))[name]
    return tensor


def place_in_memory(memory: GuardPages | GuardBands, value: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in one type of guarded memory."""
    tensor: torch.Tensor = memory.place_span(make_single_span("y", value), {"y": value})["y"]
    return tensor


def run_in_child(launch: Callable[[Guards, torch.Tensor, torch.Tensor], object]) -> tuple[int, str]:
    """Return the signal that ended a child in which a launch ran, and the fault that the child reported."""
    journal, library = Journal.create(), build_library()
    guards = Guards()
    copy, y = guards.keep_copy("ktuned's copy of x", torch.arange(10.0)), place_tensor(guards, torch.zeros(1000))
    guards.seal_copies()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        # A worker preloads it.
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        reporter = FaultReporter(journal.descriptor)
        reporter.watch_regions(guards.list_guarded_regions())
        launch(guards, copy, y)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    with contextlib.closing(journal):
        return os.waitstatus_to_exitcode(status), journal.read_fault()


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            lambda guards, copy, y: ctypes.memset(y.data_ptr() + 4000 + 8192, 1, 4),
            "wrote outside its tensors: 8192 bytes after y",
        ),
        (
            lambda guards, copy, y: ctypes.memset(y.data_ptr() - 8192, 1, 4),
            "wrote outside its tensors: 8192 bytes before y",
        ),
        (
            lambda guards, copy, y: ctypes.string_at(y.data_ptr() + 4000 + 96, 4),
            "read outside its tensors: 96 bytes after y",
        ),
        (lambda guards, copy, y: copy.fill_(1), "wrote outside its tensors: at byte 0 of ktuned's copy of x"),
        (lambda guards, copy, y: ctypes.string_at(8, 4), ""),
        (lambda guards, copy, y: os.kill(os.getpid(), signal.SIGSEGV), ""),
    ],
    ids=["after", "before", "read", "own-copy", "elsewhere", "sent"],
)
def test_a_fault_names_the_tensor(launch: Callable[..., object], message: str) -> None:
    """The signal ends the process, and the daemon gets the tensor's name and the distance."""
    assert run_in_child(launch) == (-signal.SIGSEGV, message)


def test_a_fault_in_a_forked_child_is_not_the_workers() -> None:
    """The child dies, and the worker reports no fault."""

    def launch(guards: Guards, copy: torch.Tensor, y: torch.Tensor) -> None:
        pid = os.fork()
        if pid == 0:
            ctypes.memset(y.data_ptr() + 4000 + 8192, 1, 4)
        os._exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    assert run_in_child(launch) == (signal.SIGSEGV, "")


@pytest.mark.parametrize("threads", [1, 4])
def test_a_fault_in_a_thread_without_the_interpreters_lock_is_reported(threads: int) -> None:
    """The main thread holds the lock and waits for the thread, so a handler in Python would wait for ever."""

    def launch(guards: Guards, copy: torch.Tensor, y: torch.Tensor) -> None:
        libc = ctypes.PyDLL(None)
        handles = [ctypes.c_ulong() for _ in range(threads)]
        for thread in handles:
            outside = ctypes.c_void_p(y.data_ptr() + 4000 + 4096)
            libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.strlen, ctypes.c_void_p), outside)
        for thread in handles:
            libc.pthread_join(thread, None)

    assert run_in_child(launch) == (-signal.SIGSEGV, "read outside its tensors: 4096 bytes after y")


@pytest.mark.parametrize("memory_type", MEMORY_TYPES)
@pytest.mark.parametrize("numel", [1, 3, 5, 15, 1000, 1024])
@pytest.mark.parametrize("offset", [0, 1])
def test_damage_beside_a_tensor_is_named_and_repaired(
    memory_type: type[GuardPages | GuardBands], numel: int, offset: int
) -> None:
    """The message names the nearest distance; the next config finds no damage."""
    memory = memory_type()
    y = place_in_memory(memory, torch.ones(numel, dtype=torch.float16))
    memory.seal_copies()
    assert memory.find_damage() is None
    size, tensor_address = 2 * numel, y.data_ptr()
    slack_after = BAND_BYTES if memory_type is GuardBands else -size % 64
    slack_before = BAND_BYTES if memory_type is GuardBands else tensor_address % 4096
    for distance, address, description in (
        (slack_after, tensor_address + size + offset, f"{offset} bytes after y"),
        (slack_before, tensor_address - 2 - offset, f"{2 + offset} bytes before y"),
    ):
        if distance < 2 + offset:
            continue
        ctypes.memset(address, 1, 2)
        damage = memory.find_damage()
        assert damage is not None
        assert damage.message == f"wrote outside its tensors: {description}"
        assert damage.is_contained
        assert memory.find_damage() is None
    assert bool((y == 1).all())


def test_damage_to_the_outer_end_of_a_band_is_not_contained() -> None:
    """The damage may reach beyond the band, so the worker must be replaced."""
    memory = GuardBands()
    y = place_in_memory(memory, torch.ones(16))
    memory.seal_copies()
    for start, size in ((y.data_ptr() + 64, BAND_BYTES), (y.data_ptr() - BAND_BYTES, 4)):
        ctypes.memset(start, 1, size)
        damage = memory.find_damage()
        assert damage is not None
        assert not damage.is_contained


def test_damage_to_what_ktuned_owns_is_not_contained() -> None:
    """Pristine inputs and expected outputs are watched completely, with their bands."""
    memory = GuardBands()
    place_in_memory(memory, torch.ones(16))
    copy = memory.keep_copy("ktuned's copy of x", torch.ones(16))
    memory.seal_copies()
    assert memory.find_damage() is None
    copy[3] = 5
    damage = memory.find_damage()
    assert damage is not None
    assert (damage.message, damage.is_contained) == ("wrote outside its tensors: into ktuned's copy of x", False)


@pytest.mark.parametrize("memory_type", MEMORY_TYPES)
def test_user_code_may_write_to_unsealed_copies(memory_type: type[GuardPages | GuardBands]) -> None:
    """A check that writes to its inputs is no write outside the tensors."""
    memory = memory_type()
    copy = memory.keep_copy("ktuned's copy of x", torch.ones(16))
    memory.seal_copies()
    memory.unseal_copies()
    copy.zero_()
    memory.seal_copies()
    assert memory.find_damage() is None


DTYPES = (torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16, torch.complex64)


@pytest.mark.parametrize("memory_type", MEMORY_TYPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 2)], ids=str)
def test_a_guarded_tensor_is_laid_out_as_the_given_one(
    memory_type: type[GuardPages | GuardBands], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """It has the same content and strides, an aligned start, and a storage of exactly its span."""
    value = (torch.rand(shape) * 3).to(dtype)
    for original in (value, value.permute(2, 0, 1) if len(shape) == 3 else value, value[..., :1] if shape else value):
        guarded = place_in_memory(memory_type(), original)
        assert torch.equal(guarded, original)
        assert (guarded.stride(), guarded.storage_offset()) == (original.stride(), 0)
        assert guarded.untyped_storage().nbytes() == count_bytes(original)
        assert guarded.data_ptr() % 64 == 0
        assert guarded._base is None


def test_tensors_that_are_not_plain_numbers_are_cloned() -> None:
    """Sparse tensors, tensors with a gradient and empty tensors keep their kind."""
    guards = Guards()
    sparse, gradient = torch.eye(3).to_sparse(), torch.ones(3, requires_grad=True)
    assert place_tensor(guards, sparse).layout is torch.sparse_coo
    assert place_tensor(guards, gradient).requires_grad
    assert place_tensor(guards, torch.ones(0)).shape == (0,)
    assert not list(guards.list_guarded_regions())


def test_memory_lives_as_long_as_a_tensor_uses_it() -> None:
    """A launch may be bound to tensors of a closed problem; afterwards the pages are freed."""
    guards = Guards()
    y = place_tensor(guards, torch.ones(1000))
    (region,) = guards.list_guarded_regions()
    del guards
    assert float(y.sum()) == 1000
    del y
    with open("/proc/self/maps", encoding="ascii") as stream:
        ranges = [line.split()[0].split("-") for line in stream]
    assert not any(int(first, 16) <= region.start < int(end, 16) for first, end in ranges)


def test_guards_cost_addresses_and_no_memory() -> None:
    """500 guarded tensors hardly add resident memory."""
    before = read_resident_bytes()
    guards = Guards()
    for number in range(500):
        place_tensor(guards, torch.ones(1), str(number))
    assert read_resident_bytes() - before < 500 * GUARD_BYTES / 1000


def read_resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096

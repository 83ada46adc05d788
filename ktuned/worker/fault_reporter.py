"""Reports the address at which this process faults, by a signal handler in machine code.

Python's handlers run too late or never: a fault in an OpenMP thread would wait for the interpreter's lock, which the
thread that launched the kernel holds. The handler here calls no function. It copies the address and the error code into
a frame that was prepared before, writes the frame to the daemon, and jumps to the handler that was there before it.

If it cannot be installed (on another CPU, or a system that forbids new code), a crash is reported without its address.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import struct
from collections.abc import Iterable

from ktuned.ipc import MAX_FAULT_BYTES, FaultFrame, Region, prepare_fault

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS)
_SA_SIGINFO, _SA_ONSTACK, _SA_NODEFER = 0x4, 0x0800_0000, 0x4000_0000
_WRITE_CALL = 1
"""``write`` in the table of system calls of x86-64."""


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of glibc and musl on x86-64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class FaultReporter:
    """Writes a frame to ``descriptor`` when this process faults."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._frame = (ctypes.c_ubyte * MAX_FAULT_BYTES)()
        self._length = ctypes.c_uint64()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handlers: dict[int, int] = {}
        self._pages: list[mmap.mmap] = []
        self._prepared = self._prepare_frame(())

    def watch_regions(self, regions: Iterable[Region]) -> None:
        """Report faults from now on, described by these tensors.

        Call it again after a library was loaded, because loading may install other handlers.
        """
        restore_default_signals()
        self._prepare_frame(regions)
        self._install_handlers()

    def _prepare_frame(self, regions: Iterable[Region]) -> FaultFrame:
        frame = prepare_fault(regions)
        ctypes.memmove(self._frame, frame.data, len(frame.data))
        self._length.value = len(frame.data)
        return frame

    def _install_handlers(self) -> None:
        """Install the handler in front of the present handlers, which must only need the signal's number."""
        if os.uname().machine != "x86_64":
            return
        for number in _SIGNALS:
            action = _SigAction()
            self._libc.sigaction(number, None, ctypes.byref(action))
            following = action.handler
            if following in (None, int(signal.SIG_IGN), *self._handlers.values()):
                continue
            try:
                action.handler = self._make_handler(following)
            except OSError:
                return
            action.flags = _SA_SIGINFO | _SA_ONSTACK | _SA_NODEFER
            self._libc.sigaction(number, ctypes.byref(action), None)

    def _make_handler(self, following: int) -> int:
        """Return the address of a handler that reports the fault and then jumps to ``following``.

        Raises:
            OSError: this system forbids new code.
        """
        if following not in self._handlers:
            page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.write(self._assemble_handler(following))
            address = ctypes.addressof(ctypes.c_ubyte.from_buffer(page))
            if self._libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
                raise OSError(ctypes.get_errno(), "no page can be made executable")
            self._pages.append(page)
            self._handlers[following] = address
        return self._handlers[following]

    def _assemble_handler(self, following: int) -> bytes:
        """Return the handler's code. Its arguments (System V ABI) are the signal's number, siginfo and context.

        ``si_addr`` is at 16 of ``siginfo_t``; ``REG_ERR`` is the 20th register of the ``ucontext_t``, whose registers
        begin at 40 (asm-generic/siginfo.h, sys/ucontext.h).
        """
        frame = ctypes.addressof(self._frame)

        def pointer(value: int) -> bytes:
            return struct.pack("<Q", value)

        return b"".join(
            (
                b"\x49\xb8", pointer(frame + self._prepared.address_at),  # mov r8, address in the frame
                b"\x48\x8b\x46\x10",  # mov rax, [rsi + 16]
                b"\x49\x89\x00",  # mov [r8], rax
                b"\x49\xb8", pointer(frame + self._prepared.error_at),  # mov r8, error in the frame
                b"\x48\x8b\x82", struct.pack("<i", 40 + 19 * 8),  # mov rax, [rdx + REG_ERR]
                b"\x49\x89\x00",  # mov [r8], rax
                b"\x57\x56\x52",  # push rdi, rsi, rdx
                b"\xbf", struct.pack("<i", self._descriptor),  # mov edi, descriptor
                b"\x48\xbe", pointer(frame),  # mov rsi, frame
                b"\x49\xb8", pointer(ctypes.addressof(self._length)),  # mov r8, length
                b"\x49\x8b\x10",  # mov rdx, [r8]
                b"\xb8", struct.pack("<i", _WRITE_CALL),  # mov eax, write
                b"\x0f\x05",  # syscall
                b"\x5a\x5e\x5f",  # pop rdx, rsi, rdi
                b"\x48\xb8", pointer(following),  # mov rax, following
                b"\xff\xe0",  # jmp rax
            )
        )  # fmt: skip


def restore_default_signals() -> None:
    """Let a fatal signal end the process after a short stack dump, whatever handlers libraries have installed.

    Some handlers symbolise a backtrace (apache-tvm-ffi does). That takes seconds, and with a broken heap it never ends,
    so that a crash looks like a hang. The defaults must be restored before faulthandler is enabled, because it passes
    the signal on to the handler that it has found.
    """
    faulthandler.disable()
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)

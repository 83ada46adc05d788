"""Lowers functions that no import finds where they live: in the application, in the background.

A case
    A notebook's cell defines a kernel with thirty configs. Its first call launches the first config. Another process
    has no module to import for it, so this process runs Triton's front end for each config, one after the other, and
    the recorded call gets the texts. It goes into the spool when all are there. The program may end before: the texts
    that exist by then are in the spool, too, and its next start makes the others.

What the application notices of it
    One thread works for :data:`SHARE` of the time: after a config that took 50 ms it rests for a second. The front end
    is Python code, so launches meanwhile share the interpreter's lock with it. It allocates nothing on a device, writes
    nothing into Triton's cache and changes no function (:func:`~ktuned_triton.lowering.run_front_end`).

The process's end
    An interpreter that ends while a thread is in C++ code may crash. So the end waits for the config that is being
    lowered, at most :data:`END_S`. A forked child begins without calls; its parent goes on.

Several processes with the same call (ranks) use each other's texts.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, Final

from ktuned.dropin import (
    allow_captures,
    digest_content,
    find_log,
    forget_texts,
    keep_texts,
    read_texts,
    spool_directory,
    use_device,
)
from ktuned.model import Unsupported
from ktuned_triton.build import Library
from ktuned_triton.call import Call
from ktuned_triton.lowering import UnreadableText
from ktuned_triton.signature import match_arguments

SHARE: Final = 0.05
"""Share of the time that the thread works."""

END_S: Final = 5.0
"""How long the process's end waits for a config. The slowest ones of public libraries take a second."""

MAX_CALLS: Final = 1_000
"""Most calls whose functions are lowered in one process; each waits with its captured tensors."""

FILE_SUFFIX: Final = ".lowered"


@dataclass(frozen=True)
class LoweredCall:
    """A call whose function is lowered in this process.

    Attributes:
        identity: what distinguishes the call from others: the texts are kept under its digest.
        function: the ``@triton.jit`` function.
        call: the call as data.
        constants: the values of its constexpr parameters, by config.
        device: the number of the GPU that it is compiled for.
        leave_call: leaves the finished call, and the files that it names, in the spool.
        is_needed: returns whether a tuning is still needed.
    """

    identity: str
    function: Any
    call: Call
    constants: Mapping[str, Mapping[str, Any]]
    device: int | None
    leave_call: Callable[[Call, Mapping[str, bytes]], None]
    is_needed: Callable[[], bool]

    @property
    def digest(self) -> str:
        """The name under which the texts of an unfinished call are kept."""
        from triton import __version__

        # The content of captured tensors changes no text.
        call = asdict(replace(self.call, content=""))
        return digest_content(json.dumps([__version__, self.identity, call], sort_keys=True))

    def lower_config(self, config: str) -> bytes:
        """Return what a compile worker needs for one config: the text, or the error of Triton's front end."""
        from ktuned_triton.compiler import LOWERING_ERROR, CompileError, lower_function

        build = self.call.make_build(config, str(self.function.__name__), library=Library())
        try:
            arguments = match_arguments(self.function, self.constants[config], build)
            with use_device(self.device):
                return lower_function(self.function, arguments, build)
        except (CompileError, Unsupported, UnreadableText) as error:
            return json.dumps({LOWERING_ERROR: str(error)}).encode()

    def lower_all(self, rest: Callable[[float], bool]) -> None:
        """Lower all configs that no start has lowered yet, and leave the call.

        Args:
            rest: called after each config with the seconds that it took; returns whether to go on.

        Raises:
            OSError: the call cannot be left in the spool.
        """
        directory, digest = spool_directory(), self.digest
        texts: dict[str, bytes] = {}
        for config in self.call.recipes:
            began = perf_counter()
            texts = read_texts(directory, digest) | texts
            if config in texts:
                continue
            texts[config] = self.lower_config(config)
            with contextlib.suppress(OSError):
                keep_texts(directory, digest, texts)
            goes_on = rest(perf_counter() - began) and self.is_needed()
            if not goes_on and self.call.recipes.keys() - texts.keys():
                return
        names = {config: f"{digest_content(texts[config])}{FILE_SUFFIX}" for config in self.call.recipes}
        recipes = {config: replace(recipe, lowered=names[config]) for config, recipe in self.call.recipes.items()}
        self.leave_call(replace(self.call, recipes=recipes), {name: texts[config] for config, name in names.items()})
        forget_texts(directory, digest)


class BackgroundLowering:
    """The thread of this process that lowers calls, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, LoweredCall] = {}
        self._seen: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()

    def add_call(self, call: LoweredCall) -> None:
        """Lower a call in the background, unless this process does so already, or has done it.

        Raises:
            OSError: too many calls were lowered here.
        """
        with self._lock:
            if call.digest in self._seen:
                return
            if len(self._seen) >= MAX_CALLS:
                raise OSError(f"{MAX_CALLS} calls were translated in this process, and no more are")
            self._seen.add(call.digest)
            self._waiting[call.digest] = call
            if self._thread is None:
                self._thread = threading.Thread(target=self._lower_calls, name="ktuned-lowering", daemon=True)
                self._thread.start()

    def end_thread(self) -> None:
        """End the thread after the config that it is lowering."""
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def _lower_calls(self) -> None:
        allow_captures()
        while not self._is_ending.is_set():
            with self._lock:
                call = self._waiting.pop(next(iter(self._waiting), ""), None)
                if call is None:
                    self._thread = None
                    return
            try:
                call.lower_all(self._rest)
            except Exception as error:
                find_log("Triton").warning("a call of %s is not recorded: %s", call.function.__name__, error)

    def _rest(self, worked_s: float) -> bool:
        """Rest after work, so that the thread works for its share of the time; return whether to go on."""
        return not self._is_ending.wait(worked_s * (1.0 / SHARE - 1.0))


background_lowering = BackgroundLowering()


@atexit.register
def _end_thread() -> None:
    background_lowering.end_thread()


def _begin_anew_after_fork() -> None:
    global background_lowering
    background_lowering = BackgroundLowering()


os.register_at_fork(after_in_child=_begin_anew_after_fork)


def lower_in_background(call: LoweredCall) -> None:
    """Lower a call in this process's background thread.

    Raises:
        OSError: too many calls were lowered here.
    """
    background_lowering.add_call(call)

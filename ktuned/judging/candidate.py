"""The candidate's process: loads one config that is not trusted, and launches it when the referee orders it.

:func:`main` is the *nursery*: a process that has imported everything that candidates of a backend need, and forks one
process for each. It runs no code of a candidate, so all of them start from the same state.

A candidate's process confines itself (:mod:`ktuned.judging.sandbox`), and then answers the referee's messages. Nothing
here is protected from the candidate's code: it may change this module, the tensors and the answers. So nothing here
decides anything. In particular, no clock is read.

An *order* is a random sequence of sets. For each, the loop touches the set's memory and launches. Touching brings the
set into the caches, where a launch under ``tune`` finds its tensors. Code that skips it has to wait for the memory
itself.
"""

from __future__ import annotations

import array
import gc
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ktuned.backends import Kernel, Launch, Registry, Unit
from ktuned.checking import choose_library
from ktuned.ipc import frames, parent
from ktuned.judging.arena import Arena, Layout
from ktuned.judging.gpu_memory import GpuArena, start_gpu
from ktuned.judging.sandbox import Sandbox, enter_sandbox
from ktuned.model import Device, FrozenStruct, Unsupported, describe_error

MAX_MESSAGE_BYTES = 1 << 20


class Birth(FrozenStruct):
    """To the nursery, with the candidate's socket: fork a process that confines itself."""

    sandbox: Sandbox


class PlainUnit(FrozenStruct):
    """A config's compiled unit as plain data: a :class:`~ktuned.backends.Unit`, its backend and its artifact."""

    backend: str
    artifact: str
    key: str
    build: Mapping[str, Any]
    sources: tuple[str, ...]
    kernel_file: str
    kernel: str
    target: str
    lowered: bytes

    @classmethod
    def from_unit(cls, unit: Unit, backend: str, artifact: Path) -> PlainUnit:
        """Return a unit as plain data."""
        sources, build = tuple(map(str, unit.sources)), unit.build.to_plain()
        file = str(unit.kernel_file)
        return cls(backend, str(artifact), unit.key, build, sources, file, unit.kernel, unit.target, unit.lowered)

    def load(self, registry: Registry, device: Device) -> Kernel:
        """Load the artifact."""
        backend = registry.load(self.backend)
        sources, build = tuple(map(Path, self.sources)), backend.build.from_plain(self.build)
        # Modules beside the kernel file can be imported, as in a bench.
        sys.path.insert(0, str(Path(self.kernel_file).parent))
        unit = Unit(self.key, build, sources, Path(self.kernel_file), self.kernel, self.target, self.lowered)
        return backend.load(Path(self.artifact), unit, device)


class Load(FrozenStruct, tag=True):
    """To a candidate, with the memory's descriptor: load a config. Without a unit, its launches do nothing."""

    layout: Layout
    device: Device
    unit: PlainUnit | None = None
    environment: Mapping[str, str] = {}


class Bind(FrozenStruct, tag=True):
    """To a candidate: bind a launch to each of the first ``count`` sets."""

    count: int


class Order(FrozenStruct, tag=True):
    """To a candidate: launch on these sets, one after the other, and answer with the number that is drawn anew.

    On a GPU, launches wait for the gate to have its number. They have ended when the candidate answers, unless they are
    only to be ``queued``.
    """

    number: int
    places: bytes
    gate: int = 0
    queued: bool = False

    def list_places(self) -> array.array[int]:
        """Return the sets' numbers."""
        return array.array("H", self.places)


class Await(FrozenStruct, tag=True):
    """To a candidate: answer when its launches have ended."""


Message = Load | Bind | Order | Await


class Born(FrozenStruct, tag=True):
    """From a candidate: its process, the process that ends as it ends, and what could not be enforced."""

    pid: int
    outer: int
    not_enforced: tuple[str, ...]


class Finished(FrozenStruct, tag=True):
    """From a candidate: it has done what the message asked for; an order's number is returned."""

    number: int = 0


class Raised(FrozenStruct, tag=True):
    """From a candidate: loading, binding or launching raised."""

    message: str
    is_unsupported: bool = False


Answer = Born | Finished | Raised


def send_message(connection: socket.socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, with descriptors."""
    data = frames.encode(message)
    sent = socket.send_fds(connection, [data], descriptors) if descriptors else connection.send(data)
    if sent < len(data):
        connection.sendall(data[sent:])


def main(argv: list[str]) -> NoReturn:
    """Be the nursery: import a backend, and fork a candidate's process for each message, until the referee ends.

    Args:
        argv: the descriptor of the socket to the referee, the referee's process, and the names of the backend and of
            the device.
    """
    control, referee, backend = socket.socket(fileno=int(argv[0])), int(argv[1]), argv[2]
    parent.die_with_parent(referee)
    # By the daemon's mark this process is found and killed; nothing else needs these variables.
    for name in [name for name in os.environ if name.startswith("KTUNED_")]:
        del os.environ[name]
    registry = Registry()
    registry.load(backend)
    device = msgspec.json.decode(argv[3], type=Device)
    library = choose_library(device)
    # Its first operations, which load and start things once per process.
    library.view_memory(bytearray(8), 0, 8, "uint8", (8,), (1,), 0)
    if library.type_name.startswith("torch"):
        import numpy  # noqa: F401
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
        if not data:
            os._exit(0)
        (message,) = frames.Decoder().feed(data)
        if os.fork() == 0:
            _bear_candidate(msgspec.msgpack.decode(message, type=Birth), referee, descriptors[0], registry, device)
        os.close(descriptors[0])
        os.wait()


def _bear_candidate(birth: Birth, referee: int, descriptor: int, registry: Registry, device: Device) -> NoReturn:
    """Fork the candidate's process and end, so that the referee adopts it, as it adopts all its descendants."""
    code = 1
    try:
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while (adopter := os.getppid()) == between:
            os.sched_yield()
        if adopter != referee:
            # The referee has just died, and nobody waits for this process.
            os._exit(1)
        outer = os.getpid()
        start_driver = partial(start_gpu, device) if device.kind == "cuda" else int
        confinement = enter_sandbox(birth.sandbox._replace(descriptors=(descriptor,)), start_driver)
        with socket.socket(fileno=descriptor) as connection:
            send_message(connection, Born(confinement.pid, outer, confinement.not_enforced))
            Candidate(connection, registry).serve()
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{describe_error(error)}\n")
    finally:
        os._exit(code)


class Candidate:
    """Carries out the referee's messages."""

    def __init__(self, connection: socket.socket, registry: Registry) -> None:
        self._connection = connection
        self._registry = registry
        self._bind: Callable[[Mapping[str, Any]], Launch] = lambda tensors: int
        self._arena: Arena | None = None
        self._gpu: GpuArena | None = None
        self._touched: list[tuple[Any, ...]] = []
        self._launches: list[Launch] = []

    def serve(self) -> None:
        """Answer each message, until the referee closes the socket."""
        decoder = frames.Decoder()
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 1)
            except ConnectionError:
                return
            if not data:
                return
            for message in decoder.feed(data):
                send_message(self._connection, self._answer(message, descriptors))

    def _answer(self, data: bytes, descriptors: list[int]) -> Answer:
        message: Message = msgspec.msgpack.decode(data, type=Message)
        try:
            match message:
                case Load():
                    self._load(message, descriptors[0])
                case Bind(count):
                    self._bind_sets(count)
                case Order(number):
                    self._launch_order(message.list_places(), message.gate)
                    if not message.queued:
                        self._await_gpu()
                    return Finished(number)
                case Await():
                    self._await_gpu()
        except Unsupported as error:
            return Raised(str(error), is_unsupported=True)
        except Exception as error:
            return Raised(describe_error(error))
        return Finished()

    def _load(self, message: Load, descriptor: int) -> None:
        library = choose_library(message.device)
        if message.device.kind == "cuda":
            self._arena = self._gpu = GpuArena(message.layout, library, message.device, descriptor)
        else:
            self._arena = Arena(message.layout, library, descriptor)
        os.close(descriptor)
        if message.unit is not None:
            os.environ |= message.environment
            self._bind = message.unit.load(self._registry, message.device).bind

    def _bind_sets(self, count: int) -> None:
        import numpy

        assert self._arena is not None
        layout = self._arena.layout
        for place in range(len(self._launches), count):
            base = place * layout.set_bytes
            bodies = layout.bodies if layout.is_touched else ()
            memory: Any = self._arena.memory
            words = [numpy.frombuffer(memory, "uint64", size // 8, base + start) for start, size in bodies]
            self._touched.append(tuple(words))
            self._launches.append(self._bind(self._arena.view_set(place)))

    def _await_gpu(self) -> None:
        if self._gpu is not None:
            self._gpu.await_launches()

    def _launch_order(self, places: array.array[int], gate: int) -> None:
        from numpy import bitwise_or

        assert self._arena is not None
        touched, launches, group = self._touched, self._launches, self._arena.layout.group
        if self._gpu is not None:
            self._gpu.begin_order(gate)
        for first in range(0, len(places), group):
            for place in places[first : first + group]:
                for words in touched[place]:
                    bitwise_or(words, words, words)
            for place in places[first : first + group]:
                launches[place]()

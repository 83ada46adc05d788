"""Lanes and slots without hardware: an executor whose compile and bench workers are entries in one other process.

That process, the farm, answers each request after the time that it is said to take. So hundreds of lanes and thousands
of slots run through the daemon's real code, as those of a cluster do: over one connection.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ktuned.fleet import Environment, Executor, Output, Worker, WorkerDied
from ktuned.ipc import frames, replies, requests
from ktuned.model import Checks, Outcome, Role, Timing, TrialDetail, TrialResult, WorkerError

_READ_BYTES = 1 << 18
_FAKED = (Role.COMPILE, Role.BENCH)
SAMPLES = 50


class _Request(msgspec.Struct, frozen=True):
    worker: int
    request: bytes


class _Answers(msgspec.Struct, frozen=True):
    worker: int
    answers: bytes


class FakeWorker(Worker):
    """An entry in the farm."""

    def __init__(self, role: Role, environment: Environment, number: int, farm: FakeExecutor) -> None:
        super().__init__(role, environment, -number)
        self._number = number
        self._farm = farm

    @property
    def is_alive(self) -> bool:
        """True until it was killed."""
        return not self.gone.is_set()

    async def send_request(
        self,
        request: requests.Request[Any, Any],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[Any], None] | None = None,
        on_computed: Callable[[], None] | None = None,
    ) -> tuple[Any, Output]:
        """Send a request to the farm, and decode what it answers."""
        self.requests += 1
        reply_type, item_type = requests.find_answer_types(type(request))
        answered = self._farm.send(self._number, requests.encode(request))
        if self.gone.is_set():
            raise WorkerDied(-signal.SIGKILL, request.first_phase, Output())
        for message in await answered:
            answer = replies.decode(message, reply_type, item_type)
            if isinstance(answer, replies.Item) and on_item is not None:
                on_item(answer.value)
            if isinstance(answer, replies.Done):
                return answer.value, Output()
        raise WorkerDied(-signal.SIGKILL, request.first_phase, Output())

    def kill(self, why: str = "") -> None:
        """End it."""
        self.gone.set()
        self._farm.forget(self)

    def measure_memory(self) -> None:
        """Use nothing."""

    def take_output(self) -> Output:
        """Print nothing."""
        return Output()

    def read_phase_durations(self) -> Mapping[str, float]:
        """Know nothing."""
        return {}


class FakeExecutor(Executor):
    """Has compile and bench workers in the farm, and all others run by ``real``."""

    def __init__(self, real: Executor, *, trial_s: float, compile_s: float) -> None:
        self._real = real
        self._times = trial_s, compile_s
        self._numbers = itertools.count(1)
        self._fakes: set[FakeWorker] = set()
        self._waiting: dict[int, asyncio.Future[list[bytes]]] = {}
        self._decoder = frames.Decoder()

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[object]:
        """Hold the farm."""
        ours, theirs = socket.socketpair()
        with theirs:
            farm = subprocess.Popen(  # noqa: ASYNC220 - once, before anything runs
                [sys.executable, "-m", "benchmarks.fake_lanes", str(theirs.fileno()), *map(str, self._times)],
                pass_fds=(theirs.fileno(),),
            )
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: _Link(self.take), sock=ours)
        try:
            async with self._real.run_workers():
                yield self
        finally:
            for worker in list(self._fakes):
                worker.kill()
            self._transport.close()
            farm.kill()
            farm.wait()

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a real worker, or enter a fake one.

        Raises:
            WorkerError: as the real executor.
        """
        if role not in _FAKED:
            return await self._real.start_worker(role, environment, limit_bytes=limit_bytes, deadline_s=deadline_s)
        worker = FakeWorker(role, environment, next(self._numbers), self)
        self._fakes.add(worker)
        return worker

    @property
    def workers(self) -> Iterable[Worker]:
        """All of both kinds."""
        return [*self._real.workers, *self._fakes]

    def leave_cores(self, lanes: int) -> None:
        """Leave real workers where they are: lanes are elsewhere."""

    def send(self, number: int, request: bytes) -> asyncio.Future[list[bytes]]:
        """Send a worker's request; the future has all that it answers."""
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(frames.encode(_Request(number, request)))
        return future

    def take(self, data: bytes) -> None:
        """Take what the farm answers."""
        for body in self._decoder.feed(data):
            message = msgspec.msgpack.decode(body, type=_Answers)
            future = self._waiting.pop(message.worker, None)
            if future is not None and not future.done():
                future.set_result(list(frames.Decoder().feed(message.answers)))

    def forget(self, worker: FakeWorker) -> None:
        """Forget a worker that was killed, and end its request."""
        self._fakes.discard(worker)
        future = self._waiting.pop(-worker.pid, None)
        if future is not None and not future.done():
            future.set_exception(WorkerError("it was killed"))


class _Link(asyncio.Protocol):
    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self._take(data)


class Farm(asyncio.Protocol):
    """Answers each request after its time; a worker has one request at once."""

    def __init__(self, trial_s: float, compile_s: float) -> None:
        self._trial_s = trial_s
        self._compile_s = compile_s
        self._decoder = frames.Decoder()
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep where answers go."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the daemon."""
        self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Answer each request when its time has passed."""
        for body in self._decoder.feed(data):
            message = msgspec.msgpack.decode(body, type=_Request)
            (request,) = frames.Decoder().feed(message.request)
            took_s, answers = self._answer(requests.decode(request))
            encoded = frames.encode(_Answers(message.worker, answers))
            self._loop.call_later(took_s, self._transport.write, encoded)  # type: ignore[attr-defined]

    def _answer(self, request: requests.Request[Any, Any]) -> tuple[float, bytes]:
        match request:
            case requests.Compile(units=units):
                return self._compile_s * len(units), b"".join(map(_compiled, units)) + _EMPTY
            case requests.Trial(units=units):
                measured = [_measurement(unit.key, self._trial_s) for unit in units]
                items = b"".join(replies.encode(replies.Item(one)) for one in measured[:-1])
                return self._trial_s * len(units), items + replies.encode(replies.Done(measured[-1]))
            case requests.Time(unit=unit) | requests.Check(unit=unit):
                return self._trial_s, replies.encode(replies.Done(_measurement(unit.key, self._trial_s)))
            case requests.TimeReference():
                return self._trial_s, replies.encode(replies.Done(_measurement("reference", self._trial_s)))
            case _:
                return 0.0, _EMPTY


_EMPTY = replies.encode(replies.Done(replies.Empty()))


def _compiled(unit: requests.UnitRef) -> bytes:
    return replies.encode(replies.Item(replies.CompiledUnit(unit.key, None, "", 0.01, {"registers": 32}, unit.key)))


def _measurement(key: str, seconds: float) -> replies.Measurement:
    """Return a measurement that is the same for a config each time."""
    us = 100.0 + zlib.crc32(key.encode()) % 100_000 / 1000
    samples = tuple(round(us + place / 100, 3) for place in range(SAMPLES))
    detail = TrialDetail(timing=Timing(SAMPLES, samples, us - 0.3, us + 0.3), checks=Checks(0.0))
    cost = replies.CostRange(us, us - 0.3, us + 0.3)
    return replies.Measurement(TrialResult(Outcome.MEASURED, us, 0.5, detail=detail), cost, seconds=seconds)


async def _serve(descriptor: int, trial_s: float, compile_s: float) -> None:
    connection = socket.socket(fileno=descriptor)
    _, farm = await asyncio.get_running_loop().create_connection(lambda: Farm(trial_s, compile_s), sock=connection)
    await farm.ended


if __name__ == "__main__":
    os.nice(5)
    asyncio.run(_serve(int(sys.argv[1]), *map(float, sys.argv[2:])))

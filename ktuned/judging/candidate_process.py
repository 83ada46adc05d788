"""The candidate's process, seen from the referee: born of a nursery, stopped except when it answers, killed at the end.

A nursery is a process that has imported a backend (:mod:`ktuned.judging.candidate`). It forks the next candidate's
process ahead of time, so that a judgement waits neither for imports nor for the sandbox.

The candidate is stopped (``SIGSTOP``) whenever the referee does not wait for an answer: while inputs are written, while
outputs are read. The clock runs from the moment before it goes on to the moment after it was stopped again. Linux tells
how long the candidate's thread worked meanwhile, and how long it waited for a core. If no other thread of the candidate
worked, nothing can have been done for it while it waited, so only its work counts. Otherwise a busy machine would
disturb most orders.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import NamedTuple

import msgspec

from ktuned.ipc import frames
from ktuned.judging.candidate import Answer, Birth, Born, Message, send_message
from ktuned.judging.process_watch import ProcessFacts, continue_process, read_cpu_time, read_facts, stop_process
from ktuned.judging.sandbox import Sandbox
from ktuned.model import Device, JudgeVerdict, Outcome
from ktuned.observer import OFF_VARIABLE

_NURSERY = "import sys; from ktuned.judging import candidate; candidate.main(sys.argv[1:])"
BIRTH_S = 60.0
"""Deadline of a birth; the first one waits for the import of torch."""

STOP_S = 5.0
LATE_S = 1.0
"""How long a process may take to put an order's launches into a GPU's queue."""

OTHERS_SHARE = 0.01
"""Share of an order in which other threads than the launching one may work unnoticed."""

MESSAGE_NS, SLEEPING_SHARE = 500_000, 0.1
"""How long a process may sleep at the ends of an order, until messages arrive: in ns, and as a share of the order."""

GLANCE_NS = 1_000_000_000
"""After this time a process is not looked at: it sleeps, or the machine is too busy."""

END_S = 1.0
"""How long a process that has closed its socket may take to end, before it is killed."""

_HIDDEN_VARIABLES = "KTUNED_"
_OBSERVED_BY = ("LD_PRELOAD", "LD_AUDIT")


class Ended(Exception):
    """The judgement of a candidate has ended, with a verdict."""

    def __init__(self, verdict: JudgeVerdict, outcome: Outcome, reason: str, *, signal_name: str = "") -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.outcome = outcome
        self.reason = reason
        self.signal_name = signal_name


def make_cheating(reason: str) -> Ended:
    """Return the end of a candidate that has cheated."""
    return Ended(JudgeVerdict.CHEATING, Outcome.MISMATCH, reason)


class RunTime(NamedTuple):
    """How long a process ran, in µs.

    Attributes:
        elapsed_us: how long it ran, without waiting for a core if that can be told.
        waited_us: how long of that it waited for a core.
        has_threads: whether other threads than the launching one worked.
    """

    elapsed_us: float
    waited_us: float
    has_threads: bool


class Glance(NamedTuple):
    """A look at what a process has done after ``after_s`` seconds of work, while it is stopped.

    ``look`` is called with the seconds that it has worked when it was stopped.
    """

    after_s: float
    look: Callable[[float], object]


class GpuClock(NamedTuple):
    """What is done on a GPU while the clock runs: ``begin`` before a process goes on, ``end`` when it has answered."""

    begin: Callable[[], object]
    end: Callable[[], object]


class _Times(NamedTuple):
    """How long a process's first thread has worked, and waited for a core, and how long all its threads have worked."""

    worked_ns: int
    waited_ns: int
    process_ns: int


def _read_times(pid: int) -> _Times:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/schedstat", encoding="ascii") as stream:
        worked_ns, waited_ns, _ = map(int, stream.read().split())
        return _Times(worked_ns, waited_ns, round(read_cpu_time(pid) * 1e9))
    # Without these figures, other threads may have worked.
    return _Times(0, 0, perf_counter_ns())


class CandidateProcess:
    """A candidate's process.

    Args:
        connection: the socket to it.
        scratch: its directory, which is removed when it is killed.

    Attributes:
        not_enforced: what the system does not allow to enforce, in sentences.
    """

    def __init__(self, connection: socket.socket, scratch: str) -> None:
        self._connection = connection
        self._scratch = scratch
        self._decoder = frames.Decoder()
        self._answers: list[bytes] = []
        self._born: Born | None = None
        self.not_enforced: tuple[str, ...] = ()

    def await_birth(self) -> None:
        """Wait until the process has confined itself.

        Raises:
            RuntimeError: it failed.
        """
        if self._born is None:
            try:
                born = self._receive_answer(BIRTH_S)
            except Ended as ended:
                raise RuntimeError("a candidate's process could not be started") from ended
            assert isinstance(born, Born)
            self._born = born
            self.not_enforced = born.not_enforced

    def ask(
        self,
        message: Message,
        deadline_s: float,
        descriptors: tuple[int, ...] = (),
        *,
        glance: Glance | None = None,
        clock: GpuClock | None = None,
        on_late: Callable[[], object] | None = None,
    ) -> tuple[Answer, RunTime]:
        """Let the process go on until it answers; return the answer, and how long the process ran.

        Args:
            message: what it is to do.
            deadline_s: how many seconds it may take.
            descriptors: file descriptors that the message passes on.
            glance: when to stop it in between, and what to do then. The time is not to be used then.
            clock: what else is timed, by the wall clock.
            on_late: called if it has not answered after :data:`LATE_S`.

        Raises:
            Ended: it ended, hung, or did not answer as it was asked.
        """
        self.await_birth()
        assert self._born is not None
        pid = self._born.pid
        send_message(self._connection, message, descriptors)
        before, own_before = _read_times(pid), _read_times(os.getpid())
        began = perf_counter_ns()
        if clock is not None:
            clock.begin()
        continue_process(pid)
        if glance is not None:
            self._glance(glance)
        if on_late is not None and not self._answers and not select.select([self._connection], [], [], LATE_S)[0]:
            on_late()
        if clock is not None:
            # A processor that sleeps wakes up late.
            end = monotonic() + deadline_s
            while not (self._answers or select.select([self._connection], [], [], 0)[0]) and monotonic() < end:
                pass
        answer = self._receive_answer(deadline_s)
        with suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
        if clock is not None:
            clock.end()
        elapsed_ns = perf_counter_ns() - began
        if not stop_process(pid, STOP_S):
            raise self._explain_end()
        if self._answers or select.select([self._connection], [], [], 0)[0]:
            raise make_cheating("it sent the judge an answer that nobody had asked for")
        if isinstance(answer, Born):
            raise make_cheating("it forged an answer to the judge")
        if clock is not None:
            return answer, RunTime(elapsed_ns / 1000, 0.0, has_threads=False)
        after, own_after = _read_times(pid), _read_times(os.getpid())
        waited_ns = after.waited_ns - before.waited_ns + own_after.waited_ns - own_before.waited_ns
        worked_ns = after.worked_ns - before.worked_ns
        others_ns = after.process_ns - before.process_ns - worked_ns
        if others_ns > OTHERS_SHARE * elapsed_ns:
            return answer, RunTime(elapsed_ns / 1000, waited_ns / 1000, has_threads=True)
        # A thread that is asleep does no work, so its sleep counts only if the launches themselves take it.
        slept_ns = elapsed_ns - waited_ns - worked_ns
        sleeps = slept_ns > max(MESSAGE_NS, SLEEPING_SHARE * elapsed_ns)
        return answer, RunTime((worked_ns + (slept_ns if sleeps else 0)) / 1000, 0.0, has_threads=False)

    def _glance(self, glance: Glance) -> None:
        """Stop the process when it has worked for a while, look at what it has done, and let it go on."""
        assert self._born is not None
        pid, begun_s, began = self._born.pid, read_cpu_time(self._born.pid), perf_counter_ns()
        # A sleep would often last longer than the order.
        while read_cpu_time(pid) - begun_s < glance.after_s:
            if select.select([self._connection], [], [], 0)[0] or perf_counter_ns() - began > GLANCE_NS:
                return
        if not stop_process(pid, STOP_S):
            raise self._explain_end()
        glance.look(read_cpu_time(pid) - begun_s)
        continue_process(pid)

    def read_facts(self) -> ProcessFacts:
        """Return what the stopped process consists of."""
        assert self._born is not None
        return read_facts(self._born.pid)

    def _receive_answer(self, deadline_s: float) -> Answer:
        end = monotonic() + deadline_s
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not self._answers:
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise Ended(JudgeVerdict.HUNG, Outcome.HUNG, f"it did not answer within {deadline_s:.3g} s")
            try:
                data = self._connection.recv(1 << 16)
                self._answers += self._decoder.feed(data)
            except ConnectionError:
                data = b""
            except frames.FrameError as error:
                raise make_cheating("it forged an answer to the judge") from error
            if not data:
                raise self._explain_end()
        try:
            answer: Answer = msgspec.msgpack.decode(self._answers.pop(0), type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise make_cheating("it forged an answer to the judge") from error
        return answer

    def _explain_end(self) -> Ended:
        """Return how the process ended."""
        status = self._await_end(END_S)
        if status is None:
            return Ended(JudgeVerdict.CRASHED, Outcome.CRASHED, "it closed its connection to the judge")
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return Ended(JudgeVerdict.CRASHED, Outcome.CRASHED, f"it ended its process, with exit code {code}")
        name = signal.Signals(-code).name
        return Ended(JudgeVerdict.CRASHED, Outcome.CRASHED, f"{name} ended its process", signal_name=name)

    def _await_end(self, within_s: float) -> int | None:
        """Wait until the outermost process has ended, and return its status; None if it does not end in time."""
        if self._born is None:
            return None
        descriptor = os.pidfd_open(self._born.outer)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        has_ended = bool(poll.poll(within_s * 1000))
        os.close(descriptor)
        if not has_ended:
            return None
        status = os.waitpid(self._born.outer, 0)[1]
        self._born = None
        return status

    def kill(self) -> None:
        """Kill the process and all that it has started, and remove its directory."""
        if self._born is None:
            # It may be about to confine itself.
            with suppress(Exception):
                self.await_birth()
        self._connection.close()
        if self._born is not None:
            # The others end with the candidate's process, the outermost one last.
            with suppress(OSError):
                os.kill(self._born.pid, signal.SIGKILL)
            if self._await_end(STOP_S) is None and self._born is not None:
                os.kill(self._born.outer, signal.SIGKILL)
                os.waitpid(self._born.outer, 0)
            self._born = None
        shutil.rmtree(self._scratch, ignore_errors=True)


Directories = tuple[tuple[str, ...], tuple[str, ...]]


class Nursery:
    """Starts candidates' processes, each ahead of time.

    Args:
        backend: the name of the backend whose configs they load.
        device: where they run.

    Attributes:
        directories: the hidden and the readable directories, as :class:`~ktuned.judging.sandbox.Sandbox` takes them.
    """

    def __init__(self, backend: str, device: Device) -> None:
        self.backend = backend
        self._devices: tuple[str, ...] = ()
        if device.kind == "cuda":
            nodes = Path("/dev").glob("nvidia*")
            self._devices = tuple(node.name for node in nodes if not node.is_dir())
        self.directories: Directories = ((), ())
        self._next_directories: Directories = ((), ())
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-c", _NURSERY, str(theirs.fileno()), str(os.getpid()), backend]
        self._process = subprocess.Popen(
            [*command, msgspec.json.encode(device).decode()],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=make_environment(),
        )
        theirs.close()
        self._next: CandidateProcess | None = None

    def prepare_next(self) -> None:
        """Start the next candidate's process, unless it was started before."""
        if self._next is not None and self._next_directories != self.directories:
            self._next.kill()
            self._next = None
        if self._next is None:
            self._next_directories = self.directories
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            scratch = tempfile.mkdtemp(prefix="candidate-")
            sandbox = Sandbox(os.getpid(), scratch, *self.directories, devices=self._devices)
            with theirs:
                send_message(self._control, Birth(sandbox), (theirs.fileno(),))
            self._next = CandidateProcess(ours, scratch)

    def take_next(self) -> CandidateProcess:
        """Return a process that has run no candidate yet.

        Raises:
            RuntimeError: none can be started.
        """
        self.prepare_next()
        assert self._next is not None
        self._next.await_birth()
        taken, self._next = self._next, None
        return taken

    def close(self) -> None:
        """End the nursery and the process that it has started ahead."""
        if self._next is not None:
            self._next.kill()
            self._next = None
        self._control.close()
        self._process.kill()
        self._process.wait()


def make_environment() -> dict[str, str]:
    """Return this process's variables without those of ktuned, and without paths of this process's temporary files.

    No observer runs in a candidate's process.
    """
    temporary = tempfile.gettempdir()
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_HIDDEN_VARIABLES) and not value.startswith(temporary)
    }
    for name in _OBSERVED_BY:
        kept = [one for one in found.pop(name, "").split(":") if one and "ktuned_observer" not in one]
        found |= {name: ":".join(kept)} if kept else {}
    # The observer would add itself to the variables of a process that is started.
    found[OFF_VARIABLE] = "1"
    if sys.pycache_prefix is not None:
        found["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    return found

"""Lookups of a good client beside a mob of bad ones: idle, slow, deaf, and breaking limits.

Two daemons are asked in turns, one with the mob and one without, so that other load on the machine affects both.
Budget: the p99 beside the mob is at most twice the other; each offender's connection is closed, and no other.
"""

import argparse
import contextlib
import itertools
import selectors
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter_ns

import msgpack

from benchmarks.private_daemon import PrivateDaemon, private_home, serving
from benchmarks.report import show
from ktuned_client import Client, paths, wire

P99_BUDGET = 2.0
TURN = 50
"""Questions to one daemon in one turn."""

PATIENT_S = 20.0
ECHO_BYTES = 20_000
ECHOES = 30
"""Number and size of answers that are requested and not read: more than the daemon buffers."""

SIP_BYTES = 512
SIP_EVERY_S = 0.5
"""Bytes that a slow peer reads, and its interval; each at a time of its own."""

GIB = 2**30
_LOOKUP = b"\x94\x00\x01\xa6lookup"
OFFENCES = {
    # A request whose kernel's name claims 1 GiB; then as much of it as the daemon takes.
    "length": _LOOKUP + b"\x91\x81\xa6kernel\xdb" + GIB.to_bytes(4, "big"),
    "nesting": _LOOKUP + b"\x91" * 10_000,
    "array": _LOOKUP + b"\xdd\xff\xff\xff\xff",
    "garbage": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""Bytes that exceed a limit, by the limit."""


@dataclass(frozen=True)
class Crowd:
    """Numbers of peers by kind."""

    idle: int = 500
    slow: int = 100
    deaf: int = 100


def offend(path: Path, offence: str) -> float:
    """Exceed a limit and return the seconds until the connection was closed for it.

    Raises:
        TimeoutError: it was not.
    """
    start = monotonic()
    with paths.connect(str(path), PATIENT_S) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(OFFENCES[offence])
        if offence == "length":
            for _ in range(64):
                connection.sendall(bytes(64 * 1024))
        while connection.recv(65536):
            pass
    return monotonic() - start


def be_a_mob(path: Path, crowd: Crowd) -> None:
    """Connect all peers, report it on stdout, and misbehave until stdin ends."""
    request = b"".join(
        wire.encode_request(
            number, "lookup", {"kernel": "unknown", "problem": {"text": "x" * ECHO_BYTES}, "tune": False}
        )
        for number in range(ECHOES)
    )
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        idle, slow, deaf = (
            [stack.enter_context(paths.connect(str(path), PATIENT_S)) for _ in range(count)]
            for count in (crowd.idle, crowd.slow, crowd.deaf)
        )
        for connection in idle:
            connection.sendall(wire.encode_request(1, "hello", {}))
            assert connection.recv(4096)
        for connection in (*slow, *deaf):
            connection.sendall(wire.encode_request(0, "subscribe", {}))
            # More than the buffers hold: the rest stays unsent, as with any busy peer.
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.send(request)
        selector.register(sys.stdin, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sippers = itertools.cycle(slow)
        while not selector.select(SIP_EVERY_S / max(1, len(slow))):
            with contextlib.suppress(BlockingIOError, StopIteration):
                next(sippers).recv(SIP_BYTES)
        gone = sum(_is_closed(connection) for connection in (*idle, *slow, *deaf))
        sys.stdout.write(f"{gone}\n")


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while data := connection.recv(2**20):
            del data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@contextlib.contextmanager
def mob(path: Path, crowd: Crowd) -> Iterator[list[int]]:
    """Attach a mob to a daemon for the length of a block; afterwards the list holds the number of closed peers."""
    gone: list[int] = []
    command = [sys.executable, __file__, "--be-a-mob", str(path), str(crowd.idle), str(crowd.slow), str(crowd.deaf)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the mob could not connect")
            yield gone
        finally:
            process.stdin.close()
            gone += [int(line) for line in process.stdout]


def turns(calm: PrivateDaemon, beset: PrivateDaemon, lookups: int) -> tuple[list[float], list[float]]:
    """Look up at both daemons in turns; return the times of each in µs."""
    times: tuple[list[float], list[float]] = ([], [])
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(paths.connect(str(daemon.socket), PATIENT_S)) for daemon in (calm, beset)]
        for turn in range(2 * lookups // TURN):
            side = turn % 2
            for number in range(TURN):
                problem = {"N": turn * TURN + number}
                start = perf_counter_ns()
                _ask(channels[side], wire.encode_request(number, "lookup", {"kernel": "unknown", "problem": problem}))
                times[side].append((perf_counter_ns() - start) / 1e3)
    return times


def _ask(channel: socket.socket, request: bytes) -> None:
    channel.sendall(request)
    answer = msgpack.unpackb(channel.recv(4096))
    assert answer[2] is None, answer


def p99(times: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(times, n=100)[98]


def measure(crowd: Crowd, lookups: int) -> dict[str, float | int | bool]:
    """Run both daemons and the mob; return the figures."""
    with (
        private_home() as calm_home,
        private_home() as beset_home,
        serving(calm_home) as calm,
        serving(beset_home) as beset,
    ):
        turns(calm, beset, TURN)
        with mob(beset.socket, crowd) as gone:
            with Client(str(beset.socket)) as client:
                connections = client.call("status")["server"]["connections"]
            closed_s = {offence: offend(beset.socket, offence) for offence in OFFENCES}
            without, with_mob = turns(calm, beset, lookups)
        ratio = p99(with_mob) / p99(without)
        return {
            "connections": connections,
            "lookups": len(with_mob),
            "p50_us": round(statistics.median(without), 1),
            "p50_beset_us": round(statistics.median(with_mob), 1),
            "p99_us": round(p99(without), 1),
            "p99_beset_us": round(p99(with_mob), 1),
            "ratio": round(ratio, 2),
            "slowest_closing_s": round(max(closed_s.values()), 3),
            "others_closed": sum(gone),
            "within_budget": ratio <= P99_BUDGET and not sum(gone),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--idle", type=int, default=Crowd.idle)
    parser.add_argument("--slow", type=int, default=Crowd.slow)
    parser.add_argument("--deaf", type=int, default=Crowd.deaf)
    parser.add_argument("--lookups", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be-a-mob", nargs=4, metavar=("PATH", "IDLE", "SLOW", "DEAF"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_a_mob:
        path, *counts = arguments.be_a_mob
        be_a_mob(Path(path), Crowd(*map(int, counts)))
        return
    row = measure(Crowd(arguments.idle, arguments.slow, arguments.deaf), arguments.lookups)
    show(f"lookups beside a mob (budget: {P99_BUDGET:g} times the p99)", [row], as_json=arguments.json)


if __name__ == "__main__":
    main()

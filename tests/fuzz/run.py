"""Hostile byte streams against the codec in this process, and against a live daemon; whole and byte by byte.

    python tests/fuzz/run.py                     # 1,000,000 in process, 100,000 against a daemon
    python tests/fuzz/run.py --atheris           # guided by coverage, where atheris is installed

Fails on a crash, a hang, a stream whose meaning depends on how it is cut, growth of memory or of descriptors, or
a disturbed client.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from ktuned_client import paths, wire
from tests.e2e.harness import Daemon, make_kernel_text
from tests.fuzz.streams import make_streams

GROWTH_BYTES: Final = 16 * 2**20
"""What an allocator may take for itself over a run; a leak of 200 bytes a stream would be 200 MiB."""

HANG_S: Final = 30.0
WARM_UP: Final = 0.02
"""The share of the streams after which memory is measured first: by then every path has been taken."""

WITNESS_EVERY: Final = 50

SPARE_DESCRIPTORS: Final = 32
"""Workers come and go meanwhile, with their pipes; a leak would be one of each stream."""


@dataclass
class Report:
    """The results of a run."""

    streams: int = 0
    refused: int = 0
    messages: int = 0
    seconds: float = 0.0
    growth_bytes: int = 0
    descriptors_more: int = 0
    witness_worst_ms: float = 0.0


class ForbiddenEffect(AssertionError):
    """A stream with a forbidden effect; the message has its bytes in hex."""


def decode_stream(data: bytes, *, byte_by_byte: bool) -> tuple[list[wire.Message], bool]:
    """Return the messages of a stream, and whether it was refused."""
    decoder = wire.Decoder(wire.MAX_REQUEST_BYTES, wire.MAX_REQUEST_ITEMS)
    messages: list[wire.Message] = []
    try:
        if byte_by_byte:
            for index in range(len(data)):
                messages += decoder.feed(data[index : index + 1])
        else:
            messages += decoder.feed(data)
    except wire.ProtocolError:
        return messages, True
    return messages, False


def check_stream(data: bytes) -> tuple[int, bool]:
    """Decode a stream in both ways; return the number of its messages, and whether it is refused.

    Raises:
        Found: the two ways differ, or another error is raised than a refusal.
    """
    try:
        whole, is_refused = decode_stream(data, byte_by_byte=False)
        single, is_refused_too = decode_stream(data, byte_by_byte=True)
    except Exception as error:
        raise ForbiddenEffect(f"{type(error).__name__}: {error}: {data.hex()}") from error
    # What was whole before the bad bytes came is not handed out when they came along with it.
    if is_refused != is_refused_too or (not is_refused and repr(whole) != repr(single)):
        raise ForbiddenEffect(f"means something else in pieces: {data.hex()}")
    return len(single), is_refused


def fuzz_codec(count: int, seed: int) -> Report:
    """Decode ``count`` streams.

    Raises:
        Found: a stream has a forbidden effect, or memory grows.
    """
    report, process = Report(), psutil.Process()
    before, start = 0, time.perf_counter()
    for number, data in enumerate(make_streams(count, seed)):
        if number == int(count * WARM_UP):
            before = process.memory_info().rss
        messages, is_refused = check_stream(data)
        report.streams += 1
        report.messages += messages
        report.refused += is_refused
    report.seconds = round(time.perf_counter() - start, 1)
    report.growth_bytes = process.memory_info().rss - before
    if report.growth_bytes > GROWTH_BYTES:
        raise ForbiddenEffect(f"memory grew by {report.growth_bytes} bytes")
    return report


def send_stream(path: str, data: bytes, *, byte_by_byte: bool) -> int:
    """Send a stream over its own connection; return the number of bytes received until the daemon closed it.

    Raises:
        Found: the daemon did not close it.
    """
    received = 0
    with paths.connect(path, HANG_S) as connection:
        try:
            # A daemon that refuses the stream closes it before the end.
            with contextlib.suppress(ConnectionError):
                if byte_by_byte:
                    for index in range(len(data)):
                        connection.send(data[index : index + 1])
                else:
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while answer := connection.recv(65536):
                    received += len(answer)
        except TimeoutError:
            raise ForbiddenEffect(f"hangs: {data.hex()}") from None
        except OSError as error:
            if error.errno != 107:  # ENOTCONN: it was closed before our end was
                raise
    return received


def look_up_past_memo(daemon: Daemon) -> Any:
    """Look up as another client, without the memo."""
    return daemon.client.call("lookup", kernel="it", problem={"n": 64}, tune=False, deadline_s=HANG_S)["config"]


def fuzz_daemon(daemon: Daemon, count: int, seed: int) -> Report:
    """Send ``count`` streams to a daemon, whole and byte by byte, while another client looks up.

    Raises:
        Found: the daemon hangs or grows, or the other client gets a wrong answer or none.
    """
    assert daemon.process is not None
    report, process = Report(), psutil.Process(daemon.process.pid)
    before, descriptors, start = 0, process.num_fds(), time.perf_counter()
    expected = look_up_past_memo(daemon)
    for number, data in enumerate(make_streams(count, seed)):
        if number == int(count * WARM_UP):
            before = process.memory_info().rss
        for byte_by_byte in (False, True):
            report.messages += send_stream(str(daemon.socket), data, byte_by_byte=byte_by_byte) > 0
        report.streams += 1
        if number % WITNESS_EVERY == 0:
            asked_at = time.perf_counter()
            config = look_up_past_memo(daemon)
            report.witness_worst_ms = round(max(report.witness_worst_ms, 1e3 * (time.perf_counter() - asked_at)), 3)
            if config != expected:
                raise ForbiddenEffect(f"the witness was told {config}, after {data.hex()}")
    report.refused = daemon.client.call("status")["server"]["refused"]
    report.seconds = round(time.perf_counter() - start, 1)
    report.growth_bytes = process.memory_info().rss - before
    report.descriptors_more = max(0, process.num_fds() - descriptors)
    if report.descriptors_more > SPARE_DESCRIPTORS:
        raise ForbiddenEffect(f"the daemon has {report.descriptors_more} descriptors more")
    if report.growth_bytes > GROWTH_BYTES:
        raise ForbiddenEffect(f"the daemon's memory grew by {report.growth_bytes} bytes")
    if "method_failed" in (log := daemon.log.read_text()):
        raise ForbiddenEffect(log[log.index("method_failed") :][:2000])
    return report


def fuzz_own_daemon(count: int, seed: int) -> Report:
    """Run :func:`fuzz_daemon` on a daemon of its own, with a kernel to look up."""
    with tempfile.TemporaryDirectory(prefix="ktuned-fuzz-") as name, Daemon(Path(name)) as daemon:
        path = daemon.write_kernel(make_kernel_text("space(us=[50.0], tag=['a'])"))
        daemon.tune(path=path, trials=1)
        return fuzz_daemon(daemon, count, seed)


def run_atheris(arguments: list[str]) -> None:
    """Let atheris search for streams, guided by the codec's branches, until it finds one or ``arguments`` end it.

    The parser is msgpack's pure-Python one, whose branches atheris can see.
    """
    if "MSGPACK_PUREPYTHON" not in os.environ:
        os.environ["MSGPACK_PUREPYTHON"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    import atheris
    from msgpack import fallback

    for owner in (wire, wire.Decoder, fallback, fallback.Unpacker):
        for name, function in list(vars(owner).items()):
            if inspect.isfunction(function):
                setattr(owner, name, atheris.instrument_func(function))

    def one(data: bytes) -> None:
        check_stream(data)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def run_program() -> None:
    """Run the requested parts and print a report of each as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-process", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--live", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--atheris", nargs=argparse.REMAINDER, help="run atheris instead, with its own arguments")
    arguments = parser.parse_args()
    if arguments.atheris is not None:
        run_atheris(arguments.atheris)
        return
    runs = {"in_process": (fuzz_codec, arguments.in_process), "live": (fuzz_own_daemon, arguments.live)}
    for name, (run, count) in runs.items():
        if count:
            report = asdict(run(count, arguments.seed))
            sys.stdout.write(json.dumps({"run": name, "seed": arguments.seed, **report}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    run_program()

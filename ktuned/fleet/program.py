"""The daemon's children besides workers; a short-lived program gets bytes and gives bytes, within a deadline."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import msgspec

from ktuned.fleet.failures import describe_exit
from ktuned.fleet.process_group import ProcessGroup
from ktuned.model import KtunedError

MAX_OUTPUT_BYTES = 64 * 2**20
"""Largest file that a program may write, its output included."""

REAP_S = 2.0
"""How long a killed program may take to be gone. One that hangs in a file system may stay; nothing waits for it."""


class ProgramFailed(KtunedError):
    """A program could not be started, ended with an error, or did not end in time."""

    code = "program_failed"


class Programs(msgspec.Struct, eq=False):
    """Children of the daemon that are no workers.

    Attributes:
        env: Their environment. It has the daemon's mark, by which its warden finds what must not outlive it.
        pids: The ids of those that run, which are no orphans.
    """

    env: Mapping[str, str]
    pids: set[int] = set()


async def run_program(
    command: Sequence[str],
    request: bytes,
    *,
    deadline_s: float,
    directory: Path,
    programs: Programs,
) -> bytes:
    """Run a program in a session of its own and return its output.

    Its process group is killed when it has ended, at the deadline, and if the caller is cancelled.

    Args:
        command: The program and its arguments.
        request: Its input.
        deadline_s: Seconds that it may take.
        directory: Its working directory.
        programs: Has its environment, and its id while it runs.

    Raises:
        ProgramFailed: It cannot be started, ended with an error, or did not end in time.
    """
    # Files in memory: neither side ever waits for the other.
    given, answered = os.memfd_create("request"), os.memfd_create("answer")
    try:
        with os.fdopen(os.dup(given), "wb") as stream:
            stream.write(request)
        os.lseek(given, 0, os.SEEK_SET)
        process = _start_program(command, given, answered, directory, programs.env)
        programs.pids.add(process.pid)
        ended = anyio.Event()

        def on_exit() -> None:
            programs.pids.discard(process.pid)
            ended.set()

        group = ProcessGroup(process, on_exit)
        try:
            with anyio.move_on_after(deadline_s):
                await ended.wait()
            is_late = not ended.is_set()
        finally:
            group.kill()
            with anyio.move_on_after(REAP_S, shield=True):
                await ended.wait()
        if is_late:
            raise ProgramFailed(f"no answer within {deadline_s:g} s")
        if group.returncode:
            lines = group.tails[0].take_text().strip().splitlines()
            raise ProgramFailed(f"it {describe_exit(group.returncode)}{f': {lines[-1][:300]}' if lines else ''}")
        return os.pread(answered, MAX_OUTPUT_BYTES, 0)
    finally:
        os.close(given)
        os.close(answered)


def _start_program(
    command: Sequence[str], given: int, answered: int, directory: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=answered,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=directory,
            env=env,
        )
    except OSError as error:
        raise ProgramFailed(f"{command[0]} cannot be started: {error.strerror}") from error
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES))
    return process

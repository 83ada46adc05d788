"""The daemon's wish for short slices is heard, is its own, and leaves policy and niceness as they were."""

import os
import subprocess
import sys

import pytest

ASKS = """
import ctypes, os, struct, sys
from ktuned.lookup.time_slices import ask_for_short_slices

def told():
    attributes = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
    size, policy, flags, nice, priority, slice_ns, deadline, period = struct.unpack("=IIQiIQQQ", attributes.raw)
    return policy, nice, slice_ns

os.nice(3)
before = told()
if not ask_for_short_slices():
    sys.exit("refused")
child = os.fork()
if not child:
    os._exit(told() != before)
assert os.waitpid(child, 0)[1] == 0
print(*before, *told())
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="the system call's number is not known")
def test_short_slices() -> None:
    """Linux 6.12 and newer say so; older ones take the wish all the same."""
    ended = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, timeout=60, check=False)
    if ended.stderr == "refused\n":
        pytest.skip("this system does not let us ask")
    assert not ended.stderr
    policy, nice, slice_ns, policy_then, nice_then, slice_then = map(int, ended.stdout.split())
    assert (policy_then, nice_then) == (policy, nice) == (os.SCHED_OTHER, os.nice(0) + 3)
    if slice_ns:
        assert slice_then == 100_000 < slice_ns

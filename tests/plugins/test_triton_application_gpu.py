"""Applications on a GPU, from the first call to the winner: odd tensors, and exact numerics in a library."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Daemon

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DEADLINE_S = 240.0

ODD_TENSORS = """\
import sys
import torch, triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 512, 2048)], key=["n"])
@triton.jit
def combine(x, y, row, empty, cube, out, n, row_stride, c0, c4, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = at < n
    total = tl.load(x + at, mask=within) + tl.load(y + at, mask=within) + tl.load(row + at * row_stride, mask=within)
    total += tl.load(cube + at // 64 * c0 + at % 64 * c4, mask=within) + tl.load(empty + at, mask=at < 0, other=0.0)
    tl.store(out + at, total, mask=within)


def main():
    n = 64 * 1024
    storage = torch.randn(n + 1, device="cuda")
    x, y = storage[:-1], storage[1:]
    row = torch.randn(1, device="cuda").expand(n)
    empty = torch.empty(0, device="cuda")
    cube = torch.randn(1024, 1, 1, 1, 64, device="cuda")
    guarded = torch.full((n + 2048,), 7.0, device="cuda")
    out = guarded[3 : n + 3]
    combine[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](
        x, y, row, empty, cube, out, n, row.stride(0), cube.stride(0), cube.stride(4)
    )
    expected = x + y + row + cube.flatten()
    print(torch.allclose(out, expected), bool((guarded[:3] == 7).all() and (guarded[n + 3 :] == 7).all()))
"""
"""Two tensors that overlap, one of which is misaligned; an expanded, an empty, a 5-dimensional and an offset one."""

LIBRARY = """\
import hashlib, sys
import torch
from benchmarks.library_program import cut_lists_to_first_config, make_trifast
if sys.argv[1] == "first":
    cut_lists_to_first_config()
workload = make_trifast()
digests = set()
for _ in range(100):
    outputs = workload.step()
    data = b"".join(output.contiguous().view(torch.uint8).cpu().numpy().tobytes() for output in outputs)
    digests.add(hashlib.sha256(data).hexdigest())
print(*sorted(digests))
"""
"""Prints the digests of a hundred steps' outputs and gradients."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon; applications have its home, and their own places for Triton's and their winners."""
    variables = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with Daemon(tmp_path, spares=True, tensors="torch", env=variables) as running:
        yield running


def test_odd_tensors_are_tuned_and_right(daemon: Daemon, tmp_path: Path) -> None:
    """Nothing is left alone for its tensors, and no launch writes outside of them."""
    (tmp_path / "odd_tensors.py").write_text(ODD_TENSORS)
    command = "run", "--wait", sys.executable, "-c", "import odd_tensors; odd_tensors.main()"
    for _ in range(2):
        done = daemon.run_ktuned(*command, timeout_s=DEADLINE_S)
        assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
        assert "1 tuning key: 1 tuned, 0 recorded now" in done.stderr
        assert "left alone" not in done.stderr
    (job,) = daemon.client.call("jobs")["jobs"]
    assert (job["state"], sum(job["outcomes"].values())) == ("done", 3), job
    assert set(job["outcomes"]) <= {"measured", "slower"}, job


def test_exact_numerics_keep_a_librarys_bits(daemon: Daemon, tmp_path: Path) -> None:
    """Although the library's own store has winners with other bits; a hundred steps before and after the tuning."""
    pytest.importorskip("trifast")
    program = tmp_path / "program.py"
    program.write_text(LIBRARY)

    def run(*words: str) -> str:
        done = subprocess.run(
            [*words, sys.executable, str(program), "all"],
            env=daemon.env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        assert "left alone" not in done.stderr
        return done.stdout

    first = subprocess.run(
        [sys.executable, str(program), "first"],
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    run()
    ktuned = sys.executable, "-m", "ktuned", "run", "--numerics", "exact"
    assert run(*ktuned) == run(*ktuned, "--wait") == run(*ktuned) == first
    assert {job["state"] for job in daemon.client.call("jobs", limit=100)["jobs"]} == {"done"}

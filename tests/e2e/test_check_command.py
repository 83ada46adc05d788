"""``ktuned check`` runs a winner again with all checks, and under a sanitizer if one is installed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest

from tests.e2e.harness import UNHURRIED, Daemon, make_kernel_text
from tests.fake_tensors import REFERENCE

SOURCE = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void twice(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  volatile float before = from[-1 * READS_BEFORE];
  for (long i = 0; i < x.size(0); ++i) to[i] = 2 * from[i];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, twice);
"""

KERNEL = f"""
import without_torch
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

@kernel(
    sources=["twice.cc"],
    backend="tvm_ffi",
    space=space(READS_BEFORE=[1]),
    problems=[dict(n=64)],
    inputs=lambda p: dict(x=tensor(p.n), y=tensor(p.n, output=True)),
    reference=lambda x: dict(y=2 * x),
    preset="fast",
    deadlines={UNHURRIED},
)
def it(p, c):
    return Build("twice", ("x", "y"), dict(c))
"""


def check_winner(daemon: Daemon, *words: str) -> tuple[int, dict[str, object], str]:
    done = daemon.run_ktuned("check", "it", "--json", *words, timeout_s=200.0)
    return done.returncode, json.loads(done.stdout)["winners"][0] if done.stdout else {}, done.stderr


def test_check_names_what_is_wrong_with_a_winner(daemon: Daemon) -> None:
    """A winner can become wrong when a library changes; the next best config is served then."""
    configs = (
        "[dict(us=50.0, does='changes', gate='spoilt', tag='it'), dict(us=900.0, does='work', gate='', tag='next')]"
    )
    path = daemon.write_kernel(make_kernel_text(f"space({configs})", early_stop="100.0", reference=REFERENCE))
    assert daemon.run_ktuned("check", "it").returncode == 1
    daemon.tune(path=path)
    code, winner, _ = check_winner(daemon)
    assert (code, winner["verdict"], winner["checks"]) == (
        0, "right", ["guards", "again after timing", "seed 1", "seed 2"]
    )  # fmt: skip
    assert "no sanitizer for the backend 'fake'" in str(check_winner(daemon, "--sanitize")[1]["message"])
    assert (daemon.look_up().config or {})["tag"] == "it"
    (daemon.gates / "spoilt").touch()
    code, winner, _ = check_winner(daemon)
    assert (code, winner["verdict"]) == (1, "wrong")
    assert "64 of 64 elements" in str(winner["message"])
    assert daemon.fetch_trials()["it"]["outcome"] == "mismatch"
    assert (daemon.look_up().config or {})["tag"] == "next"
    assert check_winner(daemon)[1]["verdict"] == "right"


def test_check_compares_with_the_first_loadable_config(daemon: Daemon) -> None:
    """Without a declared default, that config is the reference."""
    configs = "[dict(us=us, does=does) for us, does in ((40.0, 'unsupported'), (900.0, 'work'), (50.0, 'changes'))]"
    text = make_kernel_text(
        f"space({configs})", body="Build(**c, gate='spoilt' if c.does == 'changes' else '')", reference="'default'"
    )
    daemon.tune(path=daemon.write_kernel(text))
    code, winner, _ = check_winner(daemon)
    assert (code, winner["verdict"]) == (0, "right")
    (daemon.gates / "spoilt").touch()
    code, winner, _ = check_winner(daemon)
    assert (code, winner["verdict"]) == (1, "wrong")
    assert "differs from the default's outputs" in str(winner["message"])


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ with libasan")
def test_a_sanitizer_finds_what_guards_do_not(daemon: Daemon) -> None:
    """A read of the element before a tensor hits no guard page; AddressSanitizer, if installed, names the line."""
    path = daemon.write_kernel(KERNEL)
    (path.parent / "twice.cc").write_text(SOURCE)
    daemon.tune(path=path)
    assert check_winner(daemon)[1]["verdict"] == "right"
    known = read_learned_names(daemon)
    assert known
    code, winner, errors = check_winner(daemon, "--sanitize")
    assert code == 1, errors
    # The sanitizer's library and flag, and the daemon's directory, say nothing about the kernel.
    assert read_learned_names(daemon) == known
    if not _has_library():
        assert "AddressSanitizer is not installed here" in str(winner["message"])
        return
    assert winner["verdict"] == "wrong", winner
    assert "heap-buffer-overflow" in str(winner["message"])
    assert "twice.cc" in str(winner["report"])


def read_learned_names(daemon: Daemon) -> set[str]:
    """Return the names of what compiling and measuring have read; the store keeps comparisons beside them."""
    with closing(sqlite3.connect(f"file:{daemon.home}/ktuned.sqlite?mode=ro", uri=True)) as store:
        return {name for (name,) in store.execute("SELECT name FROM learned WHERE name NOT LIKE 'made:%'")}


def _has_library() -> bool:
    path = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    return path.startswith("/")

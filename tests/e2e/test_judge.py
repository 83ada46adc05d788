"""``ktuned judge`` on real C++: verdicts, comparisons, errors, and what is left when the daemon dies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ktuned.cli.output import Exit
from ktuned_client import DaemonUnavailable
from ktuned_client.aio import AsyncClient
from tests.e2e.harness import UNHURRIED, Daemon

KERNEL = """
import without_torch
from ktuned import kernel, space, tensor
from ktuned_tvm_ffi import Build

@kernel(
    backend="tvm_ffi", sources=["scale.cc"], space=space(MODE=[0, 1, 2, 3, 4, 5, 6]), default=dict(MODE=0),
    problems={problems}, preset="fast", reference=lambda x: dict(y=2 * x),
    inputs=lambda p: dict(x=tensor((p.n,)), y=tensor((p.n,), output=True)), deadlines={deadlines},
)
def {name}(p, c):
    return Build("scale", ("x", "y"), defines=dict(MODE=c.MODE))
"""
SOURCE = """#include <cstdlib>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
void scale(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  float* out = static_cast<float*>(y.data_ptr());
#if MODE == 1
  missing(x);
#elif MODE == 2
  std::abort();
#elif MODE == 3
  for (;;) asm volatile("");
#endif
  for (long i = 0; i < x.size(0); ++i) {
    out[i] = (MODE == 4 || (MODE == 5 && x.size(0) > 64) ? 3 : 2) * in[i];
    for (int again = 0; again < (MODE == 6 ? 2000 : 0); ++again) asm volatile("" ::: "memory");
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
"""
VERDICTS = {0: "right", 1: "compile_error", 2: "crashed", 4: "wrong", 5: "wrong", 6: "right"}
HURRIED = UNHURRIED.replace("first_launch=60.0, floor=60.0", "first_launch=5.0, floor=5.0")


def write_scale(daemon: Daemon, name: str = "scale", problems: str = "[dict(n=64)]", source: str = SOURCE) -> Path:
    """Write the file of a kernel and its C++ into a directory of their own; return the kernel file's path."""
    text = KERNEL.format(problems=problems, deadlines=HURRIED, name=name)
    path = daemon.write_kernel(text, f"{name}/tune_{name}.py")
    (path.parent / "scale.cc").write_text(source)
    return path


def name_configs(*modes: int) -> list[dict[str, int]]:
    return [dict(MODE=mode) for mode in modes]


def find_candidates(daemon: Daemon) -> list[int]:
    """Return the ids of the processes that a daemon's referees have started."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        # Processes may end at any time.
        with suppress(OSError):
            is_ours = f"FAKE_GATE={daemon.gates}".encode() in (directory / "environ").read_bytes()
            if is_ours and b"ktuned.judging" in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    return found


def list_verdicts(answer: Any) -> dict[int, str]:
    """Return the verdict on each candidate by its ``MODE``, in the order of the answer."""
    return {candidate["config"]["MODE"]: candidate["verdict"] for candidate in answer["candidates"]}


def test_each_candidate_gets_what_it_deserves(daemon: Daemon) -> None:
    """No verdict depends on the candidates before it, and no candidate wins."""
    path = write_scale(daemon, problems="[dict(n=64), dict(n=4096)]")
    modes = sorted(VERDICTS)
    answers = [daemon.client.judge(path=path, configs=name_configs(*order)) for order in (modes, modes[::-1])]
    for order, answer in zip((modes, modes[::-1]), answers, strict=True):
        assert list(list_verdicts(answer)) == order
        assert list_verdicts(answer) == VERDICTS
        assert (answer["judge"], answer["kernel"], answer["file"]) == (1, "scale:scale", str(path))
    by_mode = {candidate["config"]["MODE"]: candidate for candidate in answers[0]["candidates"]}

    # What is right has figures for each problem.
    for small, large in (by_mode[0]["problems"], by_mode[6]["problems"]):
        assert (small["problem"], large["problem"]) == ({"n": 64}, {"n": 4096})
        for problem in (small, large):
            assert (problem["latency_us"] or 0) > 0 < (problem["factor_over"]["reference"] or 0)
            assert problem["factor_over"]["winner"] is problem["factor_over"]["against"] is None
    assert [problem["factor_over"]["default"] for problem in by_mode[0]["problems"]] == [1.0, 1.0]
    assert (by_mode[6]["problems"][1]["factor_over"]["default"] or 1) < 1
    assert by_mode[0]["checked"]
    # What is wrong for one problem is wrong.
    assert [problem["verdict"] for problem in by_mode[5]["problems"]] == ["right", "wrong"]
    assert by_mode[5]["reason"] == by_mode[5]["problems"][1]["reason"] != ""
    assert by_mode[4]["problems"][0]["latency_us"] is None
    # What does not compile has its place.
    (error,) = by_mode[1]["errors"]
    assert (Path(error["file"]).name, error["line"], error["column"]) == ("scale.cc", 8, 3)
    assert "missing" in error["message"]

    assert daemon.client.lookup("scale", dict(n=64), device="cpu:0").status == "default"
    assert daemon.client.call("results", kernel="scale")["trials"] == []
    judged = daemon.client.call("results", kernel="scale", judged=True)["trials"]
    assert len(judged) == 2 * len(VERDICTS)
    assert not any(trial["winner"] for trial in judged)


async def judge_with_asyncio(socket: str, **request: Any) -> Any:
    async with AsyncClient(socket) as client:
        return await client.judge(**request)


@pytest.mark.anyio
async def test_candidates_are_compared(daemon: Daemon) -> None:
    """With the winner, with a config, and with another file's kernel. A tuning takes over nothing that was judged."""
    path = write_scale(daemon)
    socket = str(daemon.socket)
    unknown = await judge_with_asyncio(socket, path=path, configs=name_configs(6), against="winner")
    assert unknown["candidates"][0]["problems"][0]["factor_over"]["against"] is None
    daemon.tune(path=path, configs=name_configs(0, 6))
    trials = daemon.client.call("results", kernel="scale", details=True)["trials"]
    assert {trial["outcome"] for trial in trials} <= {"measured", "slower"}
    assert all(trial["lane_s"] > 0 and "carried_from" not in trial["detail"].get("timing", {}) for trial in trials)

    for against in ("winner", dict(MODE=0)):
        answer = await judge_with_asyncio(socket, kernel="scale", configs=name_configs(6, 4), against=against)
        slow, wrong = (candidate["problems"][0] for candidate in answer["candidates"])
        assert 0 < slow["factor_over"]["against"] < 1 > slow["factor_over"]["winner"] > 0
        assert wrong["factor_over"] == dict(reference=None, default=None, winner=None, against=None)
    other = write_scale(daemon, "other", source=SOURCE.replace("MODE == 6", "true").replace("2000", "20000"))
    answer = await judge_with_asyncio(socket, kernel="scale", configs=name_configs(6), against=other)
    assert answer["candidates"][0]["problems"][0]["factor_over"]["against"] > 1


def test_the_command_says_what_became_of_candidates(daemon: Daemon) -> None:
    """By its exit status, by JSON and in words; so it does of errors."""
    path = write_scale(daemon)
    for modes, code in (
        ((0, 4), Exit.DONE),
        ((4,), Exit.WRONG),
        ((1,), Exit.COMPILE_ERROR),
        ((2, 4), Exit.WRONG),
    ):
        options = [word for mode in modes for word in ("--config", f"MODE={mode}")]
        result = daemon.run_ktuned("judge", str(path), *options, "--quick", "--json")
        assert result.returncode == code
        assert list(list_verdicts(json.loads(result.stdout))) == list(modes)
    shown = daemon.run_ktuned("judge", "scale", "--config", "MODE=1", "--quick")
    assert "MODE=1: compile_error\n  scale.cc:8:3: " in shown.stdout

    broken = daemon.write_kernel("1 / 0\n", "tune_broken.py")
    for words, code, error in (
        ((str(broken),), Exit.NOT_REACHED, "kernel_file"),
        (("nothing",), Exit.NOT_REACHED, "not_found"),
        ((str(path), "--config", "SPEED=1"), Exit.USAGE, "usage"),
        ((str(path), "--against", "nothing"), Exit.USAGE, "usage"),
    ):
        failed = daemon.run_ktuned("judge", *words, "--json")
        assert (failed.returncode, failed.stdout) == (code, "")
        fault = json.loads(failed.stderr.splitlines()[-1])["error"]
        assert (fault.keys(), fault["code"]) == ({"code", "message", "hint"}, error)


def test_a_daemon_that_dies_leaves_nothing_behind(daemon: Daemon) -> None:
    """The next daemon judges the job again: it is no winner then, either."""
    path = write_scale(daemon)
    daemon.client.judge(path=path, configs=name_configs(0), quick=True)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(daemon.client.judge, path=path, configs=name_configs(3, 6), quick=True)

        def is_judging() -> bool:
            lanes = daemon.client.call("status")["lanes"]
            return any(lane["job"] == 2 for lane in lanes) and bool(find_candidates(daemon))

        daemon.wait_until(is_judging, "the candidate to run")
        daemon.kill()
        with pytest.raises(DaemonUnavailable):
            asked.result()
    daemon.wait_until(lambda: not find_candidates(daemon), "the candidates to end")
    daemon.start()
    daemon.wait_until(lambda: daemon.client.call("jobs", job=2)["jobs"][0]["state"] == "done", "the job to end")
    (job,) = daemon.client.call("jobs", job=2)["jobs"]
    assert job["outcomes"]["hung"] == 1
    trials = daemon.client.call("results", kernel="scale", job=2)["trials"]
    assert {trial["config"]["MODE"]: trial["outcome"] for trial in trials}[6] == "measured"
    assert daemon.look_up("scale").status == "default"

"""The referee, through a real bench worker: honest candidates are right, and dishonest ones are found out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from ktuned.backends import Registry
from ktuned.ipc import Places
from ktuned.ipc.requests import Close, Trial
from ktuned.judging import Referee
from ktuned.model import (
    PRESETS,
    DeviceModel,
    Judgement,
    JudgeVerdict,
    Outcome,
    Peaks,
    TrialDetail,
    TrialResult,
)
from ktuned.tuning.limits import merge_deadlines
from ktuned.worker.judge import Judge
from tests.judging.court import INPUTS, Court, open_court

HONEST = """
void run(TensorView x, TensorView y, TensorView out) {
  for (int64_t i = 0; i < x.shape()[0]; ++i) at(out)[i] = at(x)[i] * at(y)[i] + at(x)[i];
}
"""


ENDLESS = "void run(TensorView x, TensorView y, TensorView out) { for (volatile bool always = true; always;) {} }"


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    """A worker that all tests here share."""
    with open_court(tmp_path_factory.mktemp("court")) as court:
        cheats = {name.replace(" ", "_"): body for name, (body, _) in CHEATS.items()}
        court.write_candidates({"honest": HONEST, "endless": ENDLESS, **cheats}, COMPUTE)
        yield court


def test_an_honest_source_is_right(court: Court) -> None:
    result = court.judge_source("honest")
    assert (result.outcome, result.detail.judged.verdict) == (Outcome.MEASURED, JudgeVerdict.RIGHT), result.message
    assert result.latency_us is not None
    assert result.detail.judged.not_enforced == ()


def test_an_honest_function_is_right(court: Court) -> None:
    result = court.judge_function("import torch\ndef run(x, y, out):\n    torch.addcmul(x, x, y, out=out)\n")
    assert result.detail.judged.verdict == JudgeVerdict.RIGHT, result.message


WRONG, CHEATING, CRASHED, HUNG = JudgeVerdict.WRONG, JudgeVerdict.CHEATING, JudgeVerdict.CRASHED, JudgeVerdict.HUNG

COMPUTE = """
// The number of a launch that is timed. A busy machine repeats the first launches, but not as often.
constexpr int TIMED = 600;
void compute(TensorView x, TensorView y, TensorView out) {
  for (int64_t i = 0; i < x.shape()[0]; ++i) at(out)[i] = at(x)[i] * at(y)[i] + at(x)[i];
}
"""

CHEATS = {
    "nothing": ("void run(TensorView x, TensorView y, TensorView out) {}", {WRONG}),
    "replays by address": (
        """
        std::map<float*, std::vector<float>> known;
        void run(TensorView x, TensorView y, TensorView out) {
          auto found = known.find(at(x));
          const int64_t n = x.shape()[0];
          if (found != known.end()) { std::memcpy(at(out), found->second.data(), 4 * n); return; }
          compute(x, y, out);
          known[at(x)] = std::vector<float>(at(out), at(out) + n);
        }
        """,
        {WRONG, CHEATING},
    ),
    "replays the first outputs": (
        """
        std::vector<float> known;
        void run(TensorView x, TensorView y, TensorView out) {
          const int64_t n = x.shape()[0];
          if (!known.empty()) { std::memcpy(at(out), known.data(), 4 * n); return; }
          compute(x, y, out);
          known = std::vector<float>(at(out), at(out) + n);
        }
        """,
        {WRONG, CHEATING},
    ),
    "replays by a part of the inputs": (
        """
        std::map<float, std::vector<float>> known;
        void run(TensorView x, TensorView y, TensorView out) {
          const int64_t n = x.shape()[0];
          const float key = at(x)[0];
          auto found = known.find(key);
          if (found != known.end()) { std::memcpy(at(out), found->second.data(), 4 * n); return; }
          compute(x, y, out);
          known[key] = std::vector<float>(at(out), at(out) + n);
        }
        """,
        {WRONG, CHEATING},
    ),
    "works late": (
        """
        float *last_x, *last_y, *last_out;
        void run(TensorView x, TensorView y, TensorView out) {
          const int64_t n = x.shape()[0];
          if (last_out) for (int64_t i = 0; i < n; ++i) last_out[i] = last_x[i] * last_y[i] + last_x[i];
          last_x = at(x); last_y = at(y); last_out = at(out);
        }
        """,
        {WRONG},
    ),
    "drifts": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          compute(x, y, out);
          if (++count > 300) at(out)[0] += 1;
        }
        """,
        {WRONG},
    ),
    "skips half": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          if (++count > 9 && count % 2) { at(out)[0] = 0; return; }
          compute(x, y, out);
        }
        """,
        {WRONG},
    ),
    "overwrites an input": (
        "void run(TensorView x, TensorView y, TensorView out) { compute(x, y, out); at(x)[5] = 0; }",
        {WRONG},
    ),
    "writes beyond": (
        "void run(TensorView x, TensorView y, TensorView out) { compute(x, y, out); at(out)[x.shape()[0] + 100] = 1; }",
        {WRONG},
    ),
    "works in a thread after it has returned": (
        """
        void run(TensorView x, TensorView y, TensorView out) {
          std::thread([=] {
            for (volatile int i = 0; i < 3000000; ++i) {}
            compute(x, y, out);
          }).detach();
        }
        """,
        {WRONG, CHEATING},
    ),
    "forges answers": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          const char forged[] = "\\0\\0\\0\\x0f\\x81\\xa4type\\xa8Finished";
          if (++count > 2) for (int fd = 3; fd < 64; ++fd) (void)!write(fd, forged, sizeof forged - 1);
          compute(x, y, out);
        }
        """,
        {CHEATING},
    ),
    "exits": (
        """
        void run(TensorView x, TensorView y, TensorView out) { compute(x, y, out); _exit(0); }
        """,
        {CRASHED},
    ),
    "aborts": ("void run(TensorView x, TensorView y, TensorView out) { abort(); }", {CRASHED}),
    "hangs": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          compute(x, y, out);
          volatile bool always = true;
          while (++count > 20 && always) {}
        }
        """,
        {HUNG},
    ),
    "starts a thread while it is timed": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          compute(x, y, out);
          if (++count == TIMED) std::thread([] { for (;;) std::this_thread::yield(); }).detach();
        }
        """,
        {CHEATING},
    ),
    "installs a signal handler while it is timed": (
        """
        int count = 0;
        void run(TensorView x, TensorView y, TensorView out) {
          compute(x, y, out);
          if (++count == TIMED) std::signal(SIGUSR1, [](int) {});
        }
        """,
        {CHEATING},
    ),
    "leaves to a child": (
        """
        void run(TensorView x, TensorView y, TensorView out) {
          if (fork() == 0) { setsid(); compute(x, y, out); _exit(0); }
        }
        """,
        {WRONG},
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_not_right(court: Court, cheat: str) -> None:
    _, expected = CHEATS[cheat]
    result = court.judge_source(cheat.replace(" ", "_"))
    assert result.detail.judged.verdict in expected, result.message
    assert result.latency_us is None


def test_a_hang_costs_its_deadline_and_no_worker(court: Court) -> None:
    court.deadlines = merge_deadlines({"first_launch": 1.0})
    try:
        result = court.judge_source("endless")
    finally:
        court.deadlines = merge_deadlines()
    assert (result.detail.judged.verdict, result.message) == (HUNG, "it did not answer within 1 s")
    assert court.judge_source("honest").detail.judged.verdict == JudgeVerdict.RIGHT


@pytest.mark.parametrize("operations", ["1e12", "1"])
def test_a_figure_beyond_the_device_s_limits_is_not_right(court: Court, operations: str) -> None:
    """The limits are measured again; whether that was disturbed decides whether the candidate has cheated."""
    court.peaks = Peaks(court.device.model, tflops={"float32": 0.01})
    try:
        # So many operations take longer, so the launches must have been timed wrongly.
        result = court.judge_source("honest", n=1 << 16, declared=f"{INPUTS}, flops={operations}")
    finally:
        court.peaks = None
    if operations == "1":
        assert (result.outcome, result.detail.judged.verdict) == (Outcome.MEASURED, JudgeVerdict.RIGHT), result.message
    else:
        assert result.detail.judged.verdict in {JudgeVerdict.REFUSED, CHEATING}, result.message
        assert "it would be faster than its device: tflops is" in result.message
        assert result.latency_us is None


AGAIN = Peaks(DeviceModel("made up"), gbps=10.0, tflops={"float32": 2.0})


@pytest.mark.parametrize(
    ("again", "working_bytes", "verdict"),
    [
        # The limit was measured too low before.
        (msgspec.structs.replace(AGAIN, tflops={"float32": 9.0}), 1 << 40, JudgeVerdict.RIGHT),
        (AGAIN, 1 << 40, CHEATING),
        # The data fit into the cache.
        (AGAIN, 1 << 10, JudgeVerdict.REFUSED),
        # Nothing was found out.
        (msgspec.structs.replace(AGAIN, doubt="other programs"), 1 << 40, JudgeVerdict.REFUSED),
        (Peaks(DeviceModel("made up")), 1 << 40, JudgeVerdict.REFUSED),
    ],
)
def test_limits_that_are_exceeded_are_measured_again(
    again: Peaks, working_bytes: int, verdict: JudgeVerdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktuned.worker.judge.measure_peaks", lambda device: again)
    referee = Referee.__new__(Referee)
    referee.gpu = None
    referee.arena = SimpleNamespace(layout=SimpleNamespace(working_bytes=working_bytes))  # type: ignore[assignment]
    problem: Any = SimpleNamespace(device=None, costs=SimpleNamespace(metrics=lambda us: {"tflops": 5.0, "gbps": 1.0}))
    request = Trial((), PRESETS["default"], False, peaks=AGAIN)
    right = TrialResult(Outcome.MEASURED, 1.0, detail=TrialDetail(judged=Judgement(JudgeVerdict.RIGHT, "it is right")))
    places = Places({}, "artifacts", "expected")
    result = Judge(Registry(), places).check_limits(right, referee, problem, request)
    assert result.detail.judged.verdict == verdict


def test_nothing_is_left(court: Court) -> None:
    """Candidates, a third of which crash, leave no process, no directory and no memory."""
    worker = psutil.Process(court.pid)

    def look() -> tuple[int, int, int]:
        # The process of the next candidate may be about to be started.
        court.send_request(Close())
        return len(worker.children(recursive=True)), worker.num_fds(), len(os.listdir(court.scratch))

    def judge(number: int) -> None:
        court.judge_source("aborts" if number % 3 == 2 else "nothing", n=64)

    for number in range(6):
        judge(number)
    before, memory = look(), worker.memory_info().rss
    for number in range(12):
        judge(number)
    assert look() == before
    assert worker.memory_info().rss - memory < 4 << 20

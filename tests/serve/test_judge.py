from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ktuned.protocol import JudgeAnswer
from tests.daemon_parts import Parts, make_kernel_text
from tests.fake_tensors import REFERENCE
from tests.serve.test_methods import Methods

pytestmark = pytest.mark.anyio

DEFAULT = dict(us=50.0, does="work")
SPACE = "space(does=['work', 'wrong', 'segfault', 'compile_error', 'raise', 'unsupported'], us=[50.0, 60.0])"


async def judge(parts: Parts, **params: Any) -> JudgeAnswer:
    """Call the method ``judge`` while jobs run."""
    async with parts.run_jobs():
        return msgspec.convert(await Methods(parts).call_method("judge", **params), JudgeAnswer)


async def inspect_judged_kernel(parts: Parts, **options: str) -> None:
    await parts.inspect_file(
        make_kernel_text(**{"space": SPACE, "default": repr(DEFAULT), "reference": REFERENCE, **options})
    )


FAULTS = {
    "wrong": ("wrong", "y: 64 of 64 elements"),
    "segfault": ("crashed", "SIGSEGV"),
    "raise": ("crashed", "RuntimeError: the launch was refused"),
    "compile_error": ("compile_error", "fake.c:1: error: no"),
    "unsupported": ("refused", "wants more shared memory than there is"),
}


async def test_each_candidate_has_its_verdict_in_the_order_of_the_request(parts: Parts) -> None:
    await inspect_judged_kernel(parts)
    for faults in (list(FAULTS), list(reversed(FAULTS))):
        answer = await judge(parts, kernel="it", configs=[dict(us=50.0, does=fault) for fault in faults])
        assert [candidate.config["does"] for candidate in answer.candidates] == faults
        for fault, candidate in zip(faults, answer.candidates, strict=True):
            verdict, words = FAULTS[fault]
            assert candidate.verdict == verdict, candidate
            assert words in candidate.reason
            (problem,) = candidate.problems
            assert (problem.problem, problem.verdict, problem.latency_us) == ({"n": 64}, verdict, None)
            assert [error.line for error in candidate.errors] == ([1] if fault == "compile_error" else [])

"""``judge`` against a fake daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ktuned.cli.output import Exit
from ktuned.model import JudgeVerdict
from tests.cli.conftest import RunCli, StartDaemon
from tests.cli.fake_daemon import Refusal
from tests.cli.samples import DEVICE, KERNEL


def make_problem(verdict: str, **facts: Any) -> dict[str, Any]:
    return {
        "problem": {"M": 64},
        "verdict": verdict,
        "reason": f"it is {verdict}",
        "latency_us": None,
        "spread_us": None,
        "factor_over": {"reference": None, "default": None, "winner": None, "against": None},
        "limit": None,
        "limit_share": None,
        "trial": 7,
        **facts,
    }


RIGHT = make_problem(
    "right",
    latency_us=12.5,
    spread_us=0.5,
    factor_over={"reference": 3.1, "default": None, "winner": 0.9, "against": None},
    limit="memory bandwidth",
    limit_share=0.43,
)


def make_candidate(verdict: str, *problems: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {
        "config": {"BM": len(verdict)},
        "verdict": verdict,
        "reason": f"it is {verdict}",
        "problems": list(problems) or [make_problem(verdict)],
        "registers": None,
        "spills": None,
        "errors": [],
        "checked": [],
        "not_enforced": [],
        **facts,
    }


def make_judged(*candidates: dict[str, Any]) -> dict[str, Any]:
    return {"judge": 1, "kernel": KERNEL, "file": "/src/tune_it.py", "device": DEVICE, "candidates": list(candidates)}


def test_the_table_has_only_columns_with_figures(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    """A bad candidate's reason, or its errors, follow the table; what is not enforced is said once."""
    errors = [{"file": "gemm.cu", "line": 3, "column": 7, "message": "bad"}]
    start_daemon(
        judge=make_judged(
            make_candidate("right", RIGHT, not_enforced=["no sandbox"]),
            make_candidate("wrong", not_enforced=["no sandbox"]),
            make_candidate("compile_error", errors=errors),
        )
    )
    result = run_cli("judge", "it")
    assert result.code == Exit.DONE
    assert result.out.splitlines() == [
        "config  problem  verdict              latency  reference  winner                    limit",
        "BM=5    M=64     right          12.50 µs ±2 %      3.10×   0.90×  43% of memory bandwidth",
        "BM=5    M=64     wrong                      –          –       –                        –",
        "BM=13   M=64     compile_error              –          –       –                        –",
        "BM=5: wrong: it is wrong",
        "BM=13: compile_error",
        "  gemm.cu:3:7: bad",
        "not enforced: no sandbox",
    ]


@pytest.mark.parametrize("verdict", JudgeVerdict)
def test_the_exit_status_is_that_of_the_best_candidate(
    run_cli: RunCli, start_daemon: StartDaemon, verdict: JudgeVerdict
) -> None:
    start_daemon(judge=make_judged(make_candidate("cheating"), make_candidate(verdict)))
    code = Exit.DONE if verdict == "right" else Exit[verdict.name]
    assert run_cli("judge", "it", "--json").code == code


def test_options_become_params(run_cli: RunCli, start_daemon: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "tune_it.py"
    file.touch()
    daemon = start_daemon(judge=make_judged(make_candidate("right", RIGHT)))
    words = ["--config", "BM=1", "--config", "BM=2,x=y", "-p", "M=64", "--device", "cpu:0", "--quick"]
    for against, sent in (("winner", "winner"), ("BM=4", {"BM": 4}), (str(file), str(file.resolve()))):
        assert run_cli("judge", str(file), *words, "--against", against, "--json").code == 0
        assert [params for method, params in daemon.calls if method == "judge"][-1] == {
            "path": str(file.resolve()),
            "configs": [{"BM": 1}, {"BM": 2, "x": "y"}],
            "problem": {"M": 64},
            "device": "cpu:0",
            "quick": True,
            "against": sent,
        }
    assert run_cli("judge", "it", "--against", "nothing").code == Exit.USAGE


COMPARED = {**RIGHT, "problem": {"M": 128}, "factor_over": {**RIGHT["factor_over"], "against": 1.5}}


@pytest.mark.parametrize(
    ("problems", "is_said"),
    [([RIGHT], True), ([RIGHT, COMPARED], False), ([make_problem("wrong")], False)],
    ids=["no-figure", "a-figure", "nothing-right"],
)
def test_what_has_no_latency_is_said(
    run_cli: RunCli, start_daemon: StartDaemon, problems: list[dict[str, Any]], is_said: bool
) -> None:
    """Without a figure of ``--against`` the table has no such column; a line says why."""
    start_daemon(judge=make_judged(make_candidate("right", *problems)))
    assert ("nothing to compare with" in run_cli("judge", "it", "--against", "winner").err) is is_said


def test_json_is_the_daemons_answer(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    answer = make_judged(make_candidate("right", RIGHT))
    start_daemon(judge=answer)
    assert json.loads(run_cli("judge", "it", "--json").out) == answer


def test_errors_are_json_too(run_cli: RunCli, start_daemon: StartDaemon) -> None:
    def refuse(params: dict[str, Any]) -> None:
        raise Refusal("kernel_file", "/src/tune_it.py:3: NameError: x", "correct it")

    start_daemon(judge=refuse)
    result = run_cli("judge", "it", "--json")
    assert (result.code, result.out) == (Exit.NOT_REACHED, "")
    fault = {"code": "kernel_file", "message": "/src/tune_it.py:3: NameError: x", "hint": "correct it"}
    assert json.loads(result.err) == {"error": fault}


def test_either_a_kernel_is_judged_or_tasks_are_written(run_cli: RunCli, tmp_path: Path) -> None:
    """Writing tasks needs no daemon; a problem file that fails is an error, and the others are written."""
    for words in ((), ("it", "--init", str(tmp_path)), ("--init", str(tmp_path / "missing"))):
        assert run_cli("judge", *words).code == Exit.USAGE
    nothing = run_cli("judge", "--init", str(tmp_path))
    assert (nothing.code, "has no problem file" in nothing.err) == (Exit.USAGE, True)
    (tmp_path / "doubled_numbers.py").write_text("def reference(x): return x * 2\ndef get_inputs(): return [1]\n")
    failed = run_cli("judge", "--init", str(tmp_path))
    assert (failed.code, failed.out) == (Exit.NOT_REACHED, "")
    assert "out is of type int; a candidate takes only tensors and numbers" in failed.err

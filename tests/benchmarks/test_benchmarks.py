"""The benchmarks of `make bench` at a small scale."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends.cuda import has_gpu

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 250
pytestmark = pytest.mark.timeout(TIMEOUT_S + 50)


def run_benchmark(name: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *options, "--json"]
    # The fake backend's workers need no torch, whose import would take longer than most of these.
    environment = {**os.environ, "FAKE_TENSORS": "numpy"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    return dict(row)


@pytest.mark.usefixtures("only_in_chaos")
def test_rest_measures_a_daemon_with_a_filled_store() -> None:
    row = run_benchmark("rest.py", "--trials", "2000", "--starts", "1", "--seconds", "0.2")
    assert row["trials"] == 2000
    assert 0 < row["unshared_mib"] <= row["rss_mib"]
    assert row["ready_s"] > 0


@pytest.mark.usefixtures("only_in_chaos")
def test_pipeline_reports_costs_that_add_up() -> None:
    """No phase takes more than the whole, and the bound is below the measured time."""
    row = run_benchmark("pipeline.py", "--configs", "2", "--queue", "0")
    assert row["configs"] == 2
    assert 0 < row["lane_s"] <= row["wall_s"] * row["lanes"]
    assert 0 < row["compile_s"] <= row["wall_s"] * row["slots"]
    assert row["ratio"] >= 0.99


def test_daemon_cost_reports_cpu_and_memory_for_each_trial() -> None:
    row = run_benchmark("daemon_cost.py", "--trials", "20")
    assert row["trials"] == 20
    assert 0 < row["cpu_ms_per_trial"] <= row["wall_ms_per_trial"] * 2
    assert row["rss_growth_mib"] < row["rss_mib"]


def test_gpu_grouped_needs_no_gpu() -> None:
    """Configs are compiled alone and in groups; the result is their ratio."""
    row = run_benchmark("gpu.py", "grouped", "--only", "gpu_gemm", "--configs", "2", "--headers", "never")
    assert row["configs"] == 2
    assert row["times"] == row["alone_s"] / row["groups_of_4_s"]


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_gpu_lanes_without_a_gpu_says_why_it_is_skipped() -> None:
    assert run_benchmark("gpu.py", "lanes")["what"].startswith("skipped: ")

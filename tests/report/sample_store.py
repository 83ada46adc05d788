"""A store of any size with invented but plausible trials: a matrix product with stages, spills and failures."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from ktuned.model import Config, KernelInfo, Outcome, Plan, SpaceInfo, canonical
from ktuned.protocol import JobState
from ktuned.store import Store
from ktuned.store.contexts import MEASURING_VERSION

NOW = 1_790_000_000.0
MODEL = "NVIDIA H100 80GB HBM3"
AXES: Mapping[str, Sequence[Any]] = {
    "BLOCK_M": [32, 64, 128, 256],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [16, 32, 64, 128],
    "STAGES": [1, 2, 3, 4, 5],
    "WARPS": [2, 4, 8, 16],
    "SWIZZLE": [1, 2, 4, 8],
    "EPILOGUE": ["direct", "shared", "tma"],
    "VECTOR": [True, False],
}
DEFAULT: Config = {
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "BLOCK_K": 32,
    "STAGES": 2,
    "WARPS": 4,
    "SWIZZLE": 1,
    "EPILOGUE": "direct",
    "VECTOR": True,
}


class SampleStore:
    """Fills a new store at ``path``; each kernel, problem and device is one call of :meth:`add_kernel`."""

    def __init__(self, path: Path, seed: int = 3) -> None:
        Store.open(path).close()
        self._path = path
        self._random = random.Random(seed)
        self._job = self._context = self._trial = 0

    def add_kernel(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        trials: int,
        *,
        device: str = MODEL,
        saves: int = 1,
        messages: Sequence[str] = ("ptxas error: uses too much shared data (0x3a000 bytes, 0x38c00 max)",),
        axes: Mapping[str, Sequence[Any]] = AXES,
        default: bool = True,
        default_times: float | None = None,
        reference_times: float = 1.09,
    ) -> None:
        """Add a kernel's trials, with a winner, a job, and ``saves`` states of its source.

        ``default_times`` and ``reference_times`` are latencies of default and reference relative to the winner's.
        Without the first, the default has the latency of its trial.
        """
        with closing(sqlite3.connect(self._path)) as connection, connection:
            for save in range(saves):
                count = trials if save == saves - 1 else min(trials, 60)
                self._add_save(
                    connection,
                    kernel,
                    problem,
                    count,
                    device,
                    save,
                    saves,
                    messages,
                    axes,
                    default_times,
                    reference_times,
                )
            project, _, short = kernel.rpartition(":")
            info = KernelInfo(
                project=project,  # type: ignore[arg-type]
                kernel=short,
                file=f"/home/ada/{project}/tune_{short}.py",
                line=12,
                backend="nvrtc",
                digest="d",
                source_digest="s",
                plan_digest="p",
                sources=(),
                stamps={},
                problems=(problem,),
                default=DEFAULT if default else None,
                specialize=None,
                space=SpaceInfo(
                    "cartesian",
                    {knob: tuple(values) for knob, values in axes.items()},
                    size=math.prod(map(len, axes.values())),
                ),
                plan=Plan(),
            )
            connection.execute(
                "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?)", (kernel, json.dumps(msgspec.to_builtins(info)), NOW)
            )

    def add_peaks(self) -> None:
        figures = {"device": MODEL, "gbps": 3010.0, "tflops": {"float16": 790.0, "float32": 51.0}, "measured": NOW}
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("INSERT INTO peaks VALUES (?, ?)", (MODEL, json.dumps(figures)))

    def multiply_trials(self, times: int) -> None:
        """Repeat each trial of the newest context, with other values of a further knob and other figures."""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(
                """WITH RECURSIVE copies (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copies WHERE k < :times - 1)
                INSERT INTO trials (context_id, job_id, config, outcome, latency_us, spread_us, compile_s, lane_s,
                    message, detail, updated)
                SELECT context_id, job_id, json_set(config, '$.UNROLL', k), outcome,
                    latency_us * (1.1 + (abs(random()) % 2000) / 2e4), spread_us * (1 + (abs(random()) % 2000) / 1e3),
                    compile_s * (1 + (abs(random()) % 2000) / 4e3), lane_s, message,
                    json_set(detail, '$.profile.spans[0][2]', updated + k * 4000 - 2 + (abs(random()) % 2000) / 1e3,
                        '$.profile.spans[1][2]', updated + k * 4000 - lane_s), updated + k * 4000
                FROM trials, copies WHERE context_id = :context ORDER BY k, trials.id""",
                {"times": times, "context": self._context},
            )

    def _add_save(
        self,
        connection: sqlite3.Connection,
        kernel: str,
        problem: Mapping[str, Any],
        trials: int,
        device: str,
        save: int,
        saves: int,
        messages: Sequence[str],
        axes: Mapping[str, Sequence[Any]],
        default_times: float | None,
        reference_times: float,
    ) -> None:
        self._context += 1
        self._job += 1
        began = NOW - (saves - save) * 5400
        rows: list[tuple[Any, ...]] = []
        clock, lane_free = began + 0.4, began + 2.0
        slots = [began + 0.4 + 0.05 * slot for slot in range(4)]
        scale = 1 + 0.13 * (saves - 1 - save)
        parts: set[str] = set()
        best: tuple[float, int, float] | None = None
        default_us = None
        while len(rows) < trials:
            config = {knob: self._random.choice(values) for knob, values in axes.items()}
            if not rows and axes is AXES:
                config = dict(DEFAULT)
            text = canonical(config)
            if text in parts:
                continue
            parts.add(text)
            self._trial += 1
            slot = min(range(4), key=lambda place: slots[place])
            compile_s = self._random.lognormvariate(-0.4, 0.35)
            compile_at = slots[slot]
            slots[slot] += compile_s + 0.01
            outcome, latency_us, facts = simulate_config(config, scale, self._random)
            lane_at = max(lane_free, slots[slot])
            lane_s = 0.0 if outcome is Outcome.COMPILE_ERROR else 0.02 + (latency_us or 900.0) * 1.2e-4
            if outcome is Outcome.HUNG:
                lane_s = 2.0
            lane_free = lane_at + lane_s
            clock = lane_free if lane_s else slots[slot]
            detail: dict[str, Any] = {"compiled": {"facts": facts}, "failure": {"phase": "timing"}}
            spans: list[tuple[str, str, float]] = [("compile", f"slot {slot + 1}", compile_at)]
            if lane_s:
                spans.append(("lane", "cuda:0", lane_at))
            detail["profile"] = {"spans": spans}
            if latency_us is not None and {"M", "N", "K"} <= problem.keys():
                flops = 2.0 * problem["M"] * problem["N"] * problem["K"]
                moved = 2.0 * (problem["M"] * (problem["K"] + problem["N"]) + problem["K"] * problem["N"])
                metrics = {"tflops_float16": flops / latency_us / 1e6, "gbps": moved / latency_us / 1e3}
                detail["metrics"] = metrics
            spread_us = None if latency_us is None else latency_us * self._random.uniform(0.002, 0.02)
            if latency_us is not None and (best is None or latency_us < best[0]):
                best = latency_us, self._trial, spread_us or 0.0
            if config == DEFAULT:
                default_us = latency_us
            message = "" if outcome is Outcome.MEASURED else make_message(outcome, messages, self._random)
            rows.append(
                (
                    self._trial,
                    self._context,
                    self._job,
                    text,
                    outcome,
                    latency_us,
                    spread_us,
                    compile_s,
                    lane_s,
                    message,
                    json.dumps(detail),
                    clock,
                )
            )
        assert best is not None
        if default_us is None or default_times is not None:
            default_us = best[0] * (default_times or 2.4)
        counts: dict[str, int] = {}
        for row in rows:
            counts[str(row[4])] = counts.get(str(row[4]), 0) + 1
        cost = {
            "wall_s": clock - began,
            "compile_s": sum(row[7] for row in rows),
            "lane_s": sum(row[8] for row in rows),
        }
        connection.execute(
            """INSERT INTO jobs (id, kernel, problem, device, state, priority, reason, plan, created, started, finished,
                done, total, best_us, default_us, reference_us, outcomes, cost, key_problem, best_spread_us,
                default_spread_us, reference_spread_us)
            VALUES (?, ?, ?, ?, ?, 350, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (
                self._job,
                kernel,
                canonical(problem),
                device,
                JobState.DONE,
                "requested" if save == 0 else "saved",
                msgspec.json.encode(Plan()).decode(),
                began,
                began + 0.1,
                clock,
                len(rows),
                len(rows),
                best[0],
                default_us,
                best[0] * reference_times,
                json.dumps(counts),
                json.dumps({**cost, "finalists_s": 1.9}),
                canonical(problem),
                best[2],
                default_us * 0.012,
                best[0] * 0.009,
            ),
        )
        connection.execute(
            "INSERT INTO contexts VALUES (?, ?, ?, ?, ?, 'toolchain', 'driver', ?)",
            (self._context, kernel, canonical(problem), device, f"digest {save}", MEASURING_VERSION),
        )
        connection.execute(
            "INSERT OR IGNORE INTO meanings VALUES (?, ?, ?)",
            (kernel, f"digest {save}", json.dumps({"source:gemm.cu": f"v{save}", "source:tune_gemm.py": "same"})),
        )
        connection.executemany(
            """INSERT INTO trials (id, context_id, job_id, config, outcome, latency_us, spread_us, compile_s, lane_s,
                message, detail, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            rows,
        )
        connection.execute(
            """INSERT OR REPLACE INTO winners (kernel, problem, device, objective, trial_id, decided, final)
            VALUES (?, ?, ?, 'latency', ?, ?, 1)""",
            (kernel, canonical(problem), device, best[1], clock),
        )

    def add_winner_by(self, objective: str, metric: str) -> None:
        """Make each kernel's trial with the largest figure of a metric the winner by an objective."""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(
                """INSERT INTO winners (kernel, problem, device, objective, trial_id, decided, final)
                SELECT kernel, problem, device, ?, trials.id, updated, 1 FROM trials
                JOIN contexts ON contexts.id = context_id WHERE outcome = 'measured'
                ORDER BY json_extract(detail, ?) DESC LIMIT 1""",
                (objective, f"$.metrics.{metric}"),
            )


def simulate_config(
    config: Mapping[str, Any], scale: float, source: random.Random
) -> tuple[Outcome, float | None, dict[str, Any]]:
    """Return the outcome, the latency and the facts of a config: a roofline with some cliffs."""
    m, n, k = (config.get(knob, 64) for knob in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    stages, warps, swizzle = (config.get(knob, 2) for knob in ("STAGES", "WARPS", "SWIZZLE"))
    shared = (m + n) * k * 2 * stages
    registers = min(255, 24 + m * n // (warps * 32))
    spills = max(0, 24 + m * n // (warps * 32) - 255) * 4
    occupancy = min(16, 65536 // (registers * warps * 32), 232448 // max(shared, 1)) * warps / 64
    facts = {
        "registers": registers,
        "spill_bytes": spills,
        "shared_bytes": shared,
        "occupancy": min(1.0, occupancy),
        "command": ["nvrtc"],
    }
    if shared > 232_448:
        return Outcome.COMPILE_ERROR, None, facts
    if m * n < warps * 256 and source.random() < 0.5:
        return Outcome.MISMATCH, None, facts
    if source.random() < 0.004:
        return Outcome.HUNG, None, facts
    traffic = 470 * (1 / m + 1 / n) * 42 * (1 if config.get("VECTOR", True) else 1.35)
    work = 330 * (1 + 0.5 / stages) * (1 + 0.35 * abs(math.log2(k / 64)) / 2) * (1 + 24 / k / 8)
    latency_us = max(traffic, work) + 0.35 * min(traffic, work)
    latency_us *= 1 + spills / 180 + 0.22 * (registers < 48) + (0.5 - min(0.5, occupancy)) * 0.9
    latency_us *= (
        1
        + 0.03 * abs(math.log2(swizzle / 4))
        + {"direct": 0.09, "shared": 0.03, "tma": 0.0}.get(config.get("EPILOGUE", "tma"), 0.0)
    )
    return Outcome.MEASURED, latency_us * scale * source.lognormvariate(0, 0.012), facts


def make_message(outcome: Outcome, messages: Sequence[str], source: random.Random) -> str:
    if outcome is Outcome.COMPILE_ERROR:
        return source.choice(messages)
    if outcome is Outcome.HUNG:
        return "first_launch timed out after 2 s"
    return f"C: {source.choice((4096, 8192))} of 16777216 elements (0.05%) out of tolerance, the first at [0, 128]"

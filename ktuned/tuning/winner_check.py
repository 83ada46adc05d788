"""Checks of a winner: another run with all checks, and on request a run under a sanitizer.

A CPU's kernel is compiled again with AddressSanitizer. A GPU's kernel runs under compute-sanitizer, which is the parent
of the worker; there every tensor is an allocation of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from ktuned.fleet import (
    CannotOpen,
    DeadlineExpired,
    Environment,
    Fleet,
    Lane,
    Output,
    RequestFailed,
    Worker,
    WorkerDied,
)
from ktuned.ipc import requests
from ktuned.model import FAILURES, FrozenStruct, Outcome, Role, Unsupported, WorkerError
from ktuned.store import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.exploration import open_space
from ktuned.tuning.final_round import SEEDS
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.trial_machine import Attempt, TrialState

SLOWDOWN = 30.0
"""Factor for all deadlines under a sanitizer, which slows kernels down this much."""

_REPORT_CHARS = 4_000
"""Most characters of a sanitizer's report: enough for the fault, the stack and the allocations nearby."""

_FROM_THE_SANITIZERS_CHILD = (
    "import os, sys; from ktuned.worker.main import run; words = sys.argv[4:]; words[3] = str(os.getppid()); run(words)"
)
"""Runs a worker as a child of a sanitizer, which is then the parent that the worker must not outlive."""


class Sanitizers(FrozenStruct):
    """The installed sanitizers.

    Attributes:
        address: Path of ``libasan.so``, or empty.
        compute: Path of ``compute-sanitizer``, or empty.
    """

    address: str = ""
    compute: str = ""


class CheckResult(FrozenStruct):
    """The result of a winner's checks.

    Attributes:
        message: What is wrong with the winner, or empty.
        outcome: The outcome of a winner that is wrong; ``None`` for a right one, and if the fault is not the config's.
        report: The sanitizer's report, or empty.
        checks: The checks that were made.
    """

    message: str = ""
    outcome: Outcome | None = None
    report: str = ""
    checks: tuple[str, ...] = ()


class WinnerCheck:
    """Checks one winner, on a lane that measures nothing else meanwhile."""

    def __init__(self, brief: JobBrief, lane: Lane, fleet: Fleet, artifacts: Artifacts) -> None:
        self._brief = brief
        self._lane = lane
        self._fleet = fleet
        self._compiling = CompileStage(brief, fleet, artifacts)
        self._measuring = MeasureStage(brief, [lane], self._compiling, artifacts)

    async def check_winner(self, build: Mapping[str, Any]) -> CheckResult:
        """Launch the config of a Build, before and after it is timed, and on the inputs of other seeds.

        Raises:
            WorkerError: The config cannot be compiled, or the problem cannot be opened.
        """
        seeds = SEEDS if self._brief.kernel.is_judged else ()
        async with self._compile_winner(build) as unit:
            found = await self._launch_config(
                requests.Trial((unit,), self._brief.preset, judge_contention=False), unit, 0
            )
            for seed in seeds:
                found = found if found.message else await self._launch_config(requests.Check(unit), unit, seed)
        return replace(found, checks=("guards", "again after timing", *(f"seed {seed}" for seed in seeds)))

    async def _launch_config(
        self, request: requests.Trial | requests.Check, unit: requests.UnitRef, seed: int
    ) -> CheckResult:
        """Launch a compiled config on the inputs of a seed; return what is wrong with it, or nothing."""
        attempt = Attempt(0, {}, unit, TrialState.COMPILED)
        try:
            result = await self._measuring.measure_alone(
                lambda: self._lane, attempt, request, self._brief.deadlines, seed
            )
        except RequestFailed as error:
            return CheckResult(error.message)
        if result.outcome is Outcome.MEASURED:
            return CheckResult()
        where = f" (seed {seed})" if seed else ""
        return CheckResult(f"{result.message}{where}", result.outcome if result.outcome in FAILURES else None)

    async def sanitize_winner(self, build: Mapping[str, Any], sanitizers: Sanitizers, scratch: Path) -> CheckResult:
        """Launch the config of a Build once under the sanitizer for its backend and device.

        Args:
            build: The Build of the config.
            sanitizers: The installed sanitizers.
            scratch: A directory for a script that this may need.

        Raises:
            Unsupported: There is no such sanitizer, or it is not installed.
            WorkerError: The config cannot be compiled, or the problem cannot be opened.
        """
        self._brief.learns = False
        sanitizer = _AddressSanitizer() if self._lane.device.kind == "cpu" else _ComputeSanitizer()
        environment = await sanitizer.make_environment(self._brief, sanitizers, scratch)
        deadlines = {phase: SLOWDOWN * seconds for phase, seconds in self._brief.deadlines.items()}
        async with (
            self._compile_winner(sanitizer.change_build(build)) as unit,
            # If the reference is a config, first find out without the sanitizer which candidate the device can run.
            self._measuring.hold_open_lane(self._lane)
            if self._brief.kernel.expects_default_outputs
            else self._lane.hold(self._brief.job.id),
            self._lend_worker(environment) as worker,
        ):
            bench = self._measuring.find_bench(self._lane)
            assert isinstance(bench.request, requests.Open)
            try:
                await worker.send_request(replace(bench.request, guarded=False), deadlines)
            except WorkerError as error:
                raise CannotOpen(f"under {sanitizer.name}: {error.message}") from error
            try:
                measured, output = await worker.send_request(requests.Check(unit), deadlines)
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                report = sanitizer.read_report(error.output)
                # Without a report, the sanitizer itself may be the cause.
                return self._judge_report(report, error.message, None, sanitizer)
        result = measured.result
        outcome = result.outcome if result.outcome in FAILURES else None
        message = "" if result.outcome is Outcome.MEASURED else result.message
        return self._judge_report(sanitizer.read_report(output), message, outcome, sanitizer)

    def _judge_report(
        self,
        report: Sequence[str],
        message: str,
        outcome: Outcome | None,
        sanitizer: _AddressSanitizer | _ComputeSanitizer,
    ) -> CheckResult:
        """Return the result of a launch under a sanitizer: its report, or else what the launch itself has shown."""
        if report:
            message, outcome = report[0], Outcome.MISMATCH
        return CheckResult(message, outcome, _cut_report(report), (sanitizer.name,))

    @asynccontextmanager
    async def _lend_worker(self, environment: Environment) -> AsyncIterator[Worker]:
        worker = await self._fleet.acquire_worker(Role.BENCH, environment)
        try:
            yield worker
        finally:
            worker.kill()

    @asynccontextmanager
    async def _compile_winner(self, build: Mapping[str, Any]) -> AsyncIterator[requests.UnitRef]:
        """Compile a Build and lend its unit. If the reference is a config, find the candidates first."""
        brief, attempt = self._brief, Attempt(0, {}, self._brief.make_unit(build))
        try:
            if brief.kernel.expects_default_outputs:
                async with self._fleet.lend_worker(Role.EXPLORE, brief.environment) as explorer:
                    found = await open_space(explorer, brief.make_explore_request(), brief.kernel, brief.deadlines)
                self._measuring.reference.set_candidates(found.references)
            for end in await self._compiling.compile_attempts([attempt]):
                raise WorkerError(f"the winner of {brief.kernel.name} does not compile: {end.result.message}")
            yield attempt.unit
        finally:
            await self._compiling.close()


class _AddressSanitizer(FrozenStruct):
    """GCC's AddressSanitizer: the kernel is compiled with it, and the worker starts with its library."""

    name: str = "AddressSanitizer"
    flags: tuple[str, ...] = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
    options: str = "detect_leaks=0:handle_segv=1:verify_asan_link_order=0:detect_odr_violation=0:abort_on_error=0"

    async def make_environment(self, brief: JobBrief, sanitizers: Sanitizers, scratch: Path) -> Environment:
        if brief.kernel.backend != "tvm_ffi":
            raise Unsupported(f"there is no sanitizer for the backend {brief.kernel.backend!r} on a CPU")
        if not sanitizers.address:
            raise Unsupported("AddressSanitizer is not installed here", hint="apt install g++ (it has libasan.so)")
        added = (("LD_PRELOAD", sanitizers.address), ("ASAN_OPTIONS", self.options))
        return msgspec.structs.replace(brief.environment, env=(*brief.environment.env, *added))

    def change_build(self, build: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**build, "flags": [*build.get("flags", ()), *self.flags]}

    def read_report(self, output: Output) -> Sequence[str]:
        lines = output.stderr.splitlines()
        first = next((place for place, line in enumerate(lines) if "ERROR: AddressSanitizer" in line), len(lines))
        found = lines[first:]
        return [found[0].partition("ERROR: ")[2], *found[1:]] if found else []


class _ComputeSanitizer(FrozenStruct):
    """NVIDIA's compute-sanitizer, as the parent of the worker. Tensors come from the driver, not from a cache."""

    name: str = "compute-sanitizer"
    env: tuple[tuple[str, str], ...] = msgspec.field(default=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),))

    async def make_environment(self, brief: JobBrief, sanitizers: Sanitizers, scratch: Path) -> Environment:
        if not sanitizers.compute:
            raise Unsupported(
                "compute-sanitizer is not installed here", hint="it is part of the CUDA toolkit: put its bin/ on PATH"
            )
        words = (sanitizers.compute, "--tool", "memcheck", "--print-limit", "3", brief.environment.python)
        script = scratch / "sanitized-python"
        text = f'#!/bin/sh\nexec {shlex.join(words)} -P -c {shlex.quote(_FROM_THE_SANITIZERS_CHILD)} "$@"\n'
        await anyio.to_thread.run_sync(_write_script, script, text)
        return msgspec.structs.replace(brief.environment, python=str(script), env=(*brief.environment.env, *self.env))

    def change_build(self, build: Mapping[str, Any]) -> Mapping[str, Any]:
        return build

    def read_report(self, output: Output) -> Sequence[str]:
        marked = [
            line.removeprefix("=========").strip()
            for line in (output.stdout + output.stderr).splitlines()
            if line.startswith("=========")
        ]
        first = next((place for place, line in enumerate(marked) if line.startswith(("Invalid", "Misaligned"))), None)
        return [] if first is None else marked[first:]


def _cut_report(report: Sequence[str]) -> str:
    return "\n".join(report)[:_REPORT_CHARS]


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)

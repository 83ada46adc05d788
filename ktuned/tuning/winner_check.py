"""Another run of a winner, with all checks, and under a sanitizer if that is asked for."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

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
from ktuned.model import Outcome, Role, Unsupported, WorkerError
from ktuned.store import Artifacts
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.exploration import opened
from ktuned.tuning.final_round import SEEDS
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.trial_lifecycle import Attempt, TrialState
from ktuned.tuning.work import Work

SLOWDOWN = 30.0
"""Factor of all deadlines under a sanitizer: compute-sanitizer and AddressSanitizer slow kernels down that much."""

_REPORT_CHARS = 4_000
"""Length of a sanitizer's report that is passed on: the fault, the stack and what was allocated nearby."""

_FROM_THE_SANITIZERS_CHILD = (
    "import os, sys; from ktuned.worker.main import run; words = sys.argv[4:]; words[3] = str(os.getppid()); run(words)"
)
"""Runs a worker below a sanitizer, which is then the parent that it must not outlive."""


class Sanitizers(msgspec.Struct, frozen=True):
    """Paths of ``libasan.so`` and of ``compute-sanitizer``, empty where they are not installed."""

    address: str = ""
    compute: str = ""


class Checked(msgspec.Struct, frozen=True):
    """One winner's verdict: ``message`` says what is wrong, ``report`` is the sanitizer's; ``checks`` were made."""

    message: str = ""
    report: str = ""
    checks: tuple[str, ...] = ()


class WinnerCheck:
    """Checks one winner on a lane, which measures nothing meanwhile."""

    def __init__(self, work: Work, lane: Lane, fleet: Fleet, artifacts: Artifacts) -> None:
        self._work = work
        self._lane = lane
        self._fleet = fleet
        self._compiling = CompileStage(work, fleet, artifacts)
        self._measuring = MeasureStage(work, [lane], self._compiling, artifacts)

    async def run(self, build: Mapping[str, Any]) -> Checked:
        """Launch the config of a Build on its inputs, before and after timing it, and on those of other seeds.

        Raises:
            WorkerError: it cannot be compiled, or the problem cannot be opened.
        """
        seeds = () if self._work.captured or not self._work.kernel.is_judged else SEEDS
        async with self._compiled(build) as unit:
            message = await self._launch(requests.Trial((unit,), self._work.preset, judge_contention=False), unit, 0)
            for seed in seeds:
                message = message or await self._launch(requests.Check(unit), unit, seed)
        return Checked(message, checks=("guards", "again after timing", *(f"seed {seed}" for seed in seeds)))

    async def _launch(self, request: requests.Trial | requests.Check, unit: requests.UnitRef, seed: int) -> str:
        """Have a compiled config launched on the inputs of a seed; return what is wrong with it, or nothing."""
        attempt = Attempt(0, {}, unit, TrialState.COMPILED)
        try:
            result = await self._measuring.measure_alone(
                lambda: self._lane, attempt, request, self._work.deadlines, seed
            )
        except RequestFailed as error:
            return error.message
        where = f" (seed {seed})" if seed else ""
        return "" if result.outcome is Outcome.MEASURED else f"{result.message}{where}"

    async def sanitize(self, build: Mapping[str, Any], sanitizers: Sanitizers, scratch: Path) -> Checked:
        """Launch the config of a Build once under the sanitizer for its backend and device.

        A script that this may need is written to ``scratch``.

        Raises:
            Unsupported: there is none for it, or it is not installed.
            WorkerError: it cannot be compiled, or the problem cannot be opened.
        """
        sanitizer = _AddressSanitizer() if self._lane.device.kind == "cpu" else _ComputeSanitizer()
        environment = await sanitizer.environment(self._work, sanitizers, scratch)
        deadlines = {phase: SLOWDOWN * seconds for phase, seconds in self._work.deadlines.items()}
        async with (
            self._compiled(sanitizer.build(build)) as unit,
            # Of several references the one counts that the device can run, which is seen without the sanitizer.
            self._measuring.holding(self._lane)
            if self._work.kernel.expects_default_outputs
            else self._lane.hold(self._work.job.id),
            self._lend(environment) as worker,
        ):
            bench = self._measuring.bench(self._lane)
            assert isinstance(bench.request, requests.Open)
            try:
                await worker.send_request(replace(bench.request, guarded=False), deadlines)
            except WorkerError as error:
                raise CannotOpen(f"under {sanitizer.name}: {error.message}") from error
            try:
                measured, output = await worker.send_request(requests.Check(unit), deadlines)
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                report = sanitizer.report(error.output)
                return Checked(report[0] if report else error.message, _text(report), (sanitizer.name,))
        report = sanitizer.report(output)
        message = report[0] if report else "" if measured.outcome is Outcome.MEASURED else measured.message
        return Checked(message, _text(report), (sanitizer.name,))

    @asynccontextmanager
    async def _lend(self, environment: Environment) -> AsyncIterator[Worker]:
        worker = await self._fleet.acquire_worker(Role.BENCH, environment)
        try:
            yield worker
        finally:
            worker.kill()

    @asynccontextmanager
    async def _compiled(self, build: Mapping[str, Any]) -> AsyncIterator[requests.UnitRef]:
        """Lend the unit of a compiled Build, and know the configs that may be the reference."""
        work, attempt = self._work, Attempt(0, {}, self._work.unit(build))
        try:
            if work.kernel.expects_default_outputs:
                async with self._fleet.lend_worker(Role.EXPLORE, work.environment) as explorer:
                    found = await opened(explorer, work.explore_request(), work.kernel, work.deadlines)
                self._measuring.reference.propose(found.references)
            for end in await self._compiling.compile([attempt]):
                raise WorkerError(f"the winner of {work.kernel.name} does not compile: {end.result.message}")
            yield attempt.unit
        finally:
            await self._compiling.close()


class _AddressSanitizer(msgspec.Struct, frozen=True):
    """GCC's AddressSanitizer: the kernel is compiled with it, and its library is in the worker from the start."""

    name: str = "AddressSanitizer"
    flags: tuple[str, ...] = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
    options: str = "detect_leaks=0:handle_segv=1:verify_asan_link_order=0:detect_odr_violation=0:abort_on_error=0"

    async def environment(self, work: Work, sanitizers: Sanitizers, scratch: Path) -> Environment:
        if work.kernel.backend != "tvm_ffi":
            raise Unsupported(f"there is no sanitizer for the backend {work.kernel.backend!r} on a CPU")
        if not sanitizers.address:
            raise Unsupported("AddressSanitizer is not installed here", hint="apt install g++ (it has libasan.so)")
        added = (("LD_PRELOAD", sanitizers.address), ("ASAN_OPTIONS", self.options))
        return msgspec.structs.replace(work.environment, env=(*work.environment.env, *added))

    def build(self, build: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**build, "flags": [*build.get("flags", ()), *self.flags]}

    def report(self, output: Output) -> Sequence[str]:
        lines = output.stderr.splitlines()
        first = next((place for place, line in enumerate(lines) if "ERROR: AddressSanitizer" in line), len(lines))
        found = lines[first:]
        return [found[0].partition("ERROR: ")[2], *found[1:]] if found else []


class _ComputeSanitizer(msgspec.Struct, frozen=True):
    """NVIDIA's compute-sanitizer, as the parent of the worker; every tensor is an allocation of the driver's."""

    name: str = "compute-sanitizer"
    env: tuple[tuple[str, str], ...] = msgspec.field(default=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),))

    async def environment(self, work: Work, sanitizers: Sanitizers, scratch: Path) -> Environment:
        if not sanitizers.compute:
            raise Unsupported(
                "compute-sanitizer is not installed here", hint="it is part of the CUDA toolkit: put its bin/ on PATH"
            )
        words = (sanitizers.compute, "--tool", "memcheck", "--print-limit", "3", work.environment.python)
        script = scratch / "sanitized-python"
        text = f'#!/bin/sh\nexec {shlex.join(words)} -P -c {shlex.quote(_FROM_THE_SANITIZERS_CHILD)} "$@"\n'
        await anyio.to_thread.run_sync(_write_script, script, text)
        return msgspec.structs.replace(work.environment, python=str(script), env=(*work.environment.env, *self.env))

    def build(self, build: Mapping[str, Any]) -> Mapping[str, Any]:
        return build

    def report(self, output: Output) -> Sequence[str]:
        marked = [
            line.removeprefix("=========").strip()
            for line in (output.stdout + output.stderr).splitlines()
            if line.startswith("=========")
        ]
        first = next((place for place, line in enumerate(marked) if line.startswith(("Invalid", "Misaligned"))), None)
        return [] if first is None else marked[first:]


def _text(report: Sequence[str]) -> str:
    return "\n".join(report)[:_REPORT_CHARS]


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o700)

"""Measures trials of one kernel and problem on one device: load, first launch, check, timing."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path
from typing import Any

from ktuned.backends import Backend, Kernel, Launch, Registry
from ktuned.ipc import manifest
from ktuned.model import Device, Outcome, Preset, Unsupported
from ktuned.worker.compile import unit_of
from ktuned.worker.contention import CpuWatch, GpuWatch
from ktuned.worker.cuda_timing import EVENTS, CudaTimer
from ktuned.worker.failures import words
from ktuned.worker.inspect import load_kernel
from ktuned.worker.problem import ProblemData
from ktuned.worker.reply import Reply
from ktuned.worker.timing import HostTimer, Timing

_KEPT_SAMPLES = 200


class Bench:
    """Answers ``open``, then any number of ``trial``, ``time`` and ``time_reference``."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._bound: tuple[str, Launch] | None = None

    def open(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Make the inputs and the expected outputs of a problem on a device."""
        kernel = load_kernel(request)
        reply.phase("load")
        self._backend: Backend = self._registry.load(request["backend"])
        self._device = Device.from_wire(request["device"])
        self._bound = None
        reply.phase("reference")
        self._data = ProblemData(kernel, request["problem"], self._device, captured=request["captured"])
        self._timer: HostTimer | CudaTimer = HostTimer()
        if self._device.kind == "cuda":
            self._timer = CudaTimer(self._device.name, kernel.timing)
        self._data.expect(Path(request["expected"]))
        return {}

    def trial(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Measure one config from its artifact, and say which outcome it has.

        ``outcome`` is ``None`` when the artifact itself is damaged; it is then to be made anew.
        """
        try:
            launch = self._launch(request)
        except manifest.DamagedArtifact as error:
            return {"outcome": None, "message": str(error)}
        except Unsupported as error:
            return _ended(Outcome.UNSUPPORTED, str(error), phase="load")
        except Exception as error:
            return _raised(error, phase="load")
        data = self._data
        data.begin_trial()
        reply.phase("first_launch")
        try:
            data.restore()
            launch()
            self._timer.synchronize()
        except Unsupported as error:
            return _ended(Outcome.UNSUPPORTED, str(error), phase="first_launch")
        except Exception as error:
            return _raised(error, phase="first_launch")
        reply.phase("check")
        verdict = data.check()
        if not verdict.ok:
            return _ended(Outcome.MISMATCH, verdict.message, phase="check", **verdict.to_wire())
        stop_above = request["stop_above_us"]
        return {**self._time(launch, request, reply, stop_above), **verdict.to_wire()}

    def time(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Time a finalist again; it was checked when it was tried."""
        try:
            launch = self._launch(request)
            self._data.begin_trial()
        except manifest.DamagedArtifact as error:
            return {"outcome": None, "latency_us": None, "message": str(error)}
        except Exception as error:
            return _raised(error, phase="load")
        return self._time(launch, request, reply, None)

    def canary(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Run something tiny on a device, to see that it still works after a worker on it was killed."""
        import torch

        device = Device.from_wire(request["device"])
        numbers = torch.arange(8, device=device.name)
        total = int(numbers.sum())
        if total != 28:
            raise RuntimeError(f"{device.name} counts 0 + … + 7 as {total}")
        return {}

    def time_reference(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        """Time the reference function by the same timer as the kernels; ``latency_us`` is ``None`` without one."""
        reply.phase("reference")
        reference = self._data.reference_launch()
        if reference is None:
            return {"outcome": None, "latency_us": None}
        watch = self._watch(request)
        preset = Preset(**request["preset"])
        try:
            timing = self._timer.time(reference, preset)
        except Exception as error:
            if not isinstance(self._timer, CudaTimer) or self._timer.method == EVENTS:
                return _raised(error, phase="reference")
            # Not every program of torch's can be captured in a graph.
            timing = CudaTimer(self._device.name, EVENTS).time(reference, preset)
        if watch is not None and watch.is_contended():
            return self._contended(phase="reference")
        return _timed(timing)

    def _launch(self, request: dict[str, Any]) -> Launch:
        """Return the bound launch of a request's artifact; the last one is kept for the finalists' rounds."""
        if self._data.renew():
            self._bound = None
        if self._bound is not None and self._bound[0] == request["unit"]["key"]:
            return self._bound[1]
        self._bound = None
        artifact = Path(request["artifact"])
        manifest.verify(artifact, required=self._backend.required_files)
        loaded: Kernel = self._backend.load(artifact, unit_of(self._registry, request, request["unit"]), self._device)
        launch = loaded.bind(self._data.tensors)
        crash_at_once()
        self._bound = (request["unit"]["key"], launch)
        return launch

    def _time(
        self, launch: Launch, request: dict[str, Any], reply: Reply, stop_above_us: float | None
    ) -> dict[str, Any]:
        reply.phase("timing")
        watch = self._watch(request)
        try:
            timing = self._timer.time(
                launch,
                Preset(**request["preset"]),
                restore=self._data.restore if self._data.restores else None,
                stop_above_us=stop_above_us,
            )
        except Exception as error:
            return _raised(error, phase="timing")
        if watch is not None and not timing.stopped_early and watch.is_contended():
            return self._contended(phase="timing")
        result = _timed(timing)
        if isinstance(watch, GpuWatch) and watch.absence:
            result["contention"] = f"not judged: {watch.absence}"
        return result

    def _contended(self, *, phase: str) -> dict[str, Any]:
        message = (
            f"other programs used {self._device.name} while this was timed (`contention = false` keeps such timings)"
        )
        return _ended(Outcome.CONTENDED, message, phase=phase)

    def _watch(self, request: dict[str, Any]) -> CpuWatch | GpuWatch | None:
        if not request["judge_contention"]:
            return None
        if self._device.kind != "cuda":
            return CpuWatch()
        import torch

        return GpuWatch(str(torch.cuda.get_device_properties(self._device.name).uuid))


def crash_at_once() -> None:
    """Let a fatal signal end the process after a short stack dump.

    Libraries install handlers that symbolise a backtrace (apache-tvm-ffi does): for seconds, and where the heap is
    broken without end, so that a crash looks like a hang, or like the handler's own. faulthandler hands over to
    whichever was there before it.
    """
    faulthandler.disable()
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)


def _timed(timing: Timing) -> dict[str, Any]:
    samples = timing.samples
    return {
        "outcome": Outcome.SLOWER if timing.stopped_early else Outcome.MEASURED,
        "latency_us": samples.median_us,
        "spread_us": samples.spread_us,
        "message": "",
        "count": len(samples),
        "samples": [round(value, 3) for value in samples.sorted_us[:: max(1, len(samples) // _KEPT_SAMPLES)]],
    }


def _ended(outcome: Outcome, message: str, **detail: Any) -> dict[str, Any]:
    return {"outcome": outcome, "latency_us": None, "spread_us": None, "message": message, **detail}


def _raised(error: Exception, *, phase: str) -> dict[str, Any]:
    if isinstance(error, MemoryError):
        raise error
    return _ended(Outcome.LAUNCH_ERROR, words(error), phase=phase)

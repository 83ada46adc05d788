"""Baseline of the GPU benchmarks: kernels compiled and timed without a daemon."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from ktuned.backends.contract import Build, Launch, Unit
from ktuned.backends.registry import Registry
from ktuned.checking.problem_data import ProblemData
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.measuring.cuda_timer import CudaTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model.device import Device
from ktuned.model.plan import PRESETS
from ktuned.model.values import Config

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Space:
    """A kernel's configs for its first problem, with their Builds, except those without one."""

    backend: str
    kernel: Kernel
    configs: tuple[Config, ...]
    builds: tuple[Build, ...]

    @classmethod
    def of(cls, file: Path) -> "Space":
        """Return the space of the only kernel that a file declares."""
        (kernel,) = load_file(file, file.parent).kernels
        backend = Registry().load(kernel.backend).for_sources(kernel.source_paths)
        problem = kernel.list_problems()[0]
        configs = tuple(kernel.bind_space(problem))
        return cls(backend, kernel, configs, tuple(kernel.build(problem, config) for config in configs))

    def units(self, target: str) -> list[Unit]:
        """Return a unit for each config, with its index as key."""
        kernel = self.kernel
        return [
            Unit(str(index), build, tuple(kernel.source_paths), kernel.file, kernel.name, target)
            for index, build in enumerate(self.builds)
        ]


def compile_seconds(
    backend: str,
    sources: Sequence[str],
    builds: Sequence[Mapping[str, Any]],
    target: str,
    group_size: int,
    headers: bool,
) -> tuple[float, float]:
    """Compile Builds (as plain data) in groups, in this process; return the compile seconds and the CPU's.

    ``headers`` allows precompiled headers.

    Raises:
        RuntimeError: one does not compile.
    """
    plugin = Registry().load(backend)
    paths = tuple(map(Path, sources))
    units = [
        Unit(str(index), plugin.build.from_plain(build), paths, paths[0], "kernel", target)
        for index, build in enumerate(builds)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        # A file in place of the cache directory prevents them.
        (Path(scratch) / "file").touch()
        os.environ["KTUNED_CACHE"] = str(Path(scratch, "cache" if headers else "file"))
        begin = os.times()
        seconds = 0.0
        for start in range(0, len(units), group_size):
            group = units[start : start + group_size]
            into = Path(scratch, f"group{start}")
            for unit in group:
                (into / unit.key).mkdir(parents=True)
            for compiled in plugin.compile(group, into):
                if compiled.outcome is not None:
                    raise RuntimeError(f"{builds[int(compiled.key)]}: {compiled.message}")
                seconds += compiled.seconds
        return seconds, sum(os.times()[:4]) - sum(begin[:4])


def in_new_process(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return the result of a function in a process of its own, with no warm cache."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def compiled_launch(space: Space, config: Config, device: Device, data: ProblemData) -> Launch:
    """Compile a config in this process, load it, and bind it to a problem's tensors.

    Raises:
        RuntimeError: it does not compile.
    """
    backend = Registry().load(space.backend)
    unit = space.units(device.target)[space.configs.index(config)]
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch, unit.key)
        artifact.mkdir()
        (compiled,) = backend.compile([unit], Path(scratch))
        if compiled.outcome is not None:
            raise RuntimeError(compiled.message)
        return backend.load(artifact, unit, device).bind(data.tensors)


class Quiet:
    """Launches of all configs of a space, timed in this process on an idle machine."""

    def __init__(self, space: Space, device: Device, artifacts: Path) -> None:
        """Compile in groups, load, and bind; configs that the device cannot run are left out."""
        backend = Registry().load(space.backend)
        self.space = space
        self._timer = CudaTimer(device.name, "events")
        self._data = ProblemData(space.kernel, space.kernel.list_problems()[0], device)
        units = space.units(device.target)
        self.launches: dict[int, Launch] = {}
        for start in range(0, len(units), backend.group_size):
            group = units[start : start + backend.group_size]
            for unit in group:
                (artifacts / unit.key).mkdir(parents=True)
            for compiled in backend.compile(group, artifacts):
                index = int(compiled.key)
                try:
                    loaded = backend.load(artifacts / compiled.key, units[index], device)
                    self.launches[index] = loaded.bind(self._data.tensors)
                    self.latency_us(index)
                except Exception as error:
                    print(f"left out: {space.configs[index]}: {error}")
                    self.launches.pop(index, None)

    def latency_us(self, index: int, preset: str = "fast") -> float:
        """Return a config's median latency."""
        timing = self._timer.time_launches(TimedLaunches(self.launches[index]), RaceRules(PRESETS[preset]))
        return timing.samples.median_us

    def optimum(self, finalists: int = 10, rounds: int = 15) -> dict[int, float]:
        """Return the latencies of the best configs, best first: all timed once, the best ones again in turns."""
        once = {index: self.latency_us(index) for index in self.launches}
        best = sorted(once, key=once.__getitem__)[:finalists]
        return self.in_turns(best, rounds)

    def in_turns(self, indices: Sequence[int], rounds: int) -> dict[int, float]:
        """Return the median of several configs' latencies, timed in turns in each round; best first."""
        samples: dict[int, list[float]] = {index: [] for index in indices}
        for _ in range(rounds):
            for index in indices:
                samples[index].append(self.latency_us(index))
        found = {index: median(values) for index, values in samples.items()}
        return dict(sorted(found.items(), key=lambda entry: entry[1]))


@contextmanager
def burning(processes: int, *, cores: set[int] | None, nice: int) -> Iterator[None]:
    """Keep processes compiling until the block ends, on ``cores`` (all if ``None``), niced or not."""
    context = multiprocessing.get_context("spawn")
    stop, ready = context.Event(), context.Barrier(processes + 1)
    running = [context.Process(target=_burn, args=(stop, ready, cores, nice)) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        ready.wait(120)
        yield
    finally:
        stop.set()
        for process in running:
            process.join(60)


def _burn(stop: Any, ready: Any, cores: set[int] | None, nice: int) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    os.nice(nice)
    source = Path(__file__).with_name("reduce.cu")
    build = {"entry": "row_sums<128, 8>"}
    compile_seconds("nvrtc", [str(source)], [build], "sm_90a", 1, False)
    ready.wait(120)
    while not stop.is_set():
        compile_seconds("nvrtc", [str(source)], [build], "sm_90a", 1, False)

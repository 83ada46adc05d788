"""Timing of launches on a GPU, by the GPU's own clock: no cost of the host is in the figure.

``events``: before each run the L2 cache is flushed, then one event, the kernel, another event. The flush takes some
tens of µs on the GPU, in which the host enqueues the rest, so the queue is ahead of the host and its gaps are not
measured. ``graph``: many launches are captured once and replayed between two events; for kernels of a few µs, which
events alone cannot resolve; caches are warm.

Only medians are kept. Seen on an H200 beside 32 compilers: a 4.6 µs kernel timed by events after a flush had a median
of 4.6 µs and a mean of 156; a plain loop of 20 launches between two events took 417 µs where it had taken 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from time import perf_counter
from typing import Any

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.model import Preset
from ktuned.worker.noise import Noise
from ktuned.worker.race import Cost, Race
from ktuned.worker.samples import Samples
from ktuned.worker.timed_launches import TimedLaunches
from ktuned.worker.timing import Timing

EVENTS, GRAPH = "events", "graph"

KNOWN_TO_US = 0.5
"""The resolution of CUDA events (cudaEventElapsedTime): a median needs not be known better."""

GRAPH_LAUNCHES = 20
GRAPH_BYTES = 1 << 26
"""Outputs of a graph's launches: each has its own, and where these are larger the graph has fewer launches."""

WARM_CLOCKS_S = 0.2
"""An idle GPU lowers its clock to a sixth; a fifth of a second of work raises it."""

WARM_WITHIN = 1.03
"""A piece of work that takes no longer than this times what it took on a warm clock says that the clock is warm."""

LEAD_IN_FLUSHES = 4
"""Flushes before a batch: the host needs a few tens of µs more for its first launch than for later ones, and has to be
ahead of the GPU by then (without them the first sample of each batch was 10 to 25 µs too long on an H100)."""

IDLE_S = 0.5
"""After this long without work it is looked whether the clock is still warm; an H100's was so after seconds."""

_BATCH = 20
_WARMING_SIZE = 2048


class WarmClock:
    """The end of a warm-up: when a piece of work is as fast as at the end of an earlier one, or after
    :data:`WARM_CLOCKS_S`. No IO.
    """

    def __init__(self) -> None:
        self._warm_us = 0.0
        self._least_us = math.inf

    def is_warm(self, took_us: float, elapsed_s: float) -> bool:
        """Return whether the warm-up is over; its latest piece of work took ``took_us``."""
        # The least: in a first warm-up other work is beside the pieces.
        self._least_us = min(self._least_us, took_us)
        is_over = elapsed_s >= WARM_CLOCKS_S
        if not is_over and took_us > WARM_WITHIN * self._warm_us:
            return False
        # A device that gets no faster any more has another pace; but small delays must not add up to one.
        self._warm_us = self._least_us if is_over else min(self._warm_us, self._least_us)
        self._least_us = math.inf
        return True


class CudaTimer:
    """Times launches on one device; ``method`` is ``events`` or ``graph``.

    ``meanwhile`` is called once, when the device has its first batch of samples to work on: their events are in its
    queue by then, so what the host does disturbs none of them.
    """

    def __init__(self, device: str, method: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        torch.cuda.set_device(self._device)
        properties: Any = torch.cuda.get_device_properties(self._device)
        # Twice the cache, so that nothing of what a kernel reads can be left in it.
        self._flush = torch.empty(2 * int(properties.L2_cache_size), dtype=torch.int8, device=self._device)
        self._warming = torch.ones(_WARMING_SIZE, _WARMING_SIZE, dtype=torch.float16, device=self._device)
        self.method = method
        self._limit_s = 0.0
        self._meanwhile: Callable[[], None] | None = None
        self.meanwhile: Callable[[], None] | None = None
        self._last_work = 0.0
        self._clock = WarmClock()
        self._warm_up: Thread | None = None

    def begin_warm_up(self) -> None:
        """Warm the clock while the caller prepares other things, which the host does most of."""
        self._warm_up = Thread(target=self.warm_clock, daemon=True)
        self._warm_up.start()

    def warm_clock(self) -> None:
        """Give the device work until its clock is warm, beside that of the caller's stream."""
        with suppress(RuntimeError), self._torch.cuda.stream(self._torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            # References multiply in single precision, whose kernels are loaded here as the inputs are made.
            single = self._warming[:64, :64].float()
            single @ single
            began = perf_counter()
            while not self._clock.is_warm(self._time_piece_us(), perf_counter() - began):
                pass
            self._last_work = perf_counter()

    def _time_piece_us(self) -> float:
        """Have the device do a piece of work, and return what that took in µs."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._enqueue_lead_in()
        start.record()
        for _ in range(_BATCH):
            self._warming @ self._warming
        end.record()
        end.synchronize()
        return 1000 * float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait until the device has done everything; a kernel's fault surfaces here as an exception."""
        self._torch.cuda.synchronize(self._device)

    def time_launches(
        self,
        launch: Launch | TimedLaunches,
        preset: Preset,
        *,
        restore: Callable[[], None] | None = None,
        stop_above_us: float | None = None,
        incumbent: requests.Incumbent | None = None,
        cost: Cost | None = None,
        first_us: float | None = None,
        noise: Noise | None = None,
    ) -> Timing:
        """Time a launch on the GPU, by samples for as long as the :class:`~ktuned.worker.race.Race` wants some.

        Before each launch its outputs are poisoned, and ``restore`` runs, ahead of the flush: neither is in the figure.
        Some launches are compared on the device (:mod:`~ktuned.worker.timed_launches`). All figures that are compared
        are timed alike: a launch by events, with a cold cache, says nothing about one in a graph.

        Raises:
            WrongLaunch: one of the launches that were compared is wrong.
        """
        self._ensure_warm_clock()
        launches = TimedLaunches.from_launch(launch, restore)
        in_graph = self.method == GRAPH and not launches.restores
        self._limit_s = preset.timing_s
        race = Race(
            preset,
            stop_above_us=stop_above_us,
            incumbent=incumbent,
            cost=cost,
            resolution_us=KNOWN_TO_US / (GRAPH_LAUNCHES if in_graph else 1),
            warm_counts=not in_graph,
            first_us=None if in_graph else first_us,
            noise=noise,
        )
        began = perf_counter()
        while race.wants_warm_up(perf_counter() - began):
            self._time_by_events(launches, 1, race.warm)
        if not race.gives_up(perf_counter() - began):
            sample = self._capture_graph(launches) if in_graph else partial(self._time_by_events, launches)
            self._meanwhile, self.meanwhile = self.meanwhile, None
            each_us = race.warm.sorted_us[0] if len(race.warm) else first_us or 0.0
            pace_s = each_us / 1e6 * (GRAPH_LAUNCHES if in_graph else 1)
            began = perf_counter()
            while batch := race.choose_next_batch(perf_counter() - began):
                # A batch no longer than the time that is left, by the pace of the first runs.
                fits = int((preset.timing_s - (perf_counter() - began)) / max(pace_s, 1e-6))
                sample(max(1, min(batch, fits)), race.samples)
        self._last_work = perf_counter()
        return Timing.from_race(race, ends_checked=not in_graph and len(race.samples) > 0)

    def _wait_for_batch(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.synchronize()

    def _time_by_events(self, launches: TimedLaunches, count: int, samples: Samples) -> None:
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]  # type: ignore[no-untyped-call]
        compared = launches.draw_launches_to_compare(count)
        flags = []
        launch = launches.ring[0]
        self._enqueue_lead_in()
        for number, (start, end) in enumerate(pairs):
            launches.prepare_ring()
            self._flush.zero_()
            start.record()
            launch()
            end.record()
            if number in compared:
                flags.append(launches.make_flag(0))
        self._wait_for_batch()
        for start, end in pairs:
            samples.add(start.elapsed_time(end) * 1000)
        launches.inspect_flags([flag for flag in flags if flag is not None], self._limit_s, self.synchronize)

    def _capture_graph(self, launches: TimedLaunches) -> Callable[[int, Samples], None]:
        launches.widen_ring(GRAPH_LAUNCHES)
        launches.prepare_ring()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for launch in launches.ring:
                launch()
        graph.replay()
        self.synchronize()

        def time_replays(count: int, samples: Samples) -> None:
            event = self._torch.cuda.Event
            pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
            compared = launches.draw_launches_to_compare(count)
            flags = []
            self._enqueue_lead_in()
            for number, (start, end) in enumerate(pairs):
                launches.prepare_ring()
                self._flush.zero_()
                start.record()
                graph.replay()
                end.record()
                if number in compared:
                    flags.append(launches.make_flag(launches.draw_ring_place()))
            self._wait_for_batch()
            for start, end in pairs:
                samples.add(start.elapsed_time(end) * 1000 / len(launches.ring))
            launches.inspect_flags([flag for flag in flags if flag is not None], self._limit_s, self.synchronize)

        return time_replays

    def _enqueue_lead_in(self) -> None:
        """Give the device work for as long as the host needs to get ahead of it."""
        for _ in range(LEAD_IN_FLUSHES):
            self._flush.zero_()

    def _ensure_warm_clock(self) -> None:
        if self._warm_up is not None:
            self._warm_up.join()
            self._warm_up = None
            # Alone on the device now: how fast its warm clock is was seen beside other work.
            self.warm_clock()
        if perf_counter() - self._last_work >= IDLE_S:
            self.warm_clock()

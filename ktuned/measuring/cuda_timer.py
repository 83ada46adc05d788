"""Timing of launches on a GPU, by the GPU's own clock, so that the time does not include work of the host.

Two methods, which a kernel file chooses from:

==========  ==========================================================================================================
``events``  flush the L2 cache, then an event, the launch, another event. The flush takes some tens of µs, in which the
            host enqueues the rest. So the host stays ahead of the GPU, and the gaps between its calls are not measured.
``graph``   capture many launches once, then replay them between two events. For kernels of a few µs, which events
            cannot resolve; caches are warm.
==========  ==========================================================================================================

*The host must be ahead.* If the GPU reaches the first event before the launch is in its queue, it waits for the host
within the sample. A slow or busy host may be late for each sample: on one machine, kernels of 4 µs came out at 8 to
40 µs. So after each launch the GPU is asked whether it has passed the first event already. If so, the sample does not
count, and if that happens often, later batches begin with more work for the GPU (:class:`HostLead`).

The figure is a median. Beside 32 compilers on an H200, a kernel of 4.6 µs that was timed by events had a median of
4.6 µs and a mean of 156 µs; a plain loop of 20 launches between two events took 417 µs instead of 10 µs.

An idle GPU lowers its clock, so that a first sample would be several times too long. Therefore the clock is warmed up
by matrix products before a timing that follows a pause, until these are as fast as they were before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from ktuned.measuring.free_device import is_device_free
from ktuned.measuring.race import Race, RaceRules
from ktuned.measuring.samples import Samples
from ktuned.measuring.timed_launches import TimedLaunches

EVENTS, GRAPH = "events", "graph"

KNOWN_TO_US = 0.5
"""Resolution of CUDA events in µs (cudaEventElapsedTime): no median need be known better."""

GRAPH_LAUNCHES = 20
GRAPH_BYTES = 1 << 26
"""Most memory for the outputs of a graph's launches. Each has its own, so that large outputs mean fewer launches."""

WARM_CLOCKS_S = 0.2
"""An idle GPU lowers its clock to a sixth; a fifth of a second of work raises it."""

WARM_WITHIN = 1.03
"""The clock is warm if a piece of work takes at most this many times as long as at the end of a full warm-up."""

LEAD_IN_FLUSHES = 4
"""Flushes before a batch. The host's first launch takes a few tens of µs longer than later ones, and must be ahead of
the GPU by then: without these flushes, the first sample of each batch was 10 to 25 µs too long on an H100."""

FIRST_LEAD_S = 0.0002
MOST_LEAD_S = 0.02
"""Duration of the extra work before a batch if the host was late: the first time, and at most. With the longest lead,
the host has 1 ms for each of a batch's 20 launches."""

MANY_LATE = 0.25
"""If more than this share of a batch's launches were late, the next batch begins with more work."""

LEAD_DECAY = 0.95
"""Factor by which that work shrinks after a batch without a late launch: the host may be faster with other kernels."""

SPIN_HZ = 2e9
"""Cycles for which a GPU spins in a second, roughly."""

IDLE_S = 0.5
"""Pause after which the clock may be cold. An H100's was still warm after seconds."""

_BATCH = 20
"""Launches that are enqueued at once, as one piece. The host waits for the GPU after each piece."""
_WARMING_SIZE = 2048


class WarmClock:
    """Decides when a warm-up is over. No IO.

    A warm-up ends when a piece of work is as fast as at the end of an earlier one, or after :data:`WARM_CLOCKS_S`.
    """

    def __init__(self) -> None:
        self._warm_us = 0.0
        self._least_us = math.inf

    def is_warm(self, took_us: float, elapsed_s: float) -> bool:
        """Return whether the warm-up is over, after a piece of work that took ``took_us``."""
        # Take the fastest piece, because the GPU has other work, too, during the first warm-up.
        self._least_us = min(self._least_us, took_us)
        is_over = elapsed_s >= WARM_CLOCKS_S
        if not is_over and took_us > WARM_WITHIN * self._warm_us:
            return False
        # Only a full warm-up may raise the time to reach. Otherwise small delays would add up to that of a cold clock.
        self._warm_us = self._least_us if is_over else min(self._warm_us, self._least_us)
        self._least_us = math.inf
        return True


class HostLead:
    """Decides how far ahead of the GPU the host begins a batch, and which samples count. No IO.

    ``lead_s`` is how long the GPU is kept busy before a batch. If the host is still late with many launches at the
    longest lead, it is too slow, and all its samples count as they are.

    >>> lead = HostLead()
    >>> lead.judge_samples([False, True, True, True]), lead.lead_s
    ([0], 0.0002)
    >>> lead.judge_samples([False, False, False, True]), lead.lead_s
    ([0, 1, 2], 0.0002)
    """

    def __init__(self) -> None:
        self.lead_s = 0.0

    def judge_samples(self, were_late: Sequence[bool]) -> list[int]:
        """Return the places of the samples that count, given for each whether the host was late."""
        late = sum(were_late)
        is_longest = self.lead_s >= MOST_LEAD_S
        if not late:
            self.lead_s = self.lead_s * LEAD_DECAY if self.lead_s > FIRST_LEAD_S else 0.0
        elif late > MANY_LATE * len(were_late):
            self.lead_s = min(MOST_LEAD_S, max(FIRST_LEAD_S, 2 * self.lead_s))
            if is_longest:
                return list(range(len(were_late)))
        return [place for place, was_late in enumerate(were_late) if not was_late]


class CudaTimer:
    """Times launches on one device; ``method`` is ``events`` or ``graph``.

    Its attributes are those of :class:`~ktuned.measuring.host_timer.HostTimer`.
    """

    max_output_bytes = GRAPH_BYTES
    returns_early = True

    def __init__(self, device: str, method: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        torch.cuda.set_device(self._device)
        properties: Any = torch.cuda.get_device_properties(self._device)
        # Twice the cache's size, so that none of a kernel's data is left in the cache.
        self._flush = torch.empty(2 * int(properties.L2_cache_size), dtype=torch.int8, device=self._device)
        self._warming = torch.ones(_WARMING_SIZE, _WARMING_SIZE, dtype=torch.float16, device=self._device)
        self.method = method
        self._limit_s = 0.0
        self._meanwhile: Callable[[], None] | None = None
        self._last_work = 0.0
        self._clock = WarmClock()
        self._warm_up: Thread | None = None
        self._lead = HostLead()

    @property
    def times_in_graph(self) -> bool:
        """True if launches are timed in a graph, unless inputs are restored between them."""
        return self.method == GRAPH

    def begin_warm_up(self) -> None:
        """Warm the clock in another thread, while the caller prepares other things, mostly on the host."""
        self._warm_up = Thread(target=self.warm_clock, daemon=True)
        self._warm_up.start()

    def warm_clock(self) -> None:
        """Give the device work on a stream of its own until its clock is warm."""
        with suppress(RuntimeError), self._torch.cuda.stream(self._torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            # References often multiply in single precision: load those kernels, too.
            single = self._warming[:64, :64].float()
            single @ single
            began = perf_counter()
            while not self._clock.is_warm(self._time_warming_work_us(), perf_counter() - began):
                pass
            self._last_work = perf_counter()

    def _time_warming_work_us(self) -> float:
        """Give the device a piece of work, and return how long it took, in µs."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._enqueue_lead_in()
        start.record()
        for _ in range(_BATCH):
            self._warming @ self._warming
        end.record()
        end.synchronize()
        return 1000 * float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait until the device has done everything. A kernel's fault surfaces here as an exception."""
        self._torch.cuda.synchronize(self._device)

    def time_launches(self, launches: TimedLaunches, rules: RaceRules) -> Race:
        """Time launches as long as the race wants more samples; return the race, which has ended.

        Outputs are poisoned, and inputs restored, before the flush, so that neither is in the figure. If inputs are
        restored, ``events`` is used whatever the method: a restore between launches would be a part of the graph.

        Raises:
            WrongLaunch: one of the compared launches is wrong.
        """
        self._ensure_warm_clock()
        # A callback that was never called belongs to an earlier config, whose launch has raised.
        self._meanwhile = None
        in_graph = self.times_in_graph and not launches.restores
        self._limit_s = rules.preset.timing_s
        # The checked launch ran outside the graph with cold caches, and says nothing about launches in the graph.
        first_us = None if in_graph else rules.first_us
        race = Race(
            replace(rules, first_us=first_us),
            resolution_us=KNOWN_TO_US / (GRAPH_LAUNCHES if in_graph else 1),
            warm_counts=not in_graph,
        )
        began = perf_counter()
        while race.wants_warm_up(perf_counter() - began):
            self._time_batch(launches, launches.ring[0], 1, race.warm)
        if not race.ends_after_warm_up(perf_counter() - began):
            run = self._capture_graph(launches) if in_graph else launches.ring[0]
            self._meanwhile = launches.meanwhile
            each_us = race.warm.sorted_us[0] if len(race.warm) else first_us or 0.0
            pace_s = each_us / 1e6 * (GRAPH_LAUNCHES if in_graph else 1)
            began = perf_counter()
            while batch := race.choose_next_batch(perf_counter() - began):
                # Limit the batch to the time that is left, by the pace of the first runs.
                fits = int((self._limit_s - (perf_counter() - began)) / max(pace_s, 1e-6))
                self._time_batch(launches, run, max(1, min(batch, fits)), race.samples)
        self._last_work = perf_counter()
        launches.leave_own_outputs = not in_graph and len(race.samples) > 0
        return race

    def _wait_for_batch(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.synchronize()

    def _time_batch(self, launches: TimedLaunches, run: Callable[[], object], count: int, samples: Samples) -> None:
        """Take up to ``count`` samples, in pieces that are short enough for the host's lead to last."""
        for first in range(0, count, _BATCH):
            self._time_piece(launches, run, min(_BATCH, count - first), samples)

    def _time_piece(self, launches: TimedLaunches, run: Callable[[], object], count: int, samples: Samples) -> None:
        """Take samples of ``run``, which launches the whole ring, either directly or as a captured graph."""
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]  # type: ignore[no-untyped-call]
        compared = launches.draw_launches_to_compare(count)
        flags = []
        were_late = []
        self._enqueue_lead_in(self._lead.lead_s)
        for number, (start, end) in enumerate(pairs):
            launches.prepare_ring()
            self._flush.zero_()
            start.record()
            run()
            were_late.append(start.query())  # type: ignore[no-untyped-call]
            end.record()
            if number in compared:
                flags.append(launches.make_right_flag(launches.draw_ring_place()))
        self._wait_for_batch()
        for start, end in [pairs[place] for place in self._lead.judge_samples(were_late)]:
            samples.add_sample(start.elapsed_time(end) * 1000 / len(launches.ring))
        launches.judge_flags([flag for flag in flags if flag is not None], self._limit_s, self.synchronize)

    def _capture_graph(self, launches: TimedLaunches) -> Callable[[], object]:
        """Capture a ring of launches; return the function that replays it."""
        launches.widen_ring(GRAPH_LAUNCHES)
        launches.prepare_ring()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for launch in launches.ring:
                launch()
        graph.replay()
        self.synchronize()
        return graph.replay

    def _enqueue_lead_in(self, lead_s: float = 0.0) -> None:
        """Give the device work while the host gets ahead of it: the flushes, and ``lead_s`` seconds of spinning."""
        if lead_s > 0:
            self._torch.cuda._sleep(int(lead_s * SPIN_HZ))  # type: ignore[no-untyped-call]
        for _ in range(LEAD_IN_FLUSHES):
            self._flush.zero_()

    def _ensure_warm_clock(self) -> None:
        if self._warm_up is not None:
            self._warm_up.join()
            self._warm_up = None
            # The first warm-up ran alongside other work. Learn now, without it, how fast the warm clock is.
            self.warm_clock()
        if perf_counter() - self._last_work >= IDLE_S and is_device_free(str(self._device)):
            self.warm_clock()

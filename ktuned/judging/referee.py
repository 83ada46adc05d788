"""The referee: judges configs that are not trusted, each in a process of its own.

An example: a config of 5 µs, whose tensors take 16 KiB. The referee has it launch once, then eight times, then up to 40
times on some 200 sets. Each such *order* goes like this:

1.  While the candidate is stopped, the referee writes new inputs into the sets of tensors, and poison into the outputs
    (:mod:`ktuned.judging.arena`). It keeps a copy of the inputs, which is not in the common memory.
2.  The clock starts, the candidate goes on, launches on each set in a random sequence, and says that it has finished.
    It is stopped, and the clock as well.
3.  Some launches are drawn at random. Their expected outputs are computed now, from the kept inputs, and compared. All
    launches must have written something, the inputs and the memory between the tensors must be as they were.
4.  A process of the referee's own carries out the same order, with launches that do nothing. The latency is the
    difference of the two times, divided by the number of launches.

Some further orders are *probed* (:meth:`_Judging._probe_order`).

Why this is hard to deceive:

- *Expected outputs* exist in the referee alone, and only after the launches.
- *The clock and the decision* are the referee's. A candidate that patches a clock, or the loop that launches, deceives
  nobody: outputs that are not there when it is stopped count as missing.
- *Nothing can be replayed*: no two launches have equal inputs, and no launch of the judgement has those of another.
- *Nothing can be done before an order or after it*, because the candidate is stopped whenever the clock is. Threads
  and processes are stopped with it, and what it starts during an order is found (:mod:`ktuned.judging.process_watch`).

On a GPU nothing can be stopped, so the referee copies inputs to the candidate, and outputs from it, while its clock
runs (:mod:`ktuned.judging.gpu_memory`). An order spares some sets there, and a candidate that works ahead writes to
them.

What is not enforced: a candidate may do all of an order's launches in the first one, and one in Python may skip the
loop's own work (:mod:`ktuned.judging.candidate`). It gains what the calls or the loop cost, a µs or two a launch.
"""

from __future__ import annotations

import array
import math
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from msgspec.structs import replace

from ktuned.checking import PATTERN, ProblemData, Verdict
from ktuned.judging.arena import MAX_SETS, Arena, plan_layout, read_cache_bytes
from ktuned.judging.candidate import Answer, Await, Bind, Finished, Load, Message, Order, PlainUnit, Raised
from ktuned.judging.candidate_process import (
    CandidateProcess,
    Ended,
    Glance,
    GpuClock,
    Nursery,
    RunTime,
    make_cheating,
    make_environment,
)
from ktuned.judging.gpu_memory import DriverFailed, GpuArena, count_cache_bytes, count_set_bytes
from ktuned.judging.process_watch import ProcessFacts, describe_changes
from ktuned.measuring import CudaTimer, Samples, Timer, make_failed_result
from ktuned.model import (
    BANDWIDTH_METRIC,
    Device,
    Judgement,
    JudgeVerdict,
    Outcome,
    Peaks,
    Phase,
    Timing,
    TrialDetail,
    TrialResult,
    name_arithmetic_metric,
)

ORDER_US = 1_000.0
"""How long the launches of an order take together. Continuing and stopping a process takes some 50 µs; a longer order
is more often disturbed by other programs.
"""

ORDER_OF_THREADS_US = 5_000.0
"""The same for launches that work in several threads, which take long to wake up."""

FIRST_LAUNCHES = 8
"""Launches of the second order, by which the latency is estimated."""

UNTIMED_ORDERS = 4
ORDERS, QUICK_ORDERS = 40, 15
FEWEST_ORDERS = 4
TIMING_S, QUICK_TIMING_S = 0.6, 0.25
"""Seconds after which there are no further orders, but for the fewest."""

MOST_TIMINGS = 3
"""How often the orders are timed if a process that does nothing was slower: something else had disturbed it."""

FEWEST_COMPARED, MOST_COMPARED = 3, 90
COMPARING_S, QUICK_COMPARING_S = 0.3, 0.1
"""Seconds for computing expected outputs and comparing, but for the fewest launches."""

CALIBRATOR_S = 60.0
"""Deadline of the referee's own process."""

BEYOND_LIMIT = 1.1
"""How far a figure may lie above a measured limit."""

FEWEST_PROBED, PROBED_SHARE = 3, 0.15
"""Further orders that are not timed, but probed: the fewest, and as a share of the timed ones."""

PROBE_COMPARED = 4
GLANCED_SHARE, MOST_GLANCED_SHARE = 0.5, 0.6
"""A candidate is looked at in the first half of an order, when it cannot have done all launches in turn."""

LEAST_ORDER_S, SLOWER = 2.0, 20
"""An order may take this long, and this many times as long as the first launches suggest: the machine may be busy."""

DISTURBED_SHARE = 0.02
"""An order whose process waited for a core for a larger share is disturbed."""

FRESH_S = 0.02
"""Seconds that the kernel file's code may take to make the inputs of an order."""


MOST_QUEUED = 500
"""Launches that a GPU's queue certainly holds, of a kernel each."""

SPARED_PART = 4
"""Up to this part of the sets is spared in an order."""

_NOT_PERMITTED = "PermissionError: [Errno 1]"
"""A refused system call, such as those that start a compiler."""


_OUT_OF_TURN = "it works on launches whose turn has not come, or leaves work for later"


class OrderTime(NamedTuple):
    """How long an order of some launches took, and how long it takes with launches that do nothing."""

    run: RunTime
    overhead: RunTime
    launches: int


class Referee:
    """Judges configs of one problem.

    Args:
        data: the problem's data.
        device: where it is.
        nursery: starts processes.
        timer: times launches on the device under ``tune``.

    Raises:
        Ended: the problem cannot be judged.
    """

    def __init__(self, data: ProblemData, device: Device, nursery: Nursery, timer: Timer) -> None:
        if not data.is_judged:
            raise make_refusal("the kernel file has neither a reference nor a check, so nothing decides what is right")
        if data.expects_default_outputs:
            raise make_refusal("the kernel file has no reference function, and its default config may be wrong itself")
        self.data = data
        self.device = device
        self._nursery = nursery
        self.timer = timer
        self.gpu: GpuArena | None = None
        stays_cached = timer.times_in_graph and not data.restores
        try:
            gpu_bytes = count_set_bytes(device, stays_cached=stays_cached) if device.kind == "cuda" else None
            layout = plan_layout(data.tensors, data.find_spans(), data.library, gpu_bytes)
            if device.kind == "cuda":
                self.gpu = GpuArena(layout, data.library, device, stays_cached=stays_cached)
            self.arena = self.gpu or Arena(layout, data.library)
        except ValueError as error:
            raise make_refusal(f"the tensor {error} is not made of plain numbers in strided memory") from error
        except DriverFailed as error:
            raise make_refusal(f"this GPU's memory cannot be shared with a candidate's process: {error}") from error
        self.arena.fill_memory(PATTERN)
        self.calibrator = nursery.take_next()
        for message in Load(layout, device), Bind(layout.sets):
            self.calibrator.ask(message, CALIBRATOR_S, (self.arena.descriptor,) if isinstance(message, Load) else ())

    @property
    def exceeds_cache(self) -> bool:
        """Whether a launch works on more memory than the device's last cache holds."""
        cache_bytes = read_cache_bytes(3) if self.gpu is None else count_cache_bytes(self.device)
        return self.arena.layout.working_bytes > cache_bytes

    def find_exceeded_limits(self, metrics: Mapping[str, float], peaks: Peaks) -> list[str]:
        """Return the limits of the device that a config's metrics exceed; none counts that may not apply.

        Data that fits into the caches does not pass through the memory.
        """
        limits = {name_arithmetic_metric(precision): tflops for precision, tflops in peaks.tflops.items()}
        if self.exceeds_cache and peaks.gbps is not None:
            limits[BANDWIDTH_METRIC] = peaks.gbps
        return [
            f"{name} is {metrics[name]:.3g}, and the limit {limit:.3g}"
            for name, limit in limits.items()
            if metrics.get(name, 0.0) > BEYOND_LIMIT * limit
        ]

    def prepare_next(self) -> None:
        """Start the next candidate's process ahead."""
        self._nursery.prepare_next()

    def close(self) -> None:
        """End the referee's own process."""
        self.calibrator.kill()

    def judge_candidate(
        self,
        unit: PlainUnit,
        begin_phase: Callable[[Phase], None],
        deadlines: Mapping[str, float],
        *,
        is_quick: bool,
    ) -> TrialResult:
        """Judge a config. Its process has ended when this returns.

        Args:
            unit: the config.
            begin_phase: called when a phase begins, and again with each order.
            deadlines: how many seconds the candidate may take for an answer, by the phase's name.
            is_quick: judge by fewer launches.
        """
        process = self._nursery.take_next()
        # The candidate before may have written anywhere.
        self.arena.fill_memory(PATTERN)
        judging = _Judging(self, process, begin_phase, deadlines, is_quick=is_quick)
        try:
            result = judging.judge_candidate(unit)
        except Ended as ended:
            result = make_ended_result(ended, judging.phase)
        finally:
            process.kill()
        if judging.is_gpu_busy and self.gpu is not None and not self.gpu.is_busy():
            result = make_ended_result(make_cheating("it left work running on the GPU"), judging.phase)
        return result.add_facts("judged", checked=judging.list_checks(), not_enforced=judging.list_gaps())


class _Judging:
    """The judgement of one candidate."""

    def __init__(
        self,
        referee: Referee,
        process: CandidateProcess,
        begin_phase: Callable[[Phase], None],
        deadlines: Mapping[str, float],
        *,
        is_quick: bool,
    ) -> None:
        self.phase = Phase.LOAD
        self.is_gpu_busy = False
        self._referee = referee
        self._data = referee.data
        self._library = referee.data.library
        self._process = process
        self._begin_phase = begin_phase
        self._orders = QUICK_ORDERS if is_quick else ORDERS
        self._timing_s = QUICK_TIMING_S if is_quick else TIMING_S
        self._comparing_s = QUICK_COMPARING_S if is_quick else COMPARING_S
        self._random = random.SystemRandom()
        self._bound = self._count = 0
        self._launches = 0
        self._compared = 0
        self._affordable_s = 0.0
        self._looks_ahead = 0
        self._varies = True
        self._begun: ProcessFacts | None = None
        self._deadlines = deadlines
        self._deadline_s = deadlines[Phase.FIRST_LAUNCH]
        self._is_gated = referee.gpu is not None

    def judge_candidate(self, unit: PlainUnit) -> TrialResult:
        """Load, launch, time and check the config.

        Raises:
            Ended: it is not right.
        """
        self._enter_phase(Phase.LOAD)
        arena = self._referee.arena
        self._ask(
            Load(arena.layout, self._referee.device, unit, make_environment()),
            self._deadlines[Phase.LOAD],
            (arena.descriptor,),
        )
        self._bind_sets(1)
        # The first launches show how long one takes, and whether it is worth to go on.
        self._enter_phase(Phase.FIRST_LAUNCH)
        deadline_s = self._deadlines[Phase.FIRST_LAUNCH]
        count, wanted, each_us, is_confirmed = 0, 1, math.inf, False
        while wanted > count or not is_confirmed:
            # One disturbed order would suggest too few launches.
            is_confirmed = wanted <= count
            run, overhead, launches = self._carry_out_order(max(wanted, count), must_compare=count == 0)
            count = max(wanted, count)
            each_us = min(each_us, (run.elapsed_us - overhead.elapsed_us) / launches) if count > 1 else math.inf
            wanted_us = ORDER_OF_THREADS_US if run.has_threads else ORDER_US
            wanted = math.ceil(wanted_us / max(each_us, wanted_us / MAX_SETS)) if count > 1 else FIRST_LAUNCHES
            wanted = min(arena.layout.sets, wanted, MOST_QUEUED if self._referee.gpu else MAX_SETS)
            slow_s = LEAST_ORDER_S + SLOWER * max(count, wanted) * max(each_us, 1.0) / 1e6
            self._deadline_s = min(slow_s, deadline_s)
        # From now on, launches are timed, and nothing may be started that could work for them.
        self._enter_phase(Phase.TIMING)
        self._begun = self._process.read_facts()
        if self._begun.children:
            raise make_refusal("it has started a process, which the judge cannot stop")
        if isinstance(self._referee.timer, CudaTimer):
            self._referee.timer.warm_clock()
        gpu = self._referee.gpu
        for _ in range(1 if gpu else MOST_TIMINGS):
            orders = self._time_orders(count)
            if gpu is not None:
                self._enter_phase(Phase.CHECK)
                self.is_gpu_busy = gpu.is_busy()
                orders = self._time_overheads(orders, count)
            samples = make_samples(orders, gpu)
            low_us, high_us = samples.interval_us
            if high_us > 0:
                break
        else:
            raise make_refusal("its launches take less time than launches that do nothing")
        # What cannot be told from nothing counts as the most that it may be.
        latency_us = samples.median_us if 2 * samples.median_us > high_us - low_us else high_us
        timing = Timing(len(samples), tuple(round(value, 3) for value in samples.sorted_us), low_us, high_us)
        judged = Judgement(JudgeVerdict.RIGHT, "its outputs are right")
        detail = TrialDetail(timing=timing, judged=judged)
        return TrialResult(Outcome.MEASURED, latency_us, samples.spread_us, detail=detail)

    def _time_orders(self, count: int) -> list[OrderTime]:
        """Time orders of ``count`` launches, and probe others in between.

        Raises:
            Ended: a launch is not right.
        """
        compared_orders = set(self._random.sample(range(FEWEST_ORDERS), FEWEST_COMPARED - 1))
        # The first order tells how long one takes.
        probed_orders = set(self._random.sample(range(1, FEWEST_ORDERS + 1), FEWEST_PROBED))
        orders: list[OrderTime] = []
        end = monotonic() + self._timing_s
        while len(orders) < self._orders and (len(orders) < FEWEST_ORDERS or monotonic() < end):
            number = len(orders)
            if orders and (number in probed_orders or self._random.random() < PROBED_SHARE):
                self._probe_order(count, min(order.run.elapsed_us for order in orders))
            orders.append(self._carry_out_order(count, must_compare=number in compared_orders))
        return orders

    def _enter_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._begin_phase(phase)

    def _ask(
        self,
        message: Message,
        deadline_s: float,
        descriptors: tuple[int, ...] = (),
        **options: Any,
    ) -> tuple[Finished, RunTime]:
        """Have the candidate's process do something; return its answer, and how long that took.

        Raises:
            Ended: it failed.
        """
        answer, run = self._process.ask(message, deadline_s, descriptors, **options)
        if isinstance(answer, Finished):
            return answer, run
        assert isinstance(answer, Raised)
        if answer.is_unsupported:
            raise make_refusal(answer.message)
        if self.phase in (Phase.LOAD, Phase.FIRST_LAUNCH) and _NOT_PERMITTED in answer.message:
            raise make_refusal(f"the sandbox does not permit what it does at first: {answer.message}")
        raise Ended(JudgeVerdict.CRASHED, Outcome.LAUNCH_ERROR, answer.message)

    def _carry_out_order(self, count: int, *, must_compare: bool = False) -> OrderTime:
        """Have the candidate launch on ``count`` sets; return how long that took.

        Raises:
            Ended: a launch failed, or something that it left is not as it must be.
        """
        self._bind_sets(count)
        self._begin_phase(self.phase)
        inputs = self._write_sets(count)
        order = self._draw_order(count)
        run = self._ask_for_order(order)
        places = list(order.list_places())
        self._check_sets(count, inputs, places)
        self._compare_launches(places, inputs, fewest=int(must_compare))
        if self._referee.arena.layout.is_touched:
            self._write_again(count, inputs)
        if self._referee.gpu is not None and self.phase is Phase.TIMING:
            # The overhead is timed later (:meth:`_time_overheads`).
            return OrderTime(run, run, len(places))
        calibrating = replace(order, gate=self._draw_gate(), queued=order.queued and self._is_gated)
        return OrderTime(run, self._run_order(calibrating, self._referee.calibrator.ask)[1], len(places))

    def _time_overheads(self, orders: list[OrderTime], count: int) -> list[OrderTime]:
        """Return the orders with overheads that no work of the candidate's on the GPU can have made longer."""
        self._process.kill()
        self._count = count
        timed = []
        for order in orders:
            # The referee has done the same before each order, and the processors' caches have forgotten the rest.
            self._write_sets(count)
            _, overhead = self._run_order(self._draw_order(count), self._referee.calibrator.ask)
            timed.append(order._replace(overhead=overhead))
        return timed

    def _probe_order(self, count: int, order_us: float) -> None:
        """Carry out an order that is not timed, and that the candidate cannot tell from those that are.

        Inputs are alike in pairs, so that outputs that were found again by a part of the inputs are wrong. And the
        candidate is stopped in between: launches whose turn has not come must have written nothing.

        Raises:
            Ended: the candidate does not launch in turn, or an output is wrong.
        """
        self._bind_sets(count)
        inputs = self._write_sets(count, are_alike=True)
        order = self._draw_order(count)
        places = list(order.list_places())
        glance = Glance(
            self._random.random() * GLANCED_SHARE * order_us / 1e6,
            lambda worked_s: self._check_turns(places, worked_s * 1e6 / order_us),
        )
        self._ask_for_order(order, glance if count > 1 and self._referee.gpu is None else None)
        self._check_sets(count, inputs, places)
        # Whoever replays does so in the later launch of a pair.
        turns = {place: turn for turn, place in enumerate(places)}
        later = [place for place in places if turns.get(place ^ 1, turns[place]) < turns[place]]
        self._compare_launches(later or places, inputs, fewest=PROBE_COMPARED)

    def _check_turns(self, places: list[int], share: float) -> None:
        """Check that the launches of a stopped process were done one after the other, and none ahead.

        Args:
            places: the sets, in turn.
            share: which part of the order the process has had time for.

        Raises:
            Ended: they were not.
        """
        arena, roles = self._referee.arena, self._data.roles
        is_ahead = False
        for name in roles.poisoned:
            tensors = arena.view_sets(name, len(places))
            size = math.prod(tensors.shape[1:])
            counts = self._library.count_poison(tensors)
            if not counts:
                continue
            unwritten = [counts[place] for place in places]
            # A launch that is at work may have written anything.
            begun = next((number for number, count in enumerate(unwritten) if count), len(places))
            is_ahead = is_ahead or (begun == len(places) >= FIRST_LAUNCHES and share < MOST_GLANCED_SHARE)
            if any(count < size for count in unwritten[begun + 1 :]):
                raise make_cheating(_OUT_OF_TURN)
        # One look may be misled by an order that was slow, by which the share was computed.
        self._looks_ahead += is_ahead
        if self._looks_ahead > 1:
            raise make_cheating(_OUT_OF_TURN)

    def _bind_sets(self, count: int) -> None:
        if count > self._bound:
            self._ask(Bind(count), self._deadlines[Phase.LOAD])
            self._bound = count
        self._count = count

    def _draw_order(self, count: int) -> Order:
        # On a GPU nobody can look at a batch in between. So some sets are left out: whoever works ahead works on them.
        spared = self._random.randrange(count // SPARED_PART + 1) if self._referee.gpu is not None else 0
        places = self._random.sample(range(count), count - spared)
        # The first launch loads what it needs, which can wait for the GPU.
        queued = self._is_gated and self._launches > 0
        return Order(self._random.getrandbits(63), array.array("H", places).tobytes(), self._draw_gate(), queued)

    def _draw_gate(self) -> int:
        return self._random.randrange(1, 1 << 31)

    def _ask_for_order(self, order: Order, glance: Glance | None = None) -> RunTime:
        """Have the candidate carry out an order, and look at what its process consists of then.

        Raises:
            Ended: it failed, or it has something that could work outside of its turn.
        """
        answer, run = self._run_order(order, self._ask, glance)
        self._launches += self._count
        if answer.number != order.number:
            raise make_cheating("it forged an answer to the judge")
        if self._begun is not None and (changes := describe_changes(self._begun, self._process.read_facts())):
            raise make_cheating(f"while its launches were timed, {changes[0]}")
        return run

    def _run_order(
        self, order: Order, ask: Callable[..., tuple[Answer, RunTime]], glance: Glance | None = None
    ) -> tuple[Any, RunTime]:
        """Have a process carry out an order; return its answer, and how long that took."""
        gpu, count = self._referee.gpu, self._count
        if gpu is None:
            return ask(order, self._deadline_s, glance=glance)
        answer = None
        if order.queued:
            answer, _ = ask(order, self._deadline_s, on_late=lambda: self._open_gate(gpu, order.gate))
            if not self._is_gated:
                # These launches had other inputs than they were to have.
                ask(Await(), self._deadline_s)
                answer, order = None, replace(order, gate=self._draw_gate(), queued=False)
        gate = order.gate
        clock = GpuClock(lambda: gpu.publish_sets(count, gate), lambda: gpu.collect_sets(count))
        gpu.release_cache()
        last, run = ask(order if answer is None else Await(), self._deadline_s, clock=clock)
        return answer or last, run

    def _open_gate(self, gpu: GpuArena, gate: int) -> None:
        """Time a candidate whose launches wait for the GPU with the host's work from now on."""
        self._is_gated = False
        gpu.open_gate(gate)

    def _write_sets(self, count: int, *, are_alike: bool = False) -> dict[str, Any]:
        """Write new inputs and the poison into ``count`` sets; return copies of what launches begin with, by name."""
        arena, roles = self._referee.arena, self._data.roles
        sets = {name: arena.view_sets(name, count) for name in self._data.tensors}
        begun = {name: tensors for name, tensors in sets.items() if name not in roles.poisoned}
        with self._use_one_thread():
            secret = secrets.token_hex(16)
            varies = self._data.write_fresh_inputs(begun, secret, FRESH_S, are_alike=are_alike)
            inputs = {name: self._library.pack_tensor(tensors) for name, tensors in begun.items()}
            # The poison comes last, as under `tune`: what was written last is in the caches.
            for name in roles.poisoned:
                self._library.poison_tensor(sets[name])
        self._varies = varies or not begun
        if self._data.has_setup:
            for place in range(count):
                self._data.set_up(arena.view_set(place))
        return inputs

    def _write_again(self, count: int, inputs: Mapping[str, Any]) -> None:
        """Write the same into the sets, so that the caches are as they were before the candidate's launches."""
        for name in self._data.tensors:
            tensors = self._referee.arena.view_sets(name, count)
            if name in inputs:
                self._library.copy_elements(inputs[name], tensors)
            else:
                self._library.poison_tensor(tensors)

    def _check_sets(self, count: int, inputs: Mapping[str, Any], places: Sequence[int]) -> None:
        """Check cheaply what the launches on the sets at ``places`` have left in all ``count`` sets.

        Raises:
            Ended: something is not as it must be.
        """
        with self._use_one_thread():
            self._check_memory(count, inputs, places)

    def _check_memory(self, count: int, inputs: Mapping[str, Any], places: Sequence[int]) -> None:
        arena, roles = self._referee.arena, self._data.roles
        for name in roles.poisoned:
            tensors = arena.view_sets(name, count)
            size = math.prod(tensors.shape[1:])
            if not size or not (counts := self._library.count_poison(tensors)):
                continue
            if unwritten := sum(counts[place] == size for place in places):
                raise make_mismatch(f"{name} was never written by {unwritten} of {len(places)} launches")
            if any(counts[place] < size for place in set(range(count)).difference(places)):
                raise make_cheating("it works on sets of tensors that it was not called with")
        for name in roles.read_only:
            if not self._library.hold_equal_bits(arena.view_sets(name, count), inputs[name]):
                raise make_mismatch(f"it overwrites its input {name}")
        for begin, end in arena.layout.list_gaps():
            if not bool((arena.view_bytes(count, begin, end) == PATTERN).all()):
                raise make_mismatch("it wrote outside its tensors")

    def _compare_launches(self, places: list[int], inputs: Mapping[str, Any], *, fewest: int) -> None:
        """Compare the outputs of launches drawn at random, as many as there is time for.

        Raises:
            Ended: one is wrong.
        """
        self._affordable_s += self._comparing_s / (self._orders + UNTIMED_ORDERS)
        for number, place in enumerate(self._random.sample(places, len(places))):
            if number >= fewest and (self._affordable_s <= 0 or self._compared >= MOST_COMPARED):
                break
            began = monotonic()
            self._compare_launch(place, inputs)
            self._affordable_s -= monotonic() - began
            self._compared += 1

    def _compare_launch(self, place: int, inputs: Mapping[str, Any]) -> None:
        verdict = self._judge_launch(place, place, inputs)
        if verdict.ok:
            return
        views = [self._referee.arena.view_sets(name, self._count) for name in self._data.roles.outputs]
        equal = (
            other
            for other in range(self._count)
            if other != place and all(self._library.hold_equal_bits(view[other], view[place]) for view in views)
        )
        # Equal outputs may be equally wrong.
        other = next(equal, None)
        if other is not None and self._judge_launch(place, other, inputs).ok:
            raise make_cheating(f"a launch left the outputs of another one: {verdict.message}")
        raise make_mismatch(verdict.message)

    def _judge_launch(self, outputs_of: int, inputs_of: int, inputs: Mapping[str, Any]) -> Verdict:
        """Judge the outputs in one set as if they belonged to the inputs of another one."""
        arena = self._referee.arena
        outputs = {name: arena.view_sets(name, self._count)[outputs_of] for name in self._data.roles.outputs}
        packed = {name: self._library.pack_tensor(tensor) for name, tensor in outputs.items()}
        return self._data.judge_launch({name: tensors[inputs_of] for name, tensors in inputs.items()}, packed)

    def list_checks(self) -> tuple[str, ...]:
        """Return what was checked, in sentences."""
        if not self._launches:
            return ()
        return (
            f"{self._launches:,} launches, each on inputs drawn at random, were timed by a clock outside the process",
            f"{self._compared:,} of them, drawn at random after they had run, were compared with the expected outputs",
            "each had written its outputs, and nothing else, when the clock was stopped",
        )

    def list_gaps(self) -> tuple[str, ...]:
        """Return what could not be enforced, in sentences."""
        gaps = [*self._process.not_enforced]
        if not self._varies:
            gaps.append(
                "launches had the same inputs, because the kernel file makes them itself and does not vary them"
            )
        if self._referee.gpu is not None:
            gaps.append("launches on a GPU may have been put off, and done together at the end of a batch")
        return tuple(gaps)

    @contextmanager
    def _use_one_thread(self) -> Iterator[None]:
        """Keep the referee's own threads from spinning while the candidate runs."""
        module = self._library.module
        threads = module.get_num_threads() if hasattr(module, "get_num_threads") else 0
        if not threads:
            yield
            return
        module.set_num_threads(1)
        try:
            yield
        finally:
            module.set_num_threads(threads)


def list_undisturbed(runs: Iterable[RunTime]) -> list[float]:
    """Return the times, in µs, of the half of the runs that waited least for a core."""
    ordered = sorted(runs, key=lambda run: run.waited_us / run.elapsed_us)
    calm = [run for run in ordered if run.waited_us <= DISTURBED_SHARE * run.elapsed_us]
    return [run.elapsed_us for run in (calm if 2 * len(calm) > len(ordered) else ordered[: -(-len(ordered) // 2)])]


def make_samples(orders: Sequence[OrderTime], gpu: GpuArena | None) -> Samples:
    """Return the times of a launch in each order, in µs.

    A GPU sometimes turns to a process 200 µs late, so the faster half of the orders counts there. Under ``tune``, a
    GPU's figure contains what events cost.
    """
    samples = Samples()
    if gpu is None:
        overhead_us = median(list_undisturbed(order.overhead for order in orders))
        for elapsed_us in list_undisturbed(order.run for order in orders):
            samples.add_sample((elapsed_us - overhead_us) / orders[0].launches)
        return samples
    half = -(-len(orders) // 2)
    overhead_us = median(sorted(order.overhead.elapsed_us for order in orders)[:half])
    for latency_us in sorted((order.run.elapsed_us - overhead_us) / order.launches for order in orders)[:half]:
        samples.add_sample(latency_us + gpu.event_us)
    return samples


def make_refusal(reason: str) -> Ended:
    """Return the end of what cannot be judged."""
    return Ended(JudgeVerdict.REFUSED, Outcome.UNSUPPORTED, reason)


def make_mismatch(reason: str) -> Ended:
    """Return the end of a candidate whose outputs are wrong."""
    return Ended(JudgeVerdict.WRONG, Outcome.MISMATCH, reason)


def make_ended_result(ended: Ended, phase: Phase) -> TrialResult:
    """Return the result of a candidate that is not right."""
    result = make_failed_result(ended.outcome, ended.reason, phase)
    if ended.signal_name:
        result = result.add_facts("failure", signal=ended.signal_name)
    return result.add_facts("judged", verdict=ended.verdict, reason=ended.reason.partition("\n")[0])

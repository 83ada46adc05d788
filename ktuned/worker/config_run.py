"""One config on the open problem, from its first launch to its result.

An exception in any of these steps is the config's outcome:

1.  **First launch**, on poisoned outputs.
2.  **Check** the outputs. A wrong config is not timed, unless it only differs from the default config, which may be
    the wrong one. A config that uses more cores than it was given is not timed either: it will be measured again with
    all the cores that it needs.
3.  **Time** it as long as it can still win (:mod:`ktuned.measuring.race`). Some timed launches are compared with the
    first one. When the clock stops, the process has no more threads, processes, timers and signal handlers than after
    the first launch. Observers (:mod:`ktuned.measuring.launch_observer`) measure everything but the time.
4.  **Check again** after the last launch: outputs, and that no input was overwritten.
5.  **Compare bits**, if exact numerics are wanted (:mod:`ktuned.checking.bits`).
6.  **Look for damage** outside the tensors, even if an earlier step has failed. Otherwise the next config would be
    blamed for it.

On a GPU, a launch's fault is raised by whichever call comes next. So an exception during a check may come from the
launch.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from msgspec.structs import replace

from ktuned.backends import Launch
from ktuned.checking import BitsComparison, JudgedOutputs
from ktuned.ipc import replies, requests
from ktuned.measuring import (
    FINALIST_COMPARED,
    SURE_COMPARED,
    TimedLaunches,
    WrongLaunch,
    add_check_errors,
    make_disputed_result,
    make_failed_result,
    make_raised_result,
    make_timed_result,
)
from ktuned.model import Checks, Outcome, Phase, TrialDetail, TrialResult, Unsupported
from ktuned.worker.open_problem import OpenProblem
from ktuned.worker.reply import Phases
from ktuned.worker.residues import find_grown_residues, read_residues


class ConfigRun:
    """One loaded config, which is taken through the steps that the module describes.

    Args:
        problem: the open problem.
        key: the artifact's key.
        launch: the launch on the problem's tensors.
        phases: reports each phase as it begins.
    """

    def __init__(self, problem: OpenProblem, key: str, launch: Launch, phases: Phases) -> None:
        self._problem = problem
        self._data = problem.data
        self._key = key
        self._launch = launch
        self._phases = phases
        self._at_work: dict[str, frozenset[object]] = {}

    def measure_config(
        self, request: requests.Trial, known_us: float | None, following: requests.UnitRef | None
    ) -> TrialResult:
        """Check the config, time it unless its latency is known, and check it again.

        Args:
            request: how to measure.
            known_us: the latency in µs if it is known already. Then only the observers measure.
            following: the next config, which is loaded while a GPU works on this one's samples.
        """
        data, observers = self._data, self._problem.observers
        # Launch once. If nothing decides what is right, there is no later check, so this one looks at the inputs, too.
        first_us = self._launch_once(observers.begin_config(request, self._launch), Phase.FIRST_LAUNCH)
        if isinstance(first_us, TrialResult):
            return first_us
        first = self._judge_last_launch(is_last=not data.is_judged)
        is_right = first.outcome is Outcome.MEASURED
        if not is_right and first.detail.checks.undisputed is None:
            return first
        first = observers.end_first_launch(first)
        if first.outcome is None:
            return first
        # Digest the outputs before timing poisons them.
        bits = None
        if request.same_bits is not None and data.roles.outputs:
            bits = BitsComparison(data, self._launch, request.same_bits)
            bits.digest_last_outputs()
        launches = self._make_timed_launches(is_right=is_right, following=following)
        timed = self._time_launches(launches, request, SURE_COMPARED, known_us, first_us)
        if not is_right:
            return make_disputed_result(timed, first)
        last = first
        if timed.outcome is Outcome.MEASURED and data.is_judged:
            last = self._check_again(launches)
            if last.outcome is not Outcome.MEASURED:
                return replace(last, message=f"the first launch was right, a later one was not: {last.message}")
            if bits is not None:
                bits.digest_last_outputs()
        if bits is not None and timed.outcome in (Outcome.MEASURED, Outcome.SLOWER):
            timed = self._compare_bits(bits, timed)
        return timed.add_checks(replace(first.detail.checks, overwritten=last.detail.checks.overwritten))

    def _check_again(self, launches: TimedLaunches) -> TrialResult:
        """Judge the outputs after the timing, and the inputs too.

        Events leave the last timed launch's outputs in place. After a graph, the config is launched once more.
        """
        relaunched = None if launches.leave_own_outputs else self._launch_once(self._launch, Phase.CHECK)
        return relaunched if isinstance(relaunched, TrialResult) else self._judge_last_launch()

    def check_config(self) -> TrialResult:
        """Launch the config once and judge its outputs, without timing it."""
        launched = self._launch_once(self._launch, Phase.FIRST_LAUNCH)
        return launched if isinstance(launched, TrialResult) else self._judge_last_launch()

    def time_finalist(self, request: requests.Time) -> TrialResult:
        """Check the config, and time it for the final round."""
        self._problem.observers.begin_config(request, self._launch)
        first = self.check_config()
        is_right = first.outcome is Outcome.MEASURED
        if not is_right and first.detail.checks.undisputed is None:
            return first
        launches = self._make_timed_launches(is_right=is_right)
        return self._time_launches(launches, request, FINALIST_COMPARED, None)

    def check_damage(self, result: TrialResult) -> replies.Measurement:
        """Return the config's measurement, or one that says where it wrote outside its tensors."""
        self._phases.begin_phase(Phase.CHECK)
        try:
            damage = self._data.take_damage()
        except RuntimeError as error:
            is_known = result.outcome is Outcome.LAUNCH_ERROR
            return replies.Measurement(result if is_known else make_raised_result(error, Phase.CHECK))
        if damage is None:
            return replies.Measurement(result)
        failed = make_failed_result(Outcome.MISMATCH, damage.message, Phase.CHECK)
        return replies.Measurement(failed, is_guilty=True, is_unsound=not damage.is_contained)

    def _launch_once(self, launch: Launch, phase: Phase) -> float | TrialResult:
        """Launch once on poisoned outputs; return an upper bound of its time in µs, or the result if it failed."""
        self._phases.begin_phase(phase)
        try:
            began = perf_counter()
            self._data.prepare_checked_launch()
            launch()
            self._problem.timer.synchronize()
        except Unsupported as error:
            return make_failed_result(Outcome.UNSUPPORTED, str(error), phase)
        except Exception as error:
            return make_raised_result(error, phase)
        took_us = (perf_counter() - began) * 1e6
        if phase is Phase.FIRST_LAUNCH:
            self._at_work = read_residues()
        return took_us

    def _judge_last_launch(self, *, is_last: bool = True) -> TrialResult:
        """Judge the outputs; return a result without a latency.

        The inputs are compared, too, if ``is_last`` is true or the outputs are wrong: once per config is enough.
        """
        self._phases.begin_phase(Phase.CHECK)
        try:
            with self._problem.state.use_known_arithmetic():
                if self._data.look_at_outputs(is_last=is_last):
                    return TrialResult(Outcome.MEASURED, detail=TrialDetail(checks=Checks(0.0, 0.0)))
                verdict = self._data.check_outputs()
                overwritten = self._data.find_overwritten_inputs() if is_last or not verdict.ok else ()
        except Exception as error:
            return make_raised_result(error, Phase.CHECK)
        judged = TrialResult(Outcome.MEASURED)
        if not verdict.ok:
            message = "; ".join((verdict.message, *(f"the kernel overwrites its input {name}" for name in overwritten)))
            undisputed = Outcome.MEASURED if verdict.is_dissent else None
            judged = make_failed_result(Outcome.MISMATCH, message, Phase.CHECK).add_facts(
                "checks", undisputed=undisputed
            )
        return add_check_errors(judged, verdict).add_facts("checks", overwritten=overwritten)

    def _make_timed_launches(self, *, is_right: bool, following: requests.UnitRef | None = None) -> TimedLaunches:
        """Return the launches for the timer, after the first launch was judged."""
        problem, data = self._problem, self._data
        judged = JudgedOutputs(
            data, is_judged=data.is_judged and is_right, arithmetic=problem.state.use_known_arithmetic
        )
        return TimedLaunches(
            self._launch,
            restore=data.restore_inputs if data.restores else None,
            judged=judged,
            bind=problem.bind_to_output_copy,
            most_copies=data.count_affordable_copies(problem.timer.max_output_bytes),
            compared=problem.compared.get(self._key, 0),
            meanwhile=None if following is None else partial(problem.load_next_config, following, self._phases),
        )

    def _time_launches(
        self,
        launches: TimedLaunches,
        request: requests.Trial | requests.Time,
        most_compared: int,
        known_us: float | None,
        first_us: float | None = None,
    ) -> TrialResult:
        """Time launches, and let observers complete the result; a wrong launch among them makes a mismatch."""
        before = launches.compared
        self._phases.begin_phase(Phase.TIMING)
        try:
            self._problem.observers.begin_samples()
            timed = TrialResult(Outcome.MEASURED, known_us)
            if known_us is None:
                timed = self._sample_launches(launches, request, most_compared, first_us)
            timed = self._problem.observers.complete_result(
                timed, launches, partial(self._phases.begin_phase, Phase.TIMING)
            )
        except WrongLaunch as wrong:
            # "Right" means equal to the default's outputs if those are the expected ones.
            message = f"the first launch was right, a later one was not: {wrong.verdict.message}"
            timed = add_check_errors(make_failed_result(Outcome.MISMATCH, message, Phase.CHECK), wrong.verdict)
        except Exception as error:
            timed = make_raised_result(error, Phase.TIMING)
        self._problem.compared[self._key] = launches.compared
        timed = timed.add_facts("checks", compared=launches.compared - before)
        return timed.add_facts("numerics", nondeterministic=True) if launches.has_differed else timed

    def _sample_launches(
        self,
        launches: TimedLaunches,
        request: requests.Trial | requests.Time,
        most_compared: int,
        first_us: float | None,
    ) -> TrialResult:
        problem = self._problem
        race = problem.timer.time_launches(launches, problem.make_race_rules(request, first_us))
        if find_grown_residues(self._at_work):
            # A pool of threads may still grow while it is used, but not again and again.
            self._at_work = read_residues()
            race = problem.timer.time_launches(launches, problem.make_race_rules(request, first_us))
        if left := find_grown_residues(self._at_work):
            message = (
                f"whenever it was timed, it left a {left[0]} behind, which may do the work that its launches did not"
            )
            return make_failed_result(Outcome.MISMATCH, message, Phase.TIMING)
        timed = problem.observers.end_samples(make_timed_result(race), race.samples)
        if timed.outcome is Outcome.MEASURED and race.is_full:
            problem.noise.add_config(race.samples, first_us)
        if timed.outcome is Outcome.MEASURED and race.may_win:
            launches.top_up_comparisons(
                most_compared,
                request.preset.timing_s,
                problem.timer.synchronize,
                by_flags=problem.timer.returns_early,
            )
        return timed

    def _compare_bits(self, bits: BitsComparison, timed: TrialResult) -> TrialResult:
        try:
            return bits.complete_result(
                timed, self._problem.timer.synchronize, partial(self._phases.begin_phase, Phase.CHECK)
            )
        except Exception as error:
            failed = make_raised_result(error, Phase.CHECK)
            return replace(failed, message=f"on inputs that compare bits: {failed.message}")

"""The result of a config, made from its timing, a verdict, damage or an error. No IO.

What each ending means for the other configs of its batch (:func:`ends_batch`):

================  ========================================================  ===========================================
outcome           why                                                       the batch
================  ========================================================  ===========================================
``MEASURED``      timed to the end, or until it could not win (``beaten``)  continues
``SLOWER``        hopeless: given up after a few samples                    continues
``MISMATCH``      wrong outputs                                             continues
``MISMATCH``      wrote outside its tensors (``is_guilty``)                 ends, so that no other config is blamed
``CONTENDED``     other programs used the device                            continues; this config is tried again
``UNSUPPORTED``   the device cannot run it                                  continues
``LAUNCH_ERROR``  it raised                                                 ends: the process may be harmed
``None``          its artifact is damaged, or it needs more cores           continues; ends if it needs more cores
================  ========================================================  ===========================================

Whatever the outcome, a config that changed the process (``leftover``) ends the batch.
"""

from __future__ import annotations

from msgspec.structs import replace

from ktuned.checking import Verdict
from ktuned.ipc import replies, requests
from ktuned.measuring.race import Ending, Race
from ktuned.model import FailureFacts, Outcome, Phase, Timing, TrialDetail, TrialResult, describe_error

KEPT_SAMPLES = 200
"""Most samples that are sent with a measurement, chosen evenly by rank: enough to show a distribution."""


def make_timed_result(race: Race) -> TrialResult:
    """Return the result of a config that was timed, to the end or until it could not win any more."""
    samples = race.samples
    low_us, high_us = race.interval_us
    kept = samples.sorted_us[:: max(1, len(samples) // KEPT_SAMPLES)]
    is_beaten = race.ending is Ending.BEATEN
    return TrialResult(
        Outcome.SLOWER if race.is_hopeless else Outcome.MEASURED,
        samples.median_us,
        samples.spread_us,
        message=f"cannot win: {low_us:,.1f} to {high_us:,.1f} µs by {len(samples)} samples" if is_beaten else "",
        detail=TrialDetail(
            timing=Timing(len(samples), tuple(round(value, 3) for value in kept), low_us, high_us, is_beaten)
        ),
    )


def ends_batch(measured: replies.Measurement, request: requests.Trial) -> bool:
    """Return whether the request must end after this config, because it may have harmed the process or lacks cores."""
    cores = measured.result.detail.profile.cores
    lacks_cores = request.cores is not None and cores is not None and cores > request.cores
    is_harmful = measured.is_guilty or measured.is_unsound or bool(measured.leftover)
    return measured.result.outcome is Outcome.LAUNCH_ERROR or is_harmful or lacks_cores


def add_check_errors(result: TrialResult, verdict: Verdict) -> TrialResult:
    """Return a result with the errors that the check found."""
    return result.add_facts("checks", max_error=verdict.finite_error, mismatched_ratio=verdict.mismatched_ratio)


def make_disputed_result(timed: TrialResult, first: TrialResult) -> TrialResult:
    """Return the result of a config whose outputs differ from the default's, which may be wrong itself.

    It is a mismatch, but keeps its figures. ``undisputed`` is the outcome that it gets if the default turns out to be
    wrong.

    Args:
        timed: the result of its timing.
        first: the verdict on its first launch.
    """
    if timed.outcome not in (Outcome.MEASURED, Outcome.SLOWER):
        return timed
    message = f"differs from the default's outputs: {first.message}"
    return (
        replace(timed, outcome=Outcome.MISMATCH, message=message)
        .add_checks(replace(first.detail.checks, undisputed=timed.outcome))
        .add_facts("failure", phase=Phase.CHECK)
    )


def make_failed_result(outcome: Outcome, message: str, phase: Phase) -> TrialResult:
    """Return the result of a config that failed in a phase."""
    return TrialResult(outcome, message=message, detail=TrialDetail(FailureFacts(phase)))


def make_raised_result(error: Exception, phase: Phase) -> TrialResult:
    """Return the result of a config that raised.

    Raises:
        MemoryError: the process lacks memory. That is no fault of the config, and ends the worker.
    """
    if isinstance(error, MemoryError):
        raise error
    return make_failed_result(Outcome.LAUNCH_ERROR, describe_error(error), phase)

"""The rule of winners, without a database."""

import itertools

import pytest

from ktuned.store.winner_rule import Effect, Standing, judge_result

FIGURES = (None, 1.0, 2.0, 3.0)


def apply_rule_by_table(trial: Standing, seated: Standing | None) -> Effect:
    """Repeat the rule as a table of cases."""
    cases = {
        # (is reported measured, is reported current): effect, where nothing else matters
        (False, False): Effect.KEEP,
        (False, True): Effect.VACATE,
        (True, True): Effect.TAKE,
    }
    is_seated = seated is not None and seated.trial == trial.trial
    if effect := cases.get((trial.cost is not None, is_seated)):
        return effect
    assert trial.cost is not None
    is_beaten = seated is None or seated.context != trial.context or seated.cost is None or trial.cost < seated.cost
    return Effect.TAKE if is_beaten else Effect.KEEP


@pytest.mark.parametrize("told_us", FIGURES)
@pytest.mark.parametrize("seated_us", [*FIGURES, "empty"])
def test_only_a_faster_measured_trial_wins(told_us: float | None, seated_us: float | str | None) -> None:
    """Or a trial of the winner itself, of another context, or the first one."""
    for trial, ground in itertools.product((1, 2), (1, 2)):
        told = Standing(1, 1, told_us)
        seated = None if isinstance(seated_us, str) else Standing(trial, ground, seated_us)
        assert judge_result(told, seated) is apply_rule_by_table(told, seated)


def test_while_a_job_begins_only_the_incumbent_s_new_result_counts() -> None:
    for incumbent in (None, Standing(1, 1, 5.0), Standing(1, 2, 5.0)):
        assert judge_result(Standing(2, 2, 1.0), incumbent, keeps_winner=True) is Effect.KEEP
    assert judge_result(Standing(1, 1, 9.0), Standing(1, 1, 5.0), keeps_winner=True) is Effect.TAKE
    assert judge_result(Standing(1, 1, None), Standing(1, 1, 5.0), keeps_winner=True) is Effect.VACATE

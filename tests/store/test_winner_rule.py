"""The rule of the winner's key, without a database."""

import itertools

import pytest

from ktuned.store.winner_rule import Effect, Standing, judge_result

FIGURES = (None, 1.0, 2.0, 3.0)


def rule(told: Standing, seated: Standing | None) -> Effect:
    """Say the rule once more, as a table of cases."""
    cases = {
        # (is reported measured, is reported current): effect, where nothing else matters
        (False, False): Effect.KEEP,
        (False, True): Effect.VACATE,
        (True, True): Effect.TAKE,
    }
    is_seated = seated is not None and seated.trial == told.trial
    if effect := cases.get((told.cost is not None, is_seated)):
        return effect
    assert told.cost is not None
    is_beaten = seated is None or seated.context != told.context or seated.cost is None or told.cost < seated.cost
    return Effect.TAKE if is_beaten else Effect.KEEP


@pytest.mark.parametrize("told_us", FIGURES)
@pytest.mark.parametrize("seated_us", [*FIGURES, "empty"])
def test_only_a_faster_measured_trial_takes_a_key(told_us: float | None, seated_us: float | str | None) -> None:
    """Only a measured trial takes a key, and only from no one, itself, another context or a slower one."""
    for trial, ground in itertools.product((1, 2), (1, 2)):
        told = Standing(1, 1, told_us)
        seated = None if isinstance(seated_us, str) else Standing(trial, ground, seated_us)
        assert judge_result(told, seated) is rule(told, seated)


def test_an_equal_figure_does_not_take_the_seat() -> None:
    """A tie changes no winner, so that applications are not sent to and fro."""
    assert judge_result(Standing(2, 1, 5.0), Standing(1, 1, 5.0)) is Effect.KEEP


def test_another_ground_is_never_compared() -> None:
    """A slower trial on today's context replaces a faster winner of yesterday's."""
    assert judge_result(Standing(2, 2, 50.0), Standing(1, 1, 5.0)) is Effect.TAKE


def test_while_a_job_opens_no_other_trial_wins() -> None:
    """Neither an empty place nor one of another context is taken; the incumbent's own new result counts."""
    for incumbent in (None, Standing(1, 1, 5.0), Standing(1, 2, 5.0)):
        assert judge_result(Standing(2, 2, 1.0), incumbent, keeps_winner=True) is Effect.KEEP
    assert judge_result(Standing(1, 1, 9.0), Standing(1, 1, 5.0), keeps_winner=True) is Effect.TAKE
    assert judge_result(Standing(1, 1, None), Standing(1, 1, 5.0), keeps_winner=True) is Effect.VACATE

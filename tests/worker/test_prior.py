"""A kernel file's prior: its configs come first, and no config is excluded."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest

from ktuned import space
from ktuned.model import Device, DeviceModel, DeviceName, KernelFileError, Phase, Plan, Target
from ktuned.worker.explore import Exploration
from tests.worker.declaring import declare_kernel

SPACE = space(n=range(100))


def list_explored_configs(prior: Any) -> list[Any]:
    """Return the configs of a whole exploration, in their order; the first is an earlier winner."""
    exploration = Exploration(
        declare_kernel(space=SPACE, prior=prior), {"M": 1}, Plan(strategy="exhaustive"), [{"n": 50}]
    )
    configs: list[Any] = []
    while True:
        answer = exploration.propose_configs(20)
        configs += [proposal.config["n"] for proposal in answer.proposals]
        if answer.finished:
            return configs


@pytest.mark.parametrize(
    ("prior", "first"),
    [
        (lambda p: [{"n": 70}, {"n": 500}, {"n": 3 * p.M}], [50, 70, 3]),
        (lambda p, c: -abs(c.n - 40), [50, 40]),
    ],
    ids=["configs", "score"],
)
def test_promising_configs_come_first(prior: Any, first: list[int]) -> None:
    """They follow the winner. Configs outside the space are dropped, and all other configs follow once."""
    configs = list_explored_configs(prior)
    assert configs[: len(first)] == first
    assert sorted(configs) == list(range(100))


@pytest.mark.parametrize(
    "prior",
    [
        lambda p, device: [{"n": 70}] if device.target == "sm_90a" else [],
        lambda p, c, device: -abs(c.n - (70 if device.model == "H100" else 20)),
    ],
    ids=["configs", "score"],
)
def test_prior_may_depend_on_the_device(prior: Any) -> None:
    """Either form of prior gets the device as a parameter of that name."""
    device = Device(DeviceName("cuda:0"), DeviceModel("H100"), Target("sm_90a"))
    kernel = declare_kernel(space=SPACE, prior=prior)
    (proposal,) = (
        Exploration(kernel, {"M": 1}, Plan(strategy="exhaustive"), [], device=device).propose_configs(1).proposals
    )
    assert proposal.config["n"] == 70


@pytest.mark.parametrize(
    ("prior", "first"),
    [
        (lambda p: [{"n": np.int64(70)}, {"n": np.int32(3)}], [50, 70, 3]),
        (lambda p, wanted=70: [{"n": wanted}], [50, 70]),
        (lambda p, c: math.nan if c.n < 40 else -c.n, [50, 40, 41]),
    ],
    ids=["numbers of NumPy", "a default", "no number"],
)
def test_prior_may_be_written_freely(prior: Any, first: list[int]) -> None:
    """NumPy numbers are accepted, a parameter with a default is the author's own, and a score of NaN means no
    preference.
    """
    assert list_explored_configs(prior)[: len(first)] == first


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (
            lambda p: [{"n": 500, "tile": 1}, {"n": -1, "tile": 1}],
            "none of its configs is in the space, such as .*=500.*; return values of its axes that",
        ),
        (lambda p: [{"m": 1}], r"there is no knob 'm' \(there are: n, tile\)"),
        (lambda p: [{"tyle": 1}], "did you mean 'tile'"),
        (lambda p: [{"n": 1}], "give the knob 'tile' a value, too"),
        (lambda p, c: math.nan, "it gave NaN for all 200 configs; return a number"),
    ],
    ids=["outside", "no such knob", "misspelt", "incomplete", "all NaN"],
)
def test_prior_that_cannot_help_is_reported(prior: Any, words: str) -> None:
    """A prior of which nothing is usable gets a message with its kernel, what it named, and how to fix it."""
    kernel = declare_kernel(space=space(n=range(100), tile=[1, 2]), prior=prior)
    fault = Exploration(kernel, {"M": 1}, Plan(strategy="exhaustive"), []).prior_fault
    assert re.search(f"^prior of kernel 'it' is ignored: .*{words}", fault)


@pytest.mark.parametrize(
    "prior",
    [None, lambda p: [], lambda p: [{"n": 500}, {"n": 5}], lambda p, c: c.n],
    ids=["none", "nothing", "some", "score"],
)
def test_prior_that_helps_is_not_reported(prior: Any) -> None:
    """A prior that returns nothing, or names some configs outside the space, gets no message either."""
    assert Exploration(declare_kernel(space=SPACE, prior=prior), {"M": 1}, Plan(), []).prior_fault == ""


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (lambda p: None, "prior: TypeError: it returned None, not configs: return a list of dicts"),
        (lambda p: {"n": 1}, "it returned {'n': 1}, not configs"),
        (lambda p: [{"n": math.nan}], "n=nan is not a finite number"),
        (lambda p: [{}], "a config that it returned is empty"),
        (lambda p, c: "good", "prior: ValueError"),
        (lambda p: sys.exit(3), "prior: SystemExit: 3"),
    ],
    ids=["nothing", "one config", "NaN", "empty", "a word", "an exit"],
)
def test_prior_with_a_wrong_result_names_its_file(prior: Any, words: str) -> None:
    """One line says what the prior returned and what it should return."""
    with pytest.raises(KernelFileError, match=rf"declaring\.py:\d+: .*{words}"):
        list_explored_configs(prior)


def test_phases_tell_a_prior_from_a_strategy() -> None:
    """Each phase begins before its code runs, so that a hang is attributed correctly."""
    events: list[Any] = []

    def prior(p: Any) -> list[Any]:
        events.append("asked")
        return []

    Exploration(declare_kernel(space=SPACE, prior=prior), {"M": 1}, Plan(), [], on_phase=events.append)
    assert events == [Phase.PRIOR, "asked", Phase.STRATEGY]


def test_prior_with_a_value_that_no_knob_can_have_names_its_file() -> None:
    with pytest.raises(KernelFileError, match=r"declaring\.py:\d+: .*prior: TypeError"):
        list_explored_configs(lambda p: [{"n": object()}])


def test_prior_that_raises_names_its_file() -> None:
    with pytest.raises(KernelFileError, match="prior: ZeroDivisionError"):
        list_explored_configs(lambda p: [1 // 0])

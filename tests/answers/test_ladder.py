from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.answers.kernel_state import KernelState
from ktuned.answers.ladder import Lookup, Question, decide_answer, find_answer
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, ProjectName
from ktuned.model.objective import LATENCY, minimize
from ktuned.model.plan import Plan
from ktuned.model.values import Config, Problem, canonical
from ktuned.protocol.winners import Status
from ktuned.store.contexts import Context
from ktuned.store.near import NEAR_CANDIDATES
from ktuned.store.winners import Winner
from tests.made_state import make_state

BY_ENERGY = minimize("energy")

DEVICE = "cpu-x"
DEFAULT: Config = {"B": 1}
HERE: Problem = {"M": 64, "dtype": "float32"}


def info(**changes: Any) -> KernelInfo:
    """Return a kernel that takes ``M`` and ``dtype``."""
    space = SpaceInfo("cartesian", {"B": (1, 2, 4)}, size=3)
    kernel = KernelInfo(
        ProjectName("p"), "k", "/p/tune_k.py", 1, "fake", "d", "s", "pl", (), {}, (HERE,), DEFAULT, None, space, Plan()
    )
    return replace(kernel, **changes)


def ground(problem: Problem = HERE, device: str = DEVICE) -> Context:
    """Return what is measured on now."""
    return Context(KernelName("p:k"), KeyProblem(canonical(problem)), DeviceModel(device), "d", "gcc", "driver")


def winner(problem: Problem = HERE, config: Config | None = None, **ground_changes: Any) -> Winner:
    """Return a winner, by default of this very context."""
    return Winner(
        replace(ground(problem), **ground_changes), 7, problem, config or {"B": 2}, 5.0, 0.1, "ab", decided=0.0
    )


def describe_kernel(
    *winners: Winner, problem: Problem = HERE, is_here: bool = True, failed: Iterable[Config] = (), **options: Any
) -> KernelState:
    """Return the state of a kernel with some winners, whose device may be gone."""
    kernel = info(**options)
    here = replace(ground(), problem=kernel.make_key_problem(problem))
    return make_state(
        kernel,
        winners,
        ground() if is_here else None,
        failed=frozenset((here, canonical(config)) for config in failed),
    )


def ask(*winners: Winner, problem: Problem = HERE, admits: Any = lambda config: True, **options: Any) -> Any:
    """Climb down the ladder on the usual device."""
    question = Question(problem, DEVICE, options.pop("objective", LATENCY), admits=admits)
    state = describe_kernel(*winners, problem=problem, **options)
    place = state.find_place(DEVICE)
    return decide_answer(state, question, place, None if place is None else state.make_context(place, problem), "")


def look_up(*winners: Winner, doubt: str) -> Lookup:
    """Return the whole answer while something is in doubt."""
    return find_answer(describe_kernel(*winners), Question(HERE, DEVICE, LATENCY, doubt, lambda config: True))


def test_same_ground_is_fresh_and_wants_nothing() -> None:
    """A winner of this very context is served as it is."""
    found = ask(winner())
    assert (found.status, found.config, found.wants_tuning) == (Status.FRESH, {"B": 2}, False)


def test_what_is_in_doubt_is_not_fresh_and_wants_nothing() -> None:
    """While it is not known what a measurement would stand on, the winner is stale, and no answer has one tuned."""
    found = look_up(winner(), doubt="a file changed")
    assert (found.answer.status, found.answer.config, found.answer.message) == (
        Status.STALE,
        {"B": 2},
        "a file changed",
    )
    for winners in ([winner()], [winner({**HERE, "M": 128})], []):
        assert look_up(*winners, doubt="a file changed").tuning is None
        assert not look_up(*winners, doubt="a file changed").is_certain
    assert look_up(doubt="").tuning is not None


def test_what_is_not_fully_observed_is_stale_and_tuned_only_after_a_change() -> None:
    """A winner of this context is served as stale and not tuned again; one of another context is."""
    hidden = "gen.py:3 starts a child process"
    found = ask(winner(), unobserved_read=hidden)
    assert (found.status, found.is_unobserved, found.wants_tuning) == (Status.STALE, True, False)
    found = ask(winner(digest="other"), unobserved_read=hidden)
    assert (found.status, found.is_unobserved, found.wants_tuning) == (Status.STALE, False, True)
    assert ask(unobserved_read=hidden).wants_tuning


@pytest.mark.parametrize(
    "field", [name for name in Context.__struct_fields__ if name not in ("kernel", "problem", "device")]
)
def test_any_other_ground_is_stale(field: str) -> None:
    """Each part of the context (digest, toolchain, driver, way of measuring) alone makes a winner stale."""
    other: dict[str, Any] = {field: 99 if field == "measuring_version" else "other"}
    found = ask(winner(**other))
    assert (found.status, found.config, found.wants_tuning) == (Status.STALE, {"B": 2}, True)


def test_absent_device_makes_its_winner_stale() -> None:
    """Nothing can vouch for a winner whose device is not here."""
    assert ask(winner(), is_here=False).status is Status.STALE


def test_an_answer_for_a_device_that_is_not_here_promises_no_tuning() -> None:
    here, elsewhere = (
        find_answer(describe_kernel(is_here=is_here), Question(HERE, DEVICE, LATENCY, "", lambda _: True), tune=True)
        for is_here in (True, False)
    )
    assert "its tuning is queued" in here.answer.message
    assert here.tuning is not None
    assert elsewhere.answer.message == "not tuned for this problem, and cpu-x is not here to measure on"
    assert elsewhere.tuning is None


def test_other_device_says_nothing() -> None:
    """Winners are kept by device model: another's is no answer, not even a near one."""
    assert ask(winner(device="gpu"), winner({**HERE, "M": 32}, device="gpu")).status is Status.DEFAULT


def test_specialised_key_decides() -> None:
    """Problems that differ only in what does not enter the key share a winner."""
    found = ask(winner({"M": 64}), problem={"M": 64, "dtype": "float16"}, specialize=("M",))
    assert found.status is Status.FRESH


def test_nearest_is_served() -> None:
    """The least log distance wins: 40 is nearer to 64 than 128 is."""
    found = ask(winner({**HERE, "M": 128}, {"B": 4}), winner({**HERE, "M": 40}, {"B": 1}))
    assert (found.status, found.config) == (Status.NEAR, {"B": 1})


def test_same_string_is_needed() -> None:
    """Another string is another kind of problem, however near its numbers."""
    assert ask(winner({"M": 64, "dtype": "float16"})).status is Status.DEFAULT


@pytest.mark.parametrize(
    ("verdicts", "expected", "undecided"),
    [
        ((True, True), 1, ()),
        ((False, True), 2, ()),
        ((None, True), 2, (1,)),
        ((None, None), None, (1, 2)),
        ((False, None), None, (2,)),
        ((False, False), None, ()),
        ((True, None), 1, ()),
    ],
)
def test_near_goes_by_validity(verdicts: tuple[Any, Any], expected: int | None, undecided: tuple[int, ...]) -> None:
    """A config known invalid is skipped, one that is not known is asked about, and neither is served."""
    by_config = dict(zip((1, 2), verdicts, strict=True))
    found = ask(
        winner({**HERE, "M": 128}, {"B": 1}),
        winner({**HERE, "M": 256}, {"B": 2}),
        admits=lambda config: by_config.get(config["B"], True),
        default={"B": 8},
    )
    served = Status.DEFAULT if expected is None else Status.NEAR
    assert (found.status, found.config) == (served, {"B": 8 if expected is None else expected})
    assert found.undecided == tuple({"B": n} for n in undecided)


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("verdict", [False, None])
def test_config_that_the_space_has_lost_is_not_served(is_here: bool, verdict: bool | None) -> None:
    """The exact problem's winner too must be admitted, fresh or stale; until that is known it is not served."""
    lost = winner()
    found = ask(lost, admits=lambda config: verdict if config == lost.config else True, is_here=is_here)
    assert (found.status, found.config, found.wants_tuning) == (Status.DEFAULT, DEFAULT, True)
    assert found.undecided == (() if verdict is False else (lost.config,))


def test_near_follows_a_config_that_the_space_has_lost() -> None:
    """The next rung is the nearest other problem, not the same one again."""
    near = winner({**HERE, "M": 128}, {"B": 4})
    found = ask(winner(), near, admits=lambda config: config != {"B": 2})
    assert (found.status, found.config) == (Status.NEAR, {"B": 4})


@pytest.mark.parametrize(("verdict", "served"), [(True, DEFAULT), (None, DEFAULT), (False, None)])
def test_default_is_served_until_a_worker_refuses_it(verdict: bool | None, served: Config | None) -> None:
    """The file declares it as the fallback; for a problem that the space refuses it, there is none."""
    found = ask(admits=lambda config: verdict)
    assert (found.status, found.config) == (Status.DEFAULT, served)
    assert found.undecided == ((DEFAULT,) if verdict is None else ())


@pytest.mark.parametrize(
    ("problem", "expected"), [(HERE, Status.STALE), ({**HERE, "M": 128}, Status.NEAR)], ids=["exact", "near"]
)
@pytest.mark.parametrize("is_admitted", [True, False])
def test_knob_that_the_space_has_gained_comes_from_the_default(
    problem: Problem, expected: Status, is_admitted: bool
) -> None:
    """It is another config than the one that was measured, so never fresh; not admitted, the default is served."""
    default: Config = {"B": 1, "C": 3}
    found = ask(winner(problem), default=default, admits=lambda config: is_admitted or config == default)
    wanted = (expected, {"B": 2, "C": 3}) if is_admitted else (Status.DEFAULT, default)
    assert (found.status, found.config) == wanted


def test_few_candidates_are_considered() -> None:
    """A worker is asked about a bounded number of configs, however many problems are tuned."""
    asked: list[Config] = []
    winners = [winner({**HERE, "M": 64 * 2**n}, {"B": n}) for n in range(1, 20)]
    ask(*winners, admits=asked.append, default=None)
    assert [config["B"] for config in asked] == list(range(1, NEAR_CANDIDATES + 1))


@pytest.mark.parametrize("default", [DEFAULT, None])
def test_default_is_last(default: Config | None) -> None:
    """With nothing tuned the declared default is served, and a tuning is wanted."""
    found = ask(default=default)
    assert (found.status, found.config, found.wants_tuning) == (Status.DEFAULT, default, True)


def test_until_an_objective_has_a_winner_the_fastest_config_stands_in() -> None:
    """Before the winners of other problems, and only for the others: no energy makes a config fast."""
    fastest, frugal = winner(config={"B": 1}), replace(winner(config={"B": 4}), objective=BY_ENERGY)
    elsewhere = replace(winner({**HERE, "M": 128}), objective=BY_ENERGY)
    found = ask(fastest, elsewhere, objective=BY_ENERGY)
    assert (found.status, found.config, found.wants_tuning) == (Status.NEAR, {"B": 1}, True)
    assert ask(fastest, frugal, elsewhere, objective=BY_ENERGY).config == {"B": 4}
    assert ask(fastest, frugal).config == {"B": 1}
    assert ask(elsewhere, objective=BY_ENERGY).config == {"B": 2}
    assert ask(frugal).status is Status.DEFAULT


def test_a_near_config_that_fails_here_gives_way() -> None:
    """To the next nearest, and where that fails too, to the default; a winner of this key is served all along."""
    near = winner({"M": 128, "dtype": "float32"}, {"B": 2}), winner({"M": 1024, "dtype": "float32"}, {"B": 4})
    found = ask(*near, failed=[{"B": 2}])
    assert (found.status, found.config) == (Status.NEAR, {"B": 4})
    assert ask(*near, failed=[{"B": 2}, {"B": 4}]).config == DEFAULT
    assert ask(winner(digest="before"), failed=[{"B": 2}]).status is Status.STALE

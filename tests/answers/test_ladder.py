from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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


LADDERS = {
    "a winner of this very context is served as it is": "64=2: fresh 2",
    "with nothing tuned the declared default is served": "none: default 1 wants; no_default: default None wants",
    "what is not fully observed is stale, and tuned only after a change": """
        64=2 hidden: stale 2 unobserved; 64=2/edited hidden: stale 2 wants; hidden: default 1 wants""",
    "nothing can vouch for a winner whose device is not here": "64=2 gone: stale 2 wants",
    "winners of another device model are no answer, not even a near one": "64=2/gpu 32=2/gpu: default 1 wants",
    "the least log distance wins: 40 is nearer to 64 than 128 is": "128=4 40=1: near 1 wants",
    "another string is another kind of problem, however near its numbers": "64=2/half: default 1 wants",
    "a near config is served if it is known to be valid, and asked about if that is unknown": """
        128=4 256=2: near 4 wants; 128=4 256=2 refused4: near 2 wants; 128=4 256=2 unsure4: near 2 wants asks 4
        128=4 256=2 unsure4 unsure2: default 1 wants asks 4 2; 128=4 256=2 refused4 unsure2: default 1 wants asks 2
        128=4 256=2 refused4 refused2: default 1 wants; 128=4 256=2 unsure2: near 4 wants""",
    "a winner that the space has lost is not served, until it is known that the space has it": """
        64=2 refused2: default 1 wants; 64=2 unsure2: default 1 wants asks 2
        64=2 gone refused2: default 1 wants; 64=2 gone unsure2: default 1 wants asks 2""",
    "after a config that the space has lost comes the nearest other problem": "64=2 128=4 refused2: near 4 wants",
    "the default is served until a worker refuses it": """
        unsure1: default 1 wants asks 1; refused1: default None wants""",
    "until an objective has a winner the fastest config stands in, and for no other way round": """
        64=1 128=2/frugal by_energy: near 1 wants; 64=1 64=4/frugal 128=2/frugal by_energy: fresh 4
        64=1 64=4/frugal: fresh 1; 128=2/frugal by_energy: near 2 wants; 64=4/frugal: default 1 wants""",
    "a near config that fails here gives way; a winner of this key is served all along": """
        128=2 1024=4 failed2: near 4 wants; 128=2 1024=4 failed2 failed4: default 1 wants
        64=2/edited failed2: stale 2 wants""",
}
"""Winners (``M=B``) and conditions: the status, the served ``B``, and what else the answer says."""

OPTIONS: dict[str, dict[str, Any]] = {
    "gone": {"is_here": False},
    "hidden": {"unobserved_read": "gen.py:3 starts a child process"},
    "no_default": {"default": None},
    "by_energy": {"objective": BY_ENERGY},
}


def read_winner(text: str) -> Winner:
    size, value, kind = re.split("[=/]", f"{text}/")[:3]
    problem = {**HERE, "M": int(size)} | ({"dtype": "float16"} if kind == "half" else {})
    changes: dict[str, Any] = {"gpu": {"device": "gpu"}, "edited": {"digest": "before"}}.get(kind, {})
    return replace(winner(problem, {"B": int(value)}, **changes), objective=BY_ENERGY if kind == "frugal" else LATENCY)


def describe_answer(words: Sequence[str]) -> str:
    """Return what is answered."""
    verdicts = {word[-1]: False if "refused" in word else None for word in words if word[:-1] in ("refused", "unsure")}
    options: dict[str, Any] = {"failed": [{"B": int(word[-1])} for word in words if word.startswith("failed")]}
    for word in words:
        options |= OPTIONS.get(word, {})
    winners = [read_winner(word) for word in words if "=" in word]
    found = ask(*winners, admits=lambda config: verdicts.get(str(config["B"]), True), **options)
    told = [str(found.status), str(found.config and found.config["B"])]
    told += ["unobserved"] * found.is_unobserved + ["wants"] * found.wants_tuning
    return " ".join([*told, *(["asks"] if found.undecided else []), *(str(one["B"]) for one in found.undecided)])


@pytest.mark.parametrize("ladders", LADDERS.values(), ids=LADDERS)
def test_what_is_served(ladders: str) -> None:
    for ladder in re.split(r";|\n", ladders.strip()):
        conditions, _, expected = ladder.strip().partition(": ")
        assert describe_answer(conditions.split()) == expected, ladder


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


@pytest.mark.parametrize(
    "field", [name for name in Context.__struct_fields__ if name not in ("kernel", "problem", "device")]
)
def test_any_other_ground_is_stale(field: str) -> None:
    """Each part of the context (digest, toolchain, driver, way of measuring) alone makes a winner stale."""
    other: dict[str, Any] = {field: 99 if field == "measuring_version" else "other"}
    found = ask(winner(**other))
    assert (found.status, found.config, found.wants_tuning) == (Status.STALE, {"B": 2}, True)


def test_an_answer_for_a_device_that_is_not_here_promises_no_tuning() -> None:
    here, elsewhere = (
        find_answer(describe_kernel(is_here=is_here), Question(HERE, DEVICE, LATENCY, "", lambda _: True), tune=True)
        for is_here in (True, False)
    )
    assert "its tuning is queued" in here.answer.message
    assert here.tuning is not None
    assert elsewhere.answer.message == "not tuned for this problem, and cpu-x is not here to measure on"
    assert elsewhere.tuning is None


def test_specialised_key_decides() -> None:
    """Problems that differ only in what does not enter the key share a winner."""
    found = ask(winner({"M": 64}), problem={"M": 64, "dtype": "float16"}, specialize=("M",))
    assert found.status is Status.FRESH


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

"""Classes of equal bits: their members, the cost of the anchor's class, and the knobs that split them."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.model import TrialDetail, UsageError, have_same_bits, is_exact
from ktuned.model.objective import Objective, is_latency, read_objective, strip_numerics, with_numerics
from ktuned.protocol import Trial
from ktuned.store import BitClasses
from tests.trials import make_trial


def _trial(number: int, latency_us: float, config: dict[str, Any], **detail: Any) -> Trial:
    if "bits" in detail:
        detail["bits"] = tuple(detail["bits"])
    return make_trial(number, config, latency_us=latency_us, detail=TrialDetail(**detail))


@pytest.mark.parametrize(
    ("bits", "anchor", "expected"),
    [
        (("a", "b"), ("a", "b"), True),
        (("a", "b", "c"), ("a", "b"), True),
        (("a",), ("a", "b"), None),
        (("x",), ("a", "b"), False),
        (("a", "x"), ("a", "b"), False),
        (("a",), (), None),
        ((), ("a",), None),
    ],
)
def test_a_config_has_the_anchor_s_bits_if_all_its_inputs_agree(
    bits: tuple[str, ...], anchor: tuple[str, ...], expected: bool | None
) -> None:
    """With fewer inputs the answer is open; one difference decides."""
    assert have_same_bits(bits, anchor) is expected


def test_classes_have_letters_and_a_price() -> None:
    """The anchor's class comes first, whatever its speed."""
    found = BitClasses.from_trials(
        [
            _trial(1, 189.0, {"K": 32, "STAGES": 2}, bits=["a", "b"], same_bits=True),
            _trial(2, 195.0, {"K": 32, "STAGES": 3}, bits=["a", "b"], same_bits=True),
            _trial(3, 178.0, {"K": 64, "STAGES": 2}, bits=["a", "c"], same_bits=False),
            _trial(4, 400.0, {"K": 64, "STAGES": 3}, bits=["a"]),
            _trial(5, 150.0, {"K": 16, "STAGES": 3}, bits=["x", "y"], nondeterministic=True),
        ]
    )
    assert [(one.letter, one.configs, one.best_us, one.is_anchor) for one in found.classes] == [
        ("A", 2, 189.0, True),
        ("B", 1, 178.0, False),
    ]
    assert (found.inputs, found.nondeterministic) == (2, 1)
    assert (found.splitting, found.keeping) == (("K",), ("STAGES",))
    assert found.price == "exact costs 26 %: 189 against 150 µs"
    assert (
        found.describe_classes()[0]
        == "2 classes of equal bits on 2 inputs: A (the anchor) 2, best 189 µs; B 1, best 178 µs"
    )
    assert found.name_class(TrialDetail(bits=("a",))) == "A/B?"
    assert (
        found.name_class(
            TrialDetail(
                bits=(
                    "a",
                    "c",
                )
            )
        )
        == "B"
    )
    assert (
        found.name_class(
            TrialDetail(
                bits=(
                    "a",
                    "c",
                ),
                nondeterministic=True,
            )
        )
        == "nondeterministic"
    )
    assert found.name_class(TrialDetail()) == ""


def test_configs_that_differ_on_the_first_input_are_one_class() -> None:
    """They were launched on no other input."""
    found = BitClasses.from_trials(
        [
            _trial(1, 9.0, {"K": 1, "W": 1}, bits=["a", "b"], same_bits=True),
            _trial(2, 8.0, {"K": 2, "W": 1}, bits=["x"], same_bits=False),
            _trial(3, 7.0, {"K": 2, "W": 2}, bits=["x"], same_bits=False),
            _trial(4, 6.0, {"K": 1, "W": 2}, bits=["a"]),
        ]
    )
    assert [(one.letter, one.configs) for one in found.classes] == [("A", 1), ("B", 2)]
    assert (found.name_class(TrialDetail(bits=("x",))), found.name_class(TrialDetail(bits=("a",)))) == ("B", "A?")
    assert (found.splitting, found.keeping) == (("K",), ("W",))


def test_without_compared_bits_there_are_no_classes() -> None:
    """As after a tuning by tolerance."""
    assert BitClasses.from_trials([_trial(1, 1.0, {"K": 1})]).describe_classes() == []


@pytest.mark.parametrize("plain", ["latency", "max:tflops", "min:bytes"])
def test_numerics_are_a_part_of_every_objective(plain: str) -> None:
    """Numerics do not change the objective's figure."""
    exact = with_numerics(plain, "exact")
    assert (read_objective(exact), is_exact(exact), is_exact(plain)) == (f"exact:{plain}", True, False)
    assert strip_numerics(exact) == plain == with_numerics(exact, "tolerance")
    assert (with_numerics(exact, None), with_numerics(exact, "exact")) == (exact, exact)
    assert is_latency(exact) == (plain == "latency")


def test_unknown_numerics_are_refused() -> None:
    with pytest.raises(UsageError, match="there are no numerics 'same'"):
        with_numerics("latency", "same")


def test_only_trials_with_the_anchor_s_bits_have_a_figure_by_exact_numerics() -> None:
    """Another trial keeps its latency, by which it may win elsewhere."""
    exact = Objective("exact:latency")
    figures = [_trial(1, 5.0, {}, **detail).figure(exact) for detail in ({}, {"same_bits": False}, {"same_bits": True})]
    assert figures == [None, None, 5.0]

"""Classes of equal bits: which trials belong together, what exactness costs, and which knobs split the classes."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.model import Numerics, UsageError, have_same_bits, is_exact
from ktuned.model.objective import Objective, is_latency, read_objective, strip_numerics, with_numerics
from ktuned.protocol import Trial
from ktuned.store import BitClasses
from tests.trials import make_detail, make_trial


def make_trial_with(number: int, latency_us: float, config: dict[str, Any], **detail: Any) -> Trial:
    if "bits" in detail:
        detail["bits"] = tuple(detail["bits"])
    return make_trial(number, config, latency_us=latency_us, detail=make_detail(**detail))


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
def test_bits_are_the_anchors_on_all_of_its_inputs(
    bits: tuple[str, ...], anchor: tuple[str, ...], expected: bool | None
) -> None:
    """Fewer inputs leave the question open; one difference decides it."""
    assert have_same_bits(bits, anchor) is expected


def test_classes_have_letters_and_a_price() -> None:
    """The anchor's class comes first, whatever its speed."""
    classes = BitClasses.from_trials(
        [
            make_trial_with(1, 189.0, {"K": 32, "STAGES": 2}, bits=["a", "b"], same_bits=True),
            make_trial_with(2, 195.0, {"K": 32, "STAGES": 3}, bits=["a", "b"], same_bits=True),
            make_trial_with(3, 178.0, {"K": 64, "STAGES": 2}, bits=["a", "c"], same_bits=False),
            make_trial_with(4, 400.0, {"K": 64, "STAGES": 3}, bits=["a"]),
            make_trial_with(5, 150.0, {"K": 16, "STAGES": 3}, bits=["x", "y"], nondeterministic=True),
        ]
    )
    assert [
        (bit_class.letter, bit_class.configs, bit_class.best_us, bit_class.is_anchor) for bit_class in classes.classes
    ] == [
        ("A", 2, 189.0, True),
        ("B", 1, 178.0, False),
    ]
    assert (classes.inputs, classes.nondeterministic) == (2, 1)
    assert (classes.splitting, classes.keeping) == (("K",), ("STAGES",))
    assert classes.price == "exact costs 26 %: 189 against 150 µs"
    assert (
        classes.describe_classes()[0]
        == "2 classes of equal bits on 2 inputs: A (the anchor) 2, best 189 µs; B 1, best 178 µs"
    )
    assert classes.name_class(Numerics(bits=("a",))) == "A/B?"
    assert classes.name_class(Numerics(("a", "c"))) == "B"
    assert classes.name_class(Numerics(("a", "c"), nondeterministic=True)) == "nondeterministic"
    assert classes.name_class(Numerics()) == ""


def test_configs_that_differ_on_the_first_input_are_a_class_as_far_as_is_known() -> None:
    """They were launched on no other input."""
    classes = BitClasses.from_trials(
        [
            make_trial_with(1, 9.0, {"K": 1, "W": 1}, bits=["a", "b"], same_bits=True),
            make_trial_with(2, 8.0, {"K": 2, "W": 1}, bits=["x"], same_bits=False),
            make_trial_with(3, 7.0, {"K": 2, "W": 2}, bits=["x"], same_bits=False),
            make_trial_with(4, 6.0, {"K": 1, "W": 2}, bits=["a"]),
        ]
    )
    assert [(bit_class.letter, bit_class.configs) for bit_class in classes.classes] == [("A", 1), ("B", 2)]
    assert (classes.name_class(Numerics(bits=("x",))), classes.name_class(Numerics(bits=("a",)))) == ("B", "A?")
    assert (classes.splitting, classes.keeping) == (("K",), ("W",))


def test_no_compared_bits_give_no_lines() -> None:
    """A tuning by tolerance compares no bits."""
    assert BitClasses.from_trials([make_trial_with(1, 1.0, {"K": 1})]).describe_classes() == []


@pytest.mark.parametrize("plain", ["latency", "max:tflops", "min:bytes"])
def test_numerics_are_a_part_of_every_objective(plain: str) -> None:
    """They do not change the objective's figure."""
    exact = with_numerics(plain, "exact")
    assert (read_objective(exact), is_exact(exact), is_exact(plain)) == (f"exact:{plain}", True, False)
    assert strip_numerics(exact) == plain == with_numerics(exact, "tolerance")
    assert (with_numerics(exact, None), with_numerics(exact, "exact")) == (exact, exact)
    assert is_latency(exact) == (plain == "latency")


def test_unknown_numerics_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no numerics mode 'same'"):
        with_numerics("latency", "same")


def test_only_a_trial_with_the_anchors_bits_has_a_figure_by_exact_numerics() -> None:
    """The trial keeps its latency, by which it may win elsewhere."""
    exact = Objective("exact:latency")
    figures = [
        make_trial_with(1, 5.0, {}, **detail).figure(exact)
        for detail in ({}, {"same_bits": False}, {"same_bits": True})
    ]
    assert figures == [None, None, 5.0]

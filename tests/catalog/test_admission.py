"""Whether a kernel's space holds a config: decided by its declaration, a worker, or a stored verdict."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.catalog.admission import Admission, complete_config, decide_by_declaration, digest_space
from ktuned.model.kernel import KernelInfo, SpaceInfo
from ktuned.model.keys import ProjectName
from ktuned.model.plan import Plan
from ktuned.model.trace import Observation
from ktuned.model.values import Config
from tests.daemon_parts import Parts, make_kernel_text

CONSTRAINED = "us=[10.0, 20.0, 30.0], where=lambda p, c: all([c.us <= p.n])"
"""A constraint that only its code decides."""


def make_kernel(**changes: Any) -> KernelInfo:
    """Return a kernel with one knob, whose space is given as plain data."""
    space = SpaceInfo(**changes.pop("space", {}))
    kernel = KernelInfo(
        ProjectName("p"), "k", "/p/tune_k.py", 1, "fake", "d", "s", "pl", (), {}, (), None, None, space, Plan()
    )
    return replace(kernel, **changes)


@pytest.mark.parametrize(
    ("space", "config", "expected"),
    [
        ({"axes": {"B": [1, 2]}}, {"B": 2}, True),
        ({"axes": {"B": [1, 2]}}, {"B": 3}, False),
        ({"axes": {"B": [1, 2]}}, {"B": True}, False),
        ({"axes": {"B": [1, 2]}}, {"B": 1.0}, False),
        ({"axes": {"B": [1, 2]}}, {"B": 1, "C": 1}, False),
        ({"axes": {"B": [1, 2], "C": [1]}}, {"B": 1}, False),
        ({"axes": {"B": [1, 2]}, "constrained": True}, {"B": 2}, None),
        ({"axes": {"B": [1, 2]}, "constrained": True}, {"B": 3}, False),
        ({"configs": [{"B": 1}]}, {"B": 1}, True),
        ({"configs": [{"B": 1}]}, {"B": True}, False),
        ({"configs": [{"B": 1}]}, {"B": 2}, False),
        ({"configs": [{"B": 1}], "constrained": True}, {"B": 1}, None),
        ({"configs": [{"B": 1}], "constrained": True}, {"B": 2}, False),
        ({}, {"B": 1}, None),
    ],
)
def test_declared_values_admit_and_constraints_take_away(
    space: dict[str, Any], config: Config, expected: bool | None
) -> None:
    """A declaration decides what it can, types included; a constraint can only exclude."""
    assert decide_by_declaration(make_kernel(space=space), {}, config) is expected


@pytest.mark.parametrize(
    ("constraints", "config", "expected"),
    [
        (["B <= N"], {"B": 2}, True),
        (["B <= N"], {"B": 4}, False),
        (["B <= N", "N % B"], {"B": 2}, False),
        (["B <= M"], {"B": 2}, None),
        (["N // (B - 2)"], {"B": 2}, None),
        (["B < 'x'"], {"B": 2}, None),
        ([], {"B": 2}, None),
        (["B <= N"], {"B": 8}, False),
    ],
)
def test_constraints_as_texts_are_evaluated_and_one_that_fails_is_left_to_code(
    constraints: list[str], config: Config, expected: bool | None
) -> None:
    """A worker decides what a text cannot decide for this problem; without a problem nothing is decided."""
    kernel = make_kernel(space={"axes": {"B": [1, 2, 4]}, "constrained": True, "constraints": tuple(constraints)})
    assert decide_by_declaration(kernel, {"N": 2}, config) is expected
    assert decide_by_declaration(kernel, None, config) is (False if config == {"B": 8} else None)


@pytest.mark.parametrize(
    ("default", "config", "expected"),
    [
        ({"B": 1, "C": 3}, {"B": 2}, {"B": 2, "C": 3}),
        ({"B": 1, "C": 3}, {"C": 2, "B": 2}, {"C": 2, "B": 2}),
        ({"B": 1}, {"B": 2, "D": 1}, {"B": 2, "D": 1}),
        ({"B": 1, "C": 3}, {"B": 2, "D": 1}, {"B": 2, "D": 1}),
        (None, {"B": 2}, {"B": 2}),
    ],
)
def test_missing_knobs_come_from_the_default(default: Config | None, config: Config, expected: Config) -> None:
    """Only missing knobs do; a config with knobs of its own is unchanged."""
    assert complete_config(make_kernel(default=default), config) == expected


def test_space_digest_goes_by_what_decides_the_space() -> None:
    """A new budget, problem or default keeps verdicts; another space or constraint does not."""
    parts = {"space": "a", "tune_k.py:fits": "b", "plan": "c", "problems": "d", "default": "e", "specialize": "f"}
    kernel = make_kernel(plan_parts=parts)
    for label in parts:
        other = replace(kernel, plan_parts={**parts, label: "other"})
        is_same = label in ("plan", "problems", "default", "specialize")
        assert (digest_space(other) == digest_space(kernel)) is is_same
    assert digest_space(make_kernel()) != digest_space(make_kernel(plan_digest="other"))


@pytest.mark.anyio
async def test_a_worker_is_asked_once_and_the_next_daemon_knows(parts: Parts) -> None:
    """A constraint's verdicts are stored by problem and config, for this space only."""
    kernel = await parts.inspect_file(make_kernel_text(configs=CONSTRAINED))
    admission = parts.daemon.admission
    configs: list[Config] = [{"us": 10.0}, {"us": 20.0}, {"us": 40.0}]
    assert [admission.find_known_verdict(kernel, {"n": 15}, config) for config in configs] == [None, None, False]
    assert await admission.check_configs(kernel, {"n": 15}, configs) == [True, False, False]
    again = Admission(parts.catalog, None, parts.store)  # type: ignore[arg-type]
    for checker in (admission, again):
        assert [checker.find_known_verdict(kernel, {"n": 15}, config) for config in configs] == [True, False, False]
        assert checker.find_known_verdict(kernel, {"n": 20}, {"us": 20.0}) is None
        assert await checker.check_configs(kernel, {"n": 15}, configs) == [True, False, False]
    other = await parts.inspect_file(make_kernel_text(configs=CONSTRAINED.replace("<=", "<")))
    assert again.find_known_verdict(other, {"n": 15}, {"us": 10.0}) is None


@pytest.mark.anyio
async def test_the_default_of_a_declared_problem_is_known(parts: Parts) -> None:
    """The inspection decides it, except for other problems, values of other types, and where data decide."""
    file = make_kernel_text(configs="us=[10, 20], where=lambda p, c: all([c.us <= p.n])", default="dict(us=10)")
    kernel = await parts.inspect_file(file)
    known = parts.daemon.admission.find_known_verdict
    assert known(kernel, {"n": 64}, {"us": 10}) is True
    assert [known(kernel, {"n": n}, {"us": 10}) for n in (5, 65, 64.0)] == [None, None, None]
    assert known(kernel, {"n": 64}, {"us": 20}) is None
    limit = Observation("limit.txt", "aa", is_data=True)
    assert known(replace(kernel, learned={limit.name: limit}), {"n": 64}, {"us": 10}) is None
    header = Observation("one.h", "bb", is_source=True)
    assert known(replace(kernel, learned={header.name: header}), {"n": 64}, {"us": 10}) is True


@pytest.mark.anyio
async def test_a_constraint_that_raises_admits_nothing(parts: Parts) -> None:
    """A config that the code cannot decide is not served; a file that has changed since gives no verdict."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0], where=lambda p, c: p.n == 64 or 1 / 0"))
    admission = parts.daemon.admission
    assert await admission.check_configs(kernel, {"n": 1}, [{"us": 10.0}]) == [False]
    parts.write_file(make_kernel_text(configs="us=[10.0]"))
    with pytest.raises(Exception, match="changed after it was inspected"):
        await admission.check_configs(kernel, {"n": 2}, [{"us": 10.0}])
    assert admission.find_known_verdict(kernel, {"n": 2}, {"us": 10.0}) is None


@pytest.mark.anyio
async def test_a_verdict_holds_as_long_as_what_the_code_reads(parts: Parts) -> None:
    """After a change of a data file that a constraint may read, it is asked again, also by the next daemon. What was
    learned since changes nothing.
    """
    kernel = await parts.inspect_file(make_kernel_text(configs=CONSTRAINED))
    admission = parts.daemon.admission
    limit, other = Observation("limit.txt", "aa", is_data=True), Observation("one.h", "bb", is_source=True)
    read = replace(kernel, learned={limit.name: limit, other.name: other})
    admission.remember_admitted_configs(read, {"n": 15}, [{"us": 10.0}])
    await admission.store_verdict(read, {"n": 15}, {"us": 10.0})
    since = {**read.learned, "new.txt": Observation("new.txt", "cc"), other.name: replace(other, digest="dd")}
    changed = {**since, limit.name: replace(limit, digest="ee")}
    the_next = [Admission(parts.catalog, None, parts.store) for _ in range(2)]  # type: ignore[arg-type]
    for checker, learned, expected in ((admission, since, True), (admission, changed, None)):
        assert checker.find_known_verdict(replace(read, learned=learned), {"n": 15}, {"us": 10.0}) is expected
    # Edited while no daemon ran.
    for checker, learned, expected in ((the_next[0], since, True), (the_next[1], changed, None)):
        assert checker.find_known_verdict(replace(read, learned=learned), {"n": 15}, {"us": 10.0}) is expected

"""States: what ends them, and that nothing else does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.answers.kernel_state import KernelState
from ktuned.model.keys import DeviceName, KernelName
from ktuned.protocol.events import AnswersChanged, Event, KernelsReloaded, KernelStale, LaneChanged
from ktuned.protocol.kernels import FileError
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text

pytestmark = pytest.mark.anyio

IT, OTHER = KernelName("project:it"), KernelName("project:other")


async def declare_two_kernels(parts: Parts) -> None:
    """Write and inspect two kernel files, and keep the states of their kernels."""
    parts.write_file(make_kernel_text("other"), "tune_other.py")
    parts.write_file(make_kernel_text())
    await parts.inspector.inspect_root(parts.root)
    for name in (IT, OTHER):
        find_state(parts, name)


def find_state(parts: Parts, name: KernelName) -> KernelState:
    """Return a kernel's present state."""
    kernel = parts.catalog.find_kernel(name)
    assert kernel is not None
    return parts.daemon.states.find_state(kernel)


async def test_an_event_ends_the_states_that_it_touches(parts: Parts) -> None:
    await declare_two_kernels(parts)
    touched_by: list[tuple[Event, set[KernelName]]] = [
        (AnswersChanged(), {IT, OTHER}),
        (AnswersChanged(kernel=IT), {IT}),
        (KernelStale(kernel=IT), {IT}),
        (KernelsReloaded(added=("project:new",)), {IT, OTHER}),
        (KernelsReloaded(removed=("project:gone",)), {IT, OTHER}),
        (KernelsReloaded(changed=(IT,)), {IT}),
        (KernelsReloaded(replanned=(OTHER,)), {OTHER}),
        (LaneChanged(device=DeviceName("cpu:0"), state="open"), set()),
    ]
    for event, touched in touched_by:
        before = {name: find_state(parts, name) for name in (IT, OTHER)}
        version = parts.daemon.states.version
        parts.daemon.router.publish_event(event)
        assert {name for name in before if find_state(parts, name) is not before[name]} == touched, event
        assert (parts.daemon.states.version > version) is bool(touched), event


@pytest.mark.parametrize("what", ["errors", "mended"])
async def test_a_file_that_cannot_be_read_ends_the_states_of_its_kernels(parts: Parts, what: str) -> None:
    await declare_two_kernels(parts)
    before = {name: find_state(parts, name) for name in (IT, OTHER)}
    file = before[IT].kernel.file
    facts: dict[str, Any] = {"errors": (FileError(file, 1, "no", ""),)} if what == "errors" else {"mended": (file,)}
    parts.daemon.router.publish_event(KernelsReloaded(**facts))
    assert find_state(parts, IT) is not before[IT]
    assert find_state(parts, OTHER) is before[OTHER]


async def test_a_project_with_another_environment_ends_all_states(parts: Parts) -> None:
    await declare_two_kernels(parts)
    assert dict(find_state(parts, IT).environment.env) == {}
    parts.catalog.add_root(replace(parts.root, env={"MODE": "2"}))
    assert dict(find_state(parts, IT).environment.env) == {"MODE": "2"}


async def test_a_kernel_and_its_namesakes_end_together(parts: Parts) -> None:
    """A checkout of the same code may serve the winner of another one, so a change of one concerns both."""
    await declare_two_kernels(parts)
    states = parts.daemon.states
    states._namesakes["it"].add("clone:it")
    touched: list[Collection[str] | None] = []
    states.when_touched = touched.append
    states.touch_kernels((IT,))
    assert touched == [{IT, "clone:it"}]


async def test_a_state_has_what_an_answer_may_name(parts: Parts) -> None:
    """Winners with their artifacts' places, and the configs that failed where there is no winner."""
    kernel = await parts.inspect_file(make_kernel_text(configs="us=[10.0, 20.0]"))
    await parts.record_measurements(kernel, {20.0: 5.0}, rounds=ALL_ROUNDS)
    state = find_state(parts, IT)
    (winner,) = state.winners.values()
    (place,) = state.places
    assert winner.context == state.make_context(place, {"n": 64})
    assert (state.failed, state.failed_jobs, state.artifacts) == (frozenset(), {}, {})
    assert state.find_place("cpu:0") is state.find_place("Fake CPU") is state.find_place(None) is place
    assert state.find_place("H100") is None

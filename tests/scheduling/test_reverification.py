"""What a new driver or toolchain has measured again, and what is none of its business."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ktuned.model.trial import Context
from ktuned.scheduling.reverification import Reverifying
from tests.parts import Parts, kernel_text

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("captured", ["", "the digest of some inputs"])
async def test_a_new_toolchain_has_winners_measured_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, captured: str
) -> None:
    """Of captured inputs too, which belong to what the kernel means."""
    parts.machine.captured = lambda kernel, problem: captured
    await parts.measured(await parts.inspect(kernel_text()), {50.0: 7.0})
    reverifying = Reverifying(catalog=parts.catalog, machine=parts.machine, store=parts.store, jobs=parts.jobs)
    assert await reverifying.run() == []

    context = parts.machine.context

    def on_a_newer_one(*asked: object) -> Context:
        return replace(context(*asked), toolchain="newer")  # type: ignore[arg-type]

    monkeypatch.setattr(parts.machine, "context", on_a_newer_one)
    (job,) = await reverifying.run()
    assert job.reason == "a driver or toolchain changed"


async def test_captured_inputs_are_no_driver(parts: Parts) -> None:
    """A winner of the declared inputs waits for somebody to ask, like one of older sources."""
    await parts.measured(await parts.inspect(kernel_text()), {50.0: 7.0})
    parts.machine.captured = lambda kernel, problem: "the digest of some inputs"
    reverifying = Reverifying(catalog=parts.catalog, machine=parts.machine, store=parts.store, jobs=parts.jobs)
    assert await reverifying.run() == []

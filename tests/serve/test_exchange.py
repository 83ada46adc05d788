"""Imports: which winners of a document are taken, where the space's own code must be asked."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.serve.exchange import WinnerExchange
from ktuned.serve.params import ImportParams
from tests.assembled import ALL_ROUNDS, Parts, kernel_text

pytestmark = pytest.mark.anyio


def document(*figures: tuple[float, float]) -> dict[str, Any]:
    """Return a document with a winner for ``n = 64`` of each config (its ``us``) and latency, measured elsewhere."""
    winners = [
        {
            "problem": {"n": 64},
            "config": {"us": us},
            "latency_us": latency_us,
            "spread_us": 0.1,
            "decided": 1.0,
            "digest": "d",
            "toolchain": "t",
            "device_fingerprint": "f",
            "measuring_version": 1,
            "artifact": None,
        }
        for us, latency_us in figures
    ]
    shared = {"kernel": "project:it", "device": "Fake CPU", "default": None, "specialize": None, "winners": winners}
    return {"ktuned_winners": 1, **shared}


def sharing(parts: Parts) -> WinnerExchange:
    """Return the methods over a daemon's parts."""
    return WinnerExchange(
        admission=parts.daemon.admission,
        catalog=parts.catalog,
        machine=parts.machine,
        store=parts.store,
        artifacts=parts.artifacts,
        publish=parts.daemon.router.publish,
    )


async def test_constraint_is_asked_before_a_winner_is_taken(parts: Parts) -> None:
    """What `where` forbids is refused, by a worker's verdict and not by a guess."""
    await parts.inspect(kernel_text(configs="us=[10.0, 20.0], where=lambda p, c: c.us > 10.0"))
    wanted = ImportParams(document=document((10.0, 1.0), (20.0, 2.0), (30.0, 3.0)), dry_run=True)
    answer = await sharing(parts).take(wanted, None)  # type: ignore[arg-type]
    assert [winner["taken"] for winner in answer["winners"]] == [False, True, False]
    refused = "refused: the kernel's space has no such config"
    assert [winner["reason"] for winner in answer["winners"]] == [refused, "there was none", refused]


async def test_winner_that_the_space_has_lost_gives_way(parts: Parts) -> None:
    """However good its figure: it is served no more."""
    kernel = await parts.inspect(kernel_text(configs="us=[10.0, 20.0]"))
    await parts.measured(kernel, {10.0: 0.5}, rounds=ALL_ROUNDS)
    wanted = ImportParams(document=document((20.0, 2.0)), dry_run=True)
    (before,) = (await sharing(parts).take(wanted, None))["winners"]  # type: ignore[arg-type]
    await parts.inspect(kernel_text(configs="us=[20.0]"))
    (after,) = (await sharing(parts).take(wanted, None))["winners"]  # type: ignore[arg-type]
    assert (before["taken"], after["taken"]) == (False, True)

"""Artifacts on a node: they come with requests, go with items, and are kept within a cap."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from ktuned.bridge import CallFailed
from ktuned.ipc import locate_artifact, manifest, replies
from ktuned.model.values import Outcome
from ktuned_ray import parcels
from ktuned_ray.node_artifacts import NodeArtifacts

pytestmark = pytest.mark.anyio

KEY = "ab" + "0" * 62


def sealed(directory: Path, key: str = KEY, size: int = 1000) -> Path:
    """Make an artifact of so many bytes."""
    place = locate_artifact(directory, key)
    place.mkdir(parents=True)
    (place / "kernel.so").write_bytes(b"x" * size)
    manifest.write(place, key=key, backend="fake", facts={})
    return place


def unit(key: str = KEY, outcome: Outcome | None = None) -> replies.CompiledUnit:
    """Return a unit as a compile worker reports it."""
    return replies.CompiledUnit(key, outcome, "", 0.1, {})


async def test_an_artifact_travels_between_nodes_unchanged(tmp_path: Path) -> None:
    """A compiled unit's artifact travels with its item, and with a request, unchanged."""
    sealed(tmp_path / "one" / "artifacts")
    packed = await NodeArtifacts(tmp_path / "one").pack_artifact(unit())
    await NodeArtifacts(tmp_path / "two").take_parcels({f"artifact-{KEY}": packed})
    found = manifest.verify(locate_artifact(tmp_path / "two" / "artifacts", KEY), required=["kernel.so"])
    assert found.key == KEY


@pytest.mark.parametrize("item", [unit(outcome=Outcome.COMPILE_ERROR), unit("cd" + "0" * 62), replies.Empty()])
async def test_an_item_without_an_artifact_travels_alone(item: object, tmp_path: Path) -> None:
    """A failed unit, one whose artifact is gone and any other item take nothing with them."""
    sealed(tmp_path / "artifacts")
    assert await NodeArtifacts(tmp_path).pack_artifact(item) == b""


async def test_a_large_artifact_is_left_to_be_fetched(tmp_path: Path) -> None:
    """A frame holds no artifact that would hold up those behind it."""
    sealed(tmp_path / "artifacts", size=parcels.MAX_IN_FRAME_BYTES)
    assert await NodeArtifacts(tmp_path).pack_artifact(unit()) == b""


async def test_a_parcel_stays_in_its_directory(tmp_path: Path) -> None:
    """A name that leads out of the keeper's directory fails the call, and writes nothing."""
    with pytest.raises(CallFailed, match="no parcel can be named"):
        await NodeArtifacts(tmp_path / "home").take_parcels({"artifact-../../out": b"\x80"})
    assert list(tmp_path.iterdir()) == []


async def test_beyond_the_cap_the_oldest_artifact_is_removed(tmp_path: Path) -> None:
    """With a third artifact the first is removed, and the others stay."""
    keys = [f"{number:02}" + "0" * 62 for number in range(3)]
    places = [sealed(tmp_path / "artifacts", key) for key in keys]
    for age, place in enumerate(reversed(places)):
        os.utime(place / manifest.MANIFEST_NAME, (1000.0 - age, 1000.0 - age))
    artifacts = NodeArtifacts(tmp_path, cap_bytes=3500, check_interval_s=0.0)
    await artifacts.pack_artifact(unit(keys[2]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(artifacts.run_until_cancelled)
        with anyio.fail_after(10):
            while places[0].exists():  # noqa: ASYNC110 - a directory's end is no event
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [place.exists() for place in places] == [False, True, True]

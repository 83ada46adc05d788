"""Files that go to a node of a cluster before a request, whatever the operation."""

from __future__ import annotations

import hashlib
import typing
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ktuned.fleet.bridge import Bridge
from ktuned.fleet.calls import BridgeDown
from ktuned.fleet.executor import Environment
from ktuned.ipc import locate_artifact, manifest, replies, requests
from ktuned.model.values import Outcome
from ktuned_ray import cluster_calls, node_calls, parcels
from ktuned_ray.carrier import Carrier
from ktuned_ray.node_link import NodeLink
from tests.trials import make_measurement

pytestmark = pytest.mark.anyio

OPERATIONS = requests.Request.__subclasses__()
OF_KERNELS = [one for one in OPERATIONS if typing.get_type_hints(one).get("kernel") is requests.KernelRef]
UNIT = requests.UnitRef("0" * 64, {})


class Cluster:
    """A node that has nothing at first: what is put there, and what it is asked to lay out."""

    def __init__(self) -> None:
        self.given: list[dict[str, str]] = []
        self.files: list[set[str]] = []
        self.info = SimpleNamespace(id="1", name="n0")

    async def call_service(self, call: Any, deadline_s: float) -> Any:
        """Take parcels, or say which files of a project are missing."""
        if isinstance(call, cluster_calls.Give):
            self.given.append(dict(call.parcels))
            return replies.Empty()
        assert isinstance(call, node_calls.LayOut)
        self.files.append(set(call.files))
        held = {name for parcels in self.given for name in parcels}
        return node_calls.Layout(tuple(one for one in sorted(set(call.files.values())) if f"file-{one}" not in held))

    call_keeper = call_service


@pytest.fixture
def there() -> Cluster:
    """Return an empty node."""
    return Cluster()


@pytest.fixture
def carrier(there: Cluster, tmp_path: Path) -> Carrier:
    """Return what carries files to it."""
    return Carrier(cast(Bridge, there), cast(NodeLink, there), tmp_path / "artifacts")


def made(kind: type[Any], **given: Any) -> Any:
    """Return a request; of what is not given the carrier takes no notice."""
    lacking = dict.fromkeys(kind.__struct_fields__)
    return kind(**(lacking | given))


@pytest.mark.parametrize("kind", OF_KERNELS, ids=lambda kind: kind.__name__)
async def test_a_request_that_names_a_kernel_finds_its_files(
    kind: type[Any], there: Cluster, carrier: Carrier, tmp_path: Path
) -> None:
    """Whichever operation it is: the project is laid out before it."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "tune_it.py").write_text("it")
    digest = hashlib.sha256(b"it").hexdigest()
    kernel = requests.KernelRef("p", "tune_it.py", "it", "fake", (), {"tune_it.py": digest})
    await carrier.provide_files(made(kind, kernel=kernel), Environment("python", str(root), (), "p"))
    assert there.given == [{f"file-{digest}": str(root / "tune_it.py")}]
    assert there.files[-1] == {"tune_it.py"}


WELL, DAMAGED = make_measurement(Outcome.MEASURED), make_measurement(None)


@pytest.mark.parametrize(
    ("request_", "well", "damaged"),
    [
        (made(requests.Trial, units=(UNIT,)), WELL, DAMAGED),
        (made(requests.Time, unit=UNIT), WELL, DAMAGED),
        (made(requests.Check, unit=UNIT), WELL, DAMAGED),
        (made(requests.Open, reference=UNIT), replies.Opened(), replies.Opened(unusable="damaged", is_damaged=True)),
    ],
)
async def test_a_damaged_artifact_is_carried_again(
    request_: Any, well: Any, damaged: Any, there: Cluster, carrier: Carrier, tmp_path: Path
) -> None:
    """An artifact goes there once, and once more after the node could not load it."""
    environment = Environment("python", str(tmp_path), (), "p")
    parcel = {f"artifact-{UNIT.key}": str(locate_artifact(tmp_path / "artifacts", UNIT.key))}
    for _ in range(2):
        await carrier.provide_files(request_, environment)
    carrier.forget_damaged(well, request_)
    await carrier.provide_files(request_, environment)
    assert there.given == [parcel]
    carrier.forget_damaged(damaged, request_)
    await carrier.provide_files(request_, environment)
    assert there.given == [parcel, parcel]


async def test_a_small_artifact_travels_with_its_request(there: Cluster, carrier: Carrier, tmp_path: Path) -> None:
    """It needs no call of its own, and goes once; a large one is given before."""
    environment = Environment("python", str(tmp_path), (), "p")
    small, large = UNIT, requests.UnitRef("1" * 64, {})
    for unit, size in ((small, 100), (large, parcels.MAX_IN_FRAME_BYTES + 1)):
        place = locate_artifact(tmp_path / "artifacts", unit.key)
        place.mkdir(parents=True)
        (place / "kernel.so").write_bytes(b"x" * size)
    request = made(requests.Trial, units=(small, large))
    assert list(await carrier.provide_files(request, environment)) == [f"artifact-{small.key}"]
    assert [list(one) for one in there.given] == [[f"artifact-{large.key}"]]
    assert await carrier.provide_files(request, environment) == {}


@pytest.mark.parametrize("is_whole", [True, False])
async def test_an_artifact_that_came_with_its_item_is_checked(
    is_whole: bool, there: Cluster, carrier: Carrier, tmp_path: Path
) -> None:
    """It is kept where it belongs if its bytes are those that were sealed, and nowhere otherwise."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "kernel.so").write_bytes(b"binary")
    manifest.write(source, key=UNIT.key, backend="fake", facts={})
    if not is_whole:
        (source / "kernel.so").write_bytes(b"other")
    unit = replies.CompiledUnit(UNIT.key, None, "", 0.1, {})
    with nullcontext() if is_whole else pytest.raises(BridgeDown, match="damaged"):
        assert (await carrier.bring_artifact(unit, parcels.pack_parcel(source))).bytes > 0
    place = locate_artifact(tmp_path / "artifacts", UNIT.key)
    assert place.exists() is is_whole
    assert list(place.parent.iterdir()) == [place] * is_whole

"""The registry of plugins, and Builds as plain data."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import msgpack
import pytest

from ktuned import backends
from ktuned.backends.contract import API_VERSION, Backend, Compiled, Kernel, Unit
from ktuned.backends.registry import Registry, install_hint
from ktuned.model.device import Device
from ktuned.model.errors import BackendError

FAKE_DIRECTORY = Path(__file__).parents[1] / "fake_backend"


@dataclass(frozen=True)
class Build(backends.Build):
    """A Build with fields of every kind that may travel."""

    backend: ClassVar[str] = "plain"
    name: str = "f"
    args: tuple[Any, ...] = ()
    defines: Mapping[str, Any] | None = None


class MinimalBackend(Backend):
    """A backend with nothing but the required methods."""

    name = "plain"
    build = Build
    required_files = ("kernel",)

    def fingerprint(self) -> Mapping[str, str]:
        return {}

    def devices(self) -> Sequence[Device]:
        return []

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        yield from ()

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        raise NotImplementedError


class NewerBackend(MinimalBackend):
    api_version = API_VERSION + 1


class NotABackend:
    pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry over a plugin module of this test, with good and bad entry points."""
    plugin = ModuleType("a_plugin")
    plugin.__dict__.update(
        MinimalBackend=MinimalBackend, NewerBackend=NewerBackend, NotABackend=NotABackend, an_instance=MinimalBackend()
    )
    monkeypatch.setitem(sys.modules, "a_plugin", plugin)
    points = {
        "plain": "a_plugin:MinimalBackend",
        "newer": "a_plugin:NewerBackend",
        "no_class": "a_plugin:NotABackend",
        "instance": "a_plugin:an_instance",
        "no_module": "there_is_no_such_module:MinimalBackend",
        "no_attribute": "a_plugin:Missing",
    }
    return Registry([EntryPoint(name, value, backends.ENTRY_POINT_GROUP) for name, value in points.items()])


def test_a_backend_is_imported_once(registry: Registry) -> None:
    first = registry.load("plain")
    assert type(first) is MinimalBackend
    assert registry.load("plain") is first


def test_listing_imports_nothing(registry: Registry) -> None:
    """Names are read from metadata: a plugin that cannot be imported is listed, too."""
    assert registry.names == ["instance", "newer", "no_attribute", "no_class", "no_module", "plain"]
    assert "there_is_no_such_module" not in sys.modules
    assert registry.read_version("plain") == ""


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("my_gpu", r"no backend 'my_gpu' \(installed: instance, newer, .*plain\)", "install the plugin that has it"),
        ("newer", f"'newer' speaks API {API_VERSION + 1}; this ktuned speaks {API_VERSION}", "upgrade ktuned"),
        ("no_class", "'no_class' is not a subclass", ""),
        ("instance", "'instance' is not a subclass", ""),
        ("no_module", "'no_module' cannot be imported: ModuleNotFoundError: .*no_such_module", "reinstall"),
        ("no_attribute", "'no_attribute' cannot be imported: AttributeError: .*Missing", "reinstall"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line_with_the_reason(
    registry: Registry, name: str, message: str, hint: str
) -> None:
    """The error is the same each time the plugin is requested."""
    for _ in range(2):
        with pytest.raises(BackendError, match=message) as caught:
            registry.load(name)
        assert re.search(hint, caught.value.hint)
        assert "\n" not in caught.value.message


def test_the_error_without_plugins_says_that_none_is_installed() -> None:
    with pytest.raises(BackendError, match=r"installed: none"):
        Registry([]).load("plain")


def test_a_plugin_is_found_by_its_metadata() -> None:
    """A directory with a ``dist-info`` on the path is an installed plugin with a version."""
    (distribution,) = distributions(path=[str(FAKE_DIRECTORY)])
    registry = Registry([point for point in distribution.entry_points if point.group == backends.ENTRY_POINT_GROUP])
    assert (registry.names, registry.read_version("fake")) == (["fake"], "1.0")


def test_a_build_survives_the_wire() -> None:
    """Tuples stay tuples at any depth; maps and scalars stay as they are."""
    build = Build("gemm<1,2>", ("A", ("nested", 1), 2.5, True, None, b"\0"), {"N": 4, "flags": ("-O3",)})
    plain = msgpack.unpackb(msgpack.packb(build.to_plain()))
    assert plain["args"] == ["A", ["nested", 1], 2.5, True, None, b"\0"]
    assert Build.from_plain(plain) == build


@pytest.mark.parametrize("value", [object(), {1, 2}, len, 1j], ids=["object", "set", "function", "complex"])
def test_a_build_refuses_what_cannot_travel(value: object) -> None:
    """Making the Build plain names a value that MessagePack cannot carry, at any depth."""
    with pytest.raises(TypeError, match=f"a Build cannot carry a {type(value).__name__}"):
        Build(args=("A", (value,))).to_plain()


def test_hints_name_only_extras_that_exist() -> None:
    """A backend of ktuned's own plugins has an extra; for other backends the hint names no distribution."""
    assert install_hint("tvm_ffi") == "pip install 'ktuned[tvm-ffi]'"
    assert install_hint("tvm_ffi_cuda", "/p/python") == "/p/python -m pip install 'ktuned[tvm-ffi]'"
    assert install_hint("nvrtc").endswith("'ktuned[nvrtc]'")
    for name in ("no_such", "cuda", "torch_x"):
        assert "pip" not in install_hint(name)
